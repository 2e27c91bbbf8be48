"""UUIDv7 as RFC 9562 wants it."""

import os
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox import codecs, uuid7

MILLISECONDS = st.integers(0, 2**48 - 1)


def fixed(monkeypatch: pytest.MonkeyPatch, *, milliseconds: int, random: bytes) -> str:
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: milliseconds * 1_000_000 + 999_999)
        patch.setattr(os, "urandom", lambda size: random[:size])
        return uuid7()


def test_the_example_of_the_rfc(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 9562, appendix A.6; rand_a is 0xCC3, rand_b is 0x18C4DC0C0C07398F."""
    random = (0xCC3 << 68 | 0x18C4DC0C0C07398F).to_bytes(10, "big")
    made = fixed(monkeypatch, milliseconds=0x017F22E279B0, random=random)
    assert made == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@given(milliseconds=MILLISECONDS, random=st.binary(min_size=10, max_size=10))
def test_version_variant_and_time_hold_for_all_bits(milliseconds: int, random: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        value = uuid.UUID(made := fixed(patch, milliseconds=milliseconds, random=random))
    assert (value.version, value.variant) == (7, uuid.RFC_4122)
    assert value.int >> 80 == milliseconds
    assert str(value) == made


@given(MILLISECONDS, MILLISECONDS)
def test_later_ones_sort_after_earlier_ones(one: int, other: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        low = fixed(patch, milliseconds=min(one, other), random=bytes(10))
        high = fixed(patch, milliseconds=max(one, other), random=b"\xff" * 10)
    assert low < high


def test_74_bits_are_random(monkeypatch: pytest.MonkeyPatch) -> None:
    none = uuid.UUID(fixed(monkeypatch, milliseconds=0, random=bytes(10)))
    all_of_them = uuid.UUID(fixed(monkeypatch, milliseconds=0, random=b"\xff" * 10))
    assert (none.int ^ all_of_them.int).bit_count() == 74


def test_the_time_is_now() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(uuid7()).int >> 80
    assert before <= made <= time.time_ns() // 1_000_000


def test_no_two_are_equal() -> None:
    assert len({uuid7() for _ in range(10_000)}) == 10_000


def test_every_broker_takes_one_as_idempotency_key() -> None:
    made = uuid7()
    assert codecs.check_idempotency_key(made) == made
