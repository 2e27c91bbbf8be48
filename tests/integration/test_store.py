"""The statements on a real database: who may claim what, and what a settle leaves behind."""

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import ConfigurationError, DatabaseRefused, OutboxEvent, SchemaError
from outbox.store import Dead, Failed, Left, ReadyEvent, Settlement, Store

STORE = Store()


@pytest.fixture
def connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    with engine.connect() as connection:
        STORE.open_outbox(connection, "default", "memory")
        yield connection


def add(engine: sa.Engine, count: int, **fields: Any) -> None:
    with Session(engine) as session:
        session.add_all([OutboxEvent(**{"topic": "t", "type": "T", "payload": n} | fields) for n in range(count)])
        session.commit()


def claim(connection: sa.Connection, limit: int = 64, lease: float = 30.0) -> tuple[uuid.UUID, list[int]]:
    token = uuid.uuid4()
    lanes = STORE.claim(connection, "default", limit=limit, lease=lease, token=token, by="test")
    return token, sorted(lanes)


def read(connection: sa.Connection, token: uuid.UUID, lanes: list[int], each: int = 1000) -> list[ReadyEvent]:
    return STORE.read(connection, "default", lanes=lanes, token=token, each=each)


def settle(
    connection: sa.Connection,
    settlement: Settlement,
    token: uuid.UUID,
    lanes: list[int],
    *,
    seen: int = 0,
    floor: int = 0,
    lease: float | None = None,
) -> set[int]:
    held = STORE.settle(
        connection,
        "default",
        settlement,
        lanes=dict.fromkeys(lanes, seen),
        floors=dict.fromkeys(lanes, floor),
        token=token,
        lease=lease,
        unblock=2,
        probe_after=0.0,
        by="test",
    )
    return set(lanes) - held.keys()


def take(connection: sa.Connection) -> tuple[list[ReadyEvent], uuid.UUID, list[int]]:
    token, lanes = claim(connection)
    return read(connection, token, lanes), token, lanes


def test_workers_claim_disjoint_rows(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 2000)
    seen: list[list[int]] = []
    start = threading.Barrier(8)

    def work() -> None:
        with engine.connect() as mine:
            start.wait()
            rows = []
            while True:
                token, lanes = claim(mine, limit=3)
                if not lanes:
                    break
                rows += [event.id for event in read(mine, token, lanes)]
            seen.append(rows)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [one for rows in seen for one in rows]
    assert sorted(ids) == sorted(set(ids)), "two workers read the same row"
    assert len(ids) == 2000
    assert sum(bool(rows) for rows in seen) > 1, "one worker took everything: nothing was shown"


def test_unkeyed_events_spread_over_all_lanes_and_a_key_has_one(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 2000)
    add(engine, 100, key="one")
    rows = connection.execute(sa.text("SELECT key, count(DISTINCT lane) FROM outbox_event GROUP BY key")).all()
    connection.rollback()
    assert dict(tuple(row) for row in rows) == {None: 64, "one": 1}


def test_events_are_read_in_the_order_of_their_ids(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 50, key="k")
    events, _, _ = take(connection)
    assert [event.payload for event in events] == [b"%d" % n for n in range(50)]


def test_only_who_holds_the_token_reads(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 10)
    _, lanes = claim(connection)
    assert read(connection, uuid.uuid4(), lanes) == []


def test_confirmed_events_are_gone_and_the_lanes_free(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 10)
    events, token, lanes = take(connection)
    assert settle(connection, Settlement(confirmed=events), token, lanes) == set()
    assert STORE.left(connection, ["default"]) == Left(0, 0, 0, 0)
    add(engine, 1, key="k")
    assert len(claim(connection)[1]) == 1


def test_a_kept_lane_stays_claimed(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 10, key="k")
    events, token, lanes = take(connection)
    settle(connection, Settlement(confirmed=events[:5]), token, lanes, lease=30)
    assert claim(connection)[1] == []
    assert [event.id for event in read(connection, token, lanes)] == [event.id for event in events[5:]]


def test_a_lease_that_ran_out_lets_others_in_and_fences_the_old_owner(
    engine: sa.Engine, connection: sa.Connection
) -> None:
    add(engine, 4, key="k")
    token, lanes = claim(connection, lease=0.0)
    late = read(connection, token, lanes)
    events, new_token, new_lanes = take(connection)
    assert [event.id for event in events] == [event.id for event in late]

    settlement = Settlement(
        confirmed=late[:1], failed=[Failed(late[1], 60, "x")], dead=[Dead(late[2], "rejected", "x", 1)], paused=late[3:]
    )
    assert settle(connection, settlement, token, lanes) == set(lanes)
    # What was confirmed is gone in any case; the rest is the new owner's.
    assert [event.id for event in read(connection, new_token, new_lanes)] == [event.id for event in late[1:]]


