import random

from hypothesis import given
from hypothesis import strategies as st

from relays.retry import Backoff


def test_limits_double_and_are_capped() -> None:
    backoff = Backoff(shortest=1.0, longest=10.0)
    assert [backoff.limit(failures) for failures in range(1, 7)] == [1, 2, 4, 8, 10, 10]


@given(failures=st.integers(1, 10**9), seed=st.integers())
def test_every_delay_is_within_its_limit_however_many_failures(failures: int, seed: int) -> None:
    backoff = Backoff(shortest=0.5, longest=300.0, rng=random.Random(seed))
    assert 0 <= backoff.delay(failures) <= backoff.limit(failures) <= 300.0


def test_jitter_is_full() -> None:
    backoff = Backoff(shortest=1.0, longest=300.0, rng=random.Random(1))
    delays = [backoff.delay(4) for _ in range(1000)]
    assert min(delays) < 0.5
    assert max(delays) > 7.5
