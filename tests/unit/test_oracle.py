"""The demo's oracle: what it counts, for every way in which a relay could go wrong."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relays.demo.ledger import Ledger
from relays.demo.oracle import Sale, Verdict, judge
from relays.demo.show import Result, to_json


def sale(customer: str, number: int, key: str | None = None) -> Sale:
    return Sale(key or f"{customer}-{number}", customer, number)


A1, A2, A3, B1, B2 = sale("a", 1), sale("a", 2), sale("a", 3), sale("b", 1), sale("b", 2)
COMMITTED = [A1, A2, A3, B1, B2]


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        pytest.param([A1, A2, B1, B2, A3], Verdict(5, 5, 0, 0, 0, 0), id="all of it, customers interleaved"),
        pytest.param([A1, A2, A1, A2, A3, B1, B2, B2], Verdict(5, 5, 3, 0, 0, 0), id="duplicates"),
        pytest.param([], Verdict(5, 0, 0, 5, 0, 0), id="nothing"),
        pytest.param([A1, A3, B2], Verdict(5, 3, 0, 2, 0, 0), id="lost ones do not break the order"),
        pytest.param([A1, A3, A2, B1, B2], Verdict(5, 5, 0, 0, 0, 1), id="one overtaken"),
        pytest.param([A3, A1, A2, B2, B1], Verdict(5, 5, 0, 0, 0, 3), id="each that is overtaken counts"),
        pytest.param([A2, A1, A2, A3, B1, B2], Verdict(5, 5, 1, 0, 0, 1), id="the first arrival counts"),
        pytest.param([A1, A2, A3, B1, B2, sale("a", 4)], Verdict(5, 6, 0, 0, 1, 0), id="never committed"),
        pytest.param([sale("a", 9), A1, A2, A3, B1, B2], Verdict(5, 6, 0, 0, 1, 0), id="invented ones have no order"),
        pytest.param([sale("a", 1, "other"), A2, A3, B1, B2], Verdict(5, 5, 0, 1, 1, 0), id="another key"),
        pytest.param([A1, A2, A3, B1, sale("b", 3, "b-2")], Verdict(5, 5, 0, 1, 1, 0), id="another content"),
        pytest.param([A1, A1._replace(customer="b"), A2, A3, B1, B2], Verdict(5, 6, 0, 0, 1, 0), id="another customer"),
    ],
)
def test_what_is_counted(received: list[Sale], expected: Verdict) -> None:
    assert judge(COMMITTED, received) == expected
    assert expected.good is not bool(expected.lost or expected.invented or expected.order_violations)


def test_nothing_committed_and_nothing_received_is_good() -> None:
    assert judge([], []) == Verdict(0, 0, 0, 0, 0, 0)
    assert judge([], []).good


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Sale], list[Sale]]:
    """Committed sales, and arrivals that a relay may produce: interleaved, parts of it again from some point on."""
    customers = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    turns = draw(st.permutations([name for name, count in enumerate(customers) for _ in range(count)]))
    arrivals: list[Sale] = []
    for turn in turns:
        arrivals.append(sale(f"c{turn}", sum(earlier.customer == f"c{turn}" for earlier in arrivals) + 1))
    committed = draw(st.permutations(arrivals))
    for _ in range(draw(st.integers(0, 3))):
        end = draw(st.integers(0, len(arrivals)))
        start = draw(st.integers(0, end))
        arrivals[end:end] = arrivals[start:end]
    return committed, arrivals


@given(histories())
def test_what_a_relay_may_do_is_good(history: tuple[list[Sale], list[Sale]]) -> None:
    committed, received = history
    verdict = judge(committed, received)
    assert verdict.good
    assert verdict.received_distinct + verdict.duplicates == len(received)
    assert verdict.received_distinct == verdict.committed == len(committed)


@given(histories(), st.data())
def test_every_missing_and_every_foreign_message_is_seen(
    history: tuple[list[Sale], list[Sale]], data: st.DataObject
) -> None:
    committed, received = history
    missing = data.draw(st.sets(st.sampled_from(committed)))
    foreign = [sale("nobody", number) for number in range(data.draw(st.integers(0, 3)))]
    verdict = judge(committed, [*foreign, *(each for each in received if each not in missing)])
    assert (verdict.lost, verdict.invented, verdict.order_violations) == (len(missing), len(foreign), 0)


def test_the_ledger_keeps_the_order_of_arrival_and_reads_what_the_shop_wrote(tmp_path: Path) -> None:
    consumer, reader = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "ledger")
    body = json.dumps({"customer": "a", "number": 2}).encode()
    consumer.write([("k2", body), ("k1", b'{"customer": "a", "number": 1}')])
    consumer.write([("k2", body)])
    assert reader.sales() == [Sale("k2", "a", 2), Sale("k1", "a", 1), Sale("k2", "a", 2)]
    assert (reader.arrivals(), reader.empty_looks()) == (3, 0)
    consumer.write_empty()
    assert reader.empty_looks() == 1
    consumer.close()
    reader.close()


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[]", b"null", b'{"customer": "a"}', b'{"customer": "a", "number": []}']
)
def test_a_body_that_is_not_the_shops_was_never_committed(tmp_path: Path, body: bytes) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.write([(A1.idempotency_key, body)])
    assert judge([A1], ledger.sales()) == Verdict(1, 1, 0, 1, 1, 0)
    ledger.close()


def test_json_has_the_numbers_side_by_side() -> None:
    verdict = Verdict(5, 4, 3, 2, 1, 0)
    assert json.loads(to_json(Result("sqs", verdict, rolled_back=7, in_flight_at_kill=6, seconds=1.234))) == {
        "committed": 5,
        "received_distinct": 4,
        "duplicates": 3,
        "lost": 2,
        "invented": 1,
        "order_violations": 0,
        "target": "sqs",
        "rolled_back": 7,
        "in_flight_at_kill": 6,
        "seconds": 1.23,
    }