def test_a_failed_event_waits_and_blocks_its_key_alone(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 3, key="k")
    add(engine, 1, key="other")
    events, token, lanes = take(connection)
    settle(connection, Settlement(failed=[Failed(events[0], 3600, "no\0 way \ud800")]), token, lanes)

    events, token, lanes = take(connection)
    assert [(event.key, event.blocked) for event in events] == [("k", True), ("k", True), ("other", False)]
    settle(connection, Settlement(blocked=events[:2]), token, lanes)
    assert [event.key for event in take(connection)[0]] == ["other"]
    row = connection.execute(sa.text("SELECT attempts, held, last_error FROM outbox_event WHERE id = 1")).one()
    connection.rollback()
    assert tuple(row) == (1, "failed", "no\\0 way \\ud800")


def test_what_a_failed_event_blocked_comes_back_in_order_when_it_leaves(
    engine: sa.Engine, connection: sa.Connection
) -> None:
    add(engine, 6, key="k")
    events, token, lanes = take(connection)
    settle(connection, Settlement(failed=[Failed(events[0], 0, "x")], blocked=events[1:5]), token, lanes)
    assert STORE.promote(connection, "default", 10) == 1

    events, token, lanes = take(connection)
    assert [(event.id, event.held, event.blocked) for event in events] == [(1, "failed", False), (6, None, True)]
    settle(connection, Settlement(confirmed=events[:1], blocked=events[1:]), token, lanes)
    order = []
    while (found := take(connection))[0]:
        events, token, lanes = found
        assert not events[0].blocked
        sent = [event for event in events if not event.blocked]
        order += [event.id for event in sent]
        settle(connection, Settlement(confirmed=sent, blocked=[e for e in events if e.blocked]), token, lanes)
    assert order == [2, 3, 4, 5, 6]


def test_an_event_is_not_parked_for_a_reason_that_left_in_the_same_settle(
    engine: sa.Engine, connection: sa.Connection
) -> None:
    add(engine, 2, key="k")
    events, token, lanes = take(connection)
    settle(connection, Settlement(failed=[Failed(events[0], 0, "x")]), token, lanes)
    STORE.promote(connection, "default", 10)
    events, token, lanes = take(connection)
    assert events[1].blocked
    settle(connection, Settlement(confirmed=events[:1], blocked=events[1:]), token, lanes)
    assert STORE.left(connection, ["default"]) == Left(ready=1, scheduled=0, waiting=0, parked=0)


def test_a_dead_letter_is_the_whole_event_with_the_reason(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 1, key="k", headers={"a": 1, "b": "x"}, idempotency_key="mine")
    events, token, lanes = take(connection)
    settle(connection, Settlement(dead=[Dead(events[0], "rejected", "too large", 1)]), token, lanes)
    assert STORE.left(connection, ["default"]) == Left(0, 0, 0, 0)
    row = connection.execute(sa.text("SELECT * FROM outbox_dead_letter")).mappings().one()
    connection.rollback()
    kept = {
        name: row[name] for name in ("id", "idempotency_key", "outbox", "key", "topic", "type", "headers", "attempts")
    }
    assert kept == {
        "id": 1,
        "idempotency_key": "mine",
        "outbox": "default",
        "key": "k",
        "topic": "t",
        "type": "T",
        "headers": {"a": 1, "b": "x"},
        "attempts": 1,
    }
    assert (bytes(row["payload"]), row["reason"], row["error"]) == (b"0", "rejected", "too large")
    assert row["created_at"] <= row["failed_at"]


def test_settling_twice_is_harmless(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 4)
    events, token, lanes = take(connection)
    settlement = Settlement(confirmed=events[:1], dead=[Dead(events[1], "rejected", "x", 1)])
    settle(connection, settlement, token, lanes)
    assert settle(connection, settlement, token, lanes) == set(lanes)  # a lost answer: the lanes are free already
    assert STORE.left(connection, ["default"]).ready == 2


def test_renewal_counts_the_lanes_of_each_token(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 500)
    mine, lanes = claim(connection, limit=5)
    other, _ = claim(connection, limit=3)
    assert STORE.renew(connection, [mine, other, uuid.uuid4()], 30) == {mine: 5, other: 3}

    with engine.connect() as locking, locking.begin():
        locking.execute(sa.text("SELECT FROM outbox_lane WHERE lane = :lane FOR UPDATE"), {"lane": lanes[0]})
        assert STORE.renew(connection, [mine], 30) == {mine: 4}  # waits for nobody


def test_scheduled_events_come_when_they_are_due(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 1, delay=3600, key="k")
    add(engine, 1, key="k")
    events, token, lanes = take(connection)
    assert [event.id for event in events] == [2], "a scheduled event is sent early or blocks its key"
    settle(connection, Settlement(confirmed=events), token, lanes)
    ready, due_in = STORE.look(connection, "default")
    assert not ready
    assert due_in == pytest.approx(3600, abs=60)

    with engine.begin() as other:
        other.execute(sa.text("UPDATE outbox_event SET available_at = now() - interval '1 second'"))
    assert STORE.promote(connection, "default", 10) == 1
    assert STORE.look(connection, "default") == (True, None)
    assert [event.id for event in take(connection)[0]] == [1]


def test_a_paused_destination(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 3)
    events, token, lanes = take(connection)
    settle(connection, Settlement(paused=events, pauses={"q": "gone\0"}), token, lanes)
    assert STORE.left(connection, ["default"]).parked == 3
    assert STORE.pauses(connection, "default") == {"q": True}
    assert STORE.paused_topics(connection, "default") == ["t"]
    probe: dict[str, float] = {"shortest": 60, "longest": 300, "jitter": 1.0}
    assert STORE.claim_probe(connection, "default", "q", **probe)
    assert not STORE.claim_probe(connection, "default", "q", **probe), "two relays probe at once"
    assert STORE.pauses(connection, "default") == {"q": False}

    assert STORE.return_paused(connection, "default", "t", 1) == 1
    events, token, lanes = take(connection)
    assert [(event.id, event.held) for event in events] == [(1, "paused")]
    settle(connection, Settlement(confirmed=events, resumes={"q"}), token, lanes)
    assert STORE.pauses(connection, "default") == {}
    assert STORE.return_paused(connection, "default", "t", 10) == 2


def test_what_an_operator_paused_only_an_operator_resumes(engine: sa.Engine, connection: sa.Connection) -> None:
    columns = "outbox, destination, reason, next_probe, by"
    with engine.begin() as other:
        other.execute(sa.text(f"INSERT INTO outbox_pause ({columns}) VALUES ('default', 'q', 'x', 'infinity', 'me')"))
    add(engine, 1)
    events, token, lanes = take(connection)
    settle(connection, Settlement(confirmed=events, pauses={"q": "other"}, resumes={"q"}), token, lanes)
    row = connection.execute(sa.text("SELECT reason, by FROM outbox_pause")).one()
    connection.rollback()
    assert tuple(row) == ("x", "me")


def test_topics_of_parked_events_are_listed_once_each(engine: sa.Engine, connection: sa.Connection) -> None:
    for topic in ("b", "a", "c", "a"):
        add(engine, 2, topic=topic)
    events, token, lanes = take(connection)
    settle(connection, Settlement(paused=events), token, lanes)
    assert STORE.paused_topics(connection, "default") == ["a", "b", "c"]


def test_blocked_events_that_nothing_blocks_are_found(engine: sa.Engine, connection: sa.Connection) -> None:
    for key in ("a", "b", "c"):
        add(engine, 3, key=key)
    events, token, lanes = take(connection)
    first = {key: [event for event in events if event.key == key] for key in "abc"}
    settlement = Settlement(
        failed=[Failed(first[key][0], 3600, "x") for key in "abc"],
        blocked=[event for key in "abc" for event in first[key][1:]],
    )
    settle(connection, settlement, token, lanes)
    assert STORE.return_forgotten(connection, "default", 10) == 0
    with engine.begin() as other:
        other.execute(sa.text("DELETE FROM outbox_event WHERE id = :id"), {"id": first["b"][0].id})
    assert STORE.return_forgotten(connection, "default", 10) == 2
    assert [event.id for event in take(connection)[0]] == [event.id for event in first["b"][1:]]


def test_the_floor_hides_what_is_below_and_only_rises(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 3, key="k")
    events, token, lanes = take(connection)
    settle(connection, Settlement(confirmed=events[:2]), token, lanes, floor=2, lease=30)
    settle(connection, Settlement(), token, lanes, floor=1)
    floor = connection.execute(sa.text("SELECT max(floor) FROM outbox_lane")).scalar_one()
    connection.rollback()
    assert floor == 2
    assert [event.id for event in take(connection)[0]] == [3]
    assert STORE.mend_floors(connection, "default") == 0


def test_a_floor_that_was_lowered_meanwhile_is_not_raised_again(engine: sa.Engine, connection: sa.Connection) -> None:
    """Whoever reads above a floor that is too high can't prove that nothing is below it."""
    add(engine, 1, key="k")
    events, token, lanes = take(connection)
    STORE.mend_floors(connection, "default")
    settle(connection, Settlement(confirmed=events), token, lanes, seen=100, floor=120)
    floor = connection.execute(sa.text("SELECT max(floor) FROM outbox_lane")).scalar_one()
    connection.rollback()
    assert floor == 0


def test_an_id_that_is_given_out_again_is_another_event(engine: sa.Engine, connection: sa.Connection) -> None:
    """A database that crashes can take back commits, and their ids with them."""
    add(engine, 2)
    events, token, lanes = take(connection)
    with engine.begin() as other:
        other.execute(sa.text("TRUNCATE outbox_event RESTART IDENTITY"))
    add(engine, 2)
    settle(connection, Settlement(confirmed=events[:1], dead=[Dead(events[1], "rejected", "x", 1)]), token, lanes)
    assert STORE.left(connection, ["default"]).ready == 2


def test_a_floor_that_hides_an_event_is_mended(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 1, key="k")
    with engine.begin() as other:
        other.execute(sa.text("UPDATE outbox_lane SET floor = 1000"))
    assert claim(connection)[1] == []
    assert STORE.mend_floors(connection, "default") == 1
    assert len(claim(connection)[1]) == 1


def test_opening_lowers_floors_beyond_the_sequence(engine: sa.Engine, connection: sa.Connection) -> None:
    with engine.begin() as other:
        other.execute(sa.text("UPDATE outbox_lane SET floor = 1000"))
    STORE.open_outbox(connection, "default", "memory")
    add(engine, 1)
    assert len(claim(connection)[1]) == 1


def test_writers_are_those_who_may_have_drawn_an_id(engine: sa.Engine, connection: sa.Connection) -> None:
    assert STORE.last_id(connection) == 0
    assert STORE.writers(connection) == set()
    with Session(engine) as session:
        session.add(OutboxEvent(topic="t", type="T"))
        session.flush()
        assert STORE.last_id(connection) == 1
        assert len(STORE.writers(connection)) == 1
        session.rollback()
    assert STORE.writers(connection) == set()


@pytest.mark.parametrize(
    "change",
    [
        "ALTER SEQUENCE outbox_event_id_seq CACHE 20",
        "ALTER SEQUENCE outbox_event_id_seq CYCLE",
        "ALTER SEQUENCE outbox_event_id_seq MINVALUE -100 INCREMENT BY -1",
        "ALTER TABLE outbox_event ALTER id SET GENERATED BY DEFAULT",
        "ALTER TABLE outbox_event ALTER id DROP IDENTITY",
    ],
)
def test_ids_that_do_not_come_in_order_are_refused(engine: sa.Engine, change: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(change))
    with engine.connect() as connection, pytest.raises(SchemaError, match="GENERATED ALWAYS AS IDENTITY"):
        STORE.open_outbox(connection, "default", "memory")


def test_a_role_that_can_not_read_the_sequence_is_told(engine: sa.Engine) -> None:
    role = f"outbox_test_{uuid.uuid4().hex[:12]}"
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE ROLE {role}"))
        connection.execute(sa.text(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"))
    try:
        with engine.connect() as connection:
            connection.execute(sa.text(f"SET ROLE {role}"))
            connection.commit()
            with pytest.raises(DatabaseRefused, match="GRANT SELECT ON SEQUENCE outbox_event_id_seq"):
                STORE.open_outbox(connection, "default", "memory")
            connection.invalidate()
    finally:
        with engine.begin() as connection:
            connection.execute(sa.text(f"DROP OWNED BY {role}"))
            connection.execute(sa.text(f"DROP ROLE {role}"))


def test_an_outbox_belongs_to_one_target(connection: sa.Connection) -> None:
    with pytest.raises(ConfigurationError, match=r"drained to target 'memory'.*--take-over"):
        STORE.open_outbox(connection, "default", "sqs")
    STORE.open_outbox(connection, "default", "sqs", take_over=True)
    STORE.open_outbox(connection, "default", "sqs")
    STORE.open_outbox(connection, "other", "memory")


def test_outboxes_do_not_see_each_other(engine: sa.Engine, connection: sa.Connection) -> None:
    STORE.open_outbox(connection, "billing", "memory")
    add(engine, 3, outbox="billing")
    assert claim(connection)[1] == []
    assert STORE.look(connection, "billing")[0]


def test_a_locked_lane_holds_nobody_up(engine: sa.Engine, connection: sa.Connection) -> None:
    add(engine, 1000)
    with engine.connect() as locking, locking.begin():
        locking.execute(sa.text("SELECT FROM outbox_lane WHERE lane < 60 FOR UPDATE"))
        connection.execute(sa.text("SET statement_timeout = '5s'"))
        connection.commit()
        assert claim(connection)[1] == [60, 61, 62, 63]
