"""The whole relay on a real database, with a publisher that only remembers."""

import datetime as dt
import json
import threading
import time
from collections import defaultdict
from collections.abc import Sequence

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import OutboxEvent, SchemaError, Unavailable
from outbox.store import Left, Store
from relays.publishers import Deadline, Deferred, Interrupted, Message, Outcome, Paused, Rejected, Retry
from relays.publishers.memory import MemoryPublisher
from tests.support.relay import add_events, drain, eventually, relay, running


def payloads(publisher: MemoryPublisher) -> list[int]:
    return [json.loads(message.payload) for message in publisher.published]


def rows(engine: sa.Engine, query: str) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(query))]


def test_a_drain_publishes_everything_once_and_empties_the_table(engine: sa.Engine, outbox_url: str) -> None:
    add_events(engine, 3000)
    publisher = MemoryPublisher()
    summary = drain(outbox_url, publisher)
    assert sorted(payloads(publisher)) == list(range(3000))
    assert (summary.published, summary.left) == (3000, Left(0, 0, 0, 0))
    assert rows(engine, "SELECT count(*) FROM outbox_event") == [(0,)]


def test_what_is_rolled_back_is_not_published(engine: sa.Engine, outbox_url: str) -> None:
    with Session(engine) as session:
        session.add(OutboxEvent(topic="t", type="T", payload="rolled back"))
        session.flush()
        session.rollback()
        session.add(OutboxEvent(topic="t", type="T", payload="kept"))
        savepoint = session.begin_nested()
        session.add(OutboxEvent(topic="t", type="T", payload="rolled back to the savepoint"))
        session.flush()
        savepoint.rollback()
        session.commit()
    publisher = MemoryPublisher()
    drain(outbox_url, publisher)
    assert [message.payload for message in publisher.published] == [b'"kept"']


def test_order_per_key_with_random_failures_and_two_relays(engine: sa.Engine, outbox_url: str) -> None:
    with Session(engine) as session:
        for n in range(2000):
            session.add(OutboxEvent(topic="t", type="T", payload=n, key=f"k{n % 20}"))
        session.commit()
    tries: dict[str, int] = defaultdict(int)

    def fail(message: Message) -> Outcome | None:
        tries[message.idempotency_key] += 1
        shaky = hash(message.idempotency_key) % 10 == 0
        return Retry("not now") if shaky and tries[message.idempotency_key] < 3 else None

    publisher = MemoryPublisher(fail=fail)
    with running(relay(outbox_url, publisher, batch_size=50)), running(relay(outbox_url, publisher, batch_size=50)):
        eventually(lambda: len(publisher.published) >= 2000, timeout=60)
    per_key: dict[str | None, list[int]] = defaultdict(list)
    for message in publisher.published:
        per_key[message.key].append(json.loads(message.payload))
    assert len(per_key) == 20
    for sent in per_key.values():
        assert sent == sorted(sent)
        assert len(sent) == 100
    assert any(count > 1 for count in tries.values())


def test_a_failing_event_holds_up_its_own_key_only(engine: sa.Engine, outbox_url: str) -> None:
    add_events(engine, 50, key="stuck")
    add_events(engine, 50, key="fine")
    add_events(engine, 50)
    publisher = MemoryPublisher(fail=lambda message: Retry("never") if message.key == "stuck" else None)
    summary = drain(outbox_url, publisher, backoff_min=3600, backoff_max=3600)
    assert summary.published == 100
    assert {message.key for message in publisher.published} == {"fine", None}
    assert summary.left == Left(ready=0, scheduled=0, waiting=1, parked=49)


def test_after_the_last_attempt_an_event_becomes_a_dead_letter_and_its_key_goes_on(
    engine: sa.Engine, outbox_url: str
) -> None:
    add_events(engine, 3, key="k")
    publisher = MemoryPublisher(fail=lambda message: Retry("no use") if message.payload == b"0" else None)
    with running(relay(outbox_url, publisher, max_attempts=3)):
        eventually(lambda: len(publisher.published) == 2)
    assert payloads(publisher) == [1, 2]
    assert rows(engine, "SELECT payload, attempts, reason, error FROM outbox_dead_letter") == [
        (b"0", 3, "exhausted", "no use")
    ]


def test_a_rejected_event_becomes_a_dead_letter_at_once(engine: sa.Engine, outbox_url: str) -> None:
    add_events(engine, 3, key="k")
    publisher = MemoryPublisher(fail=lambda message: Rejected("too large") if message.payload == b"1" else None)
    summary = drain(outbox_url, publisher)
    assert (payloads(publisher), summary.dead) == ([0, 2], 1)
    assert rows(engine, "SELECT attempts, reason, error FROM outbox_dead_letter") == [(1, "rejected", "too large")]


def test_an_outage_of_the_broker_charges_nobody_and_ends_by_itself(engine: sa.Engine, outbox_url: str) -> None:
    publisher = MemoryPublisher()
    with running(relay(outbox_url, publisher)):
        add_events(engine, 1)
        eventually(lambda: len(publisher.published) == 1)
        publisher.outage = "gone"
        add_events(engine, 20, key="k")
        eventually(lambda: rows(engine, "SELECT count(*) FROM outbox_lane WHERE leased_until > now()") == [(0,)])
        assert rows(engine, "SELECT count(*) FROM outbox_event WHERE attempts > 0 OR held IS NOT NULL") == [(0,)]
        publisher.outage = None
        eventually(lambda: len(publisher.published) == 21)
    assert payloads(publisher)[1:] == list(range(20))


def test_what_was_confirmed_before_the_outage_is_not_sent_again(engine: sa.Engine, outbox_url: str) -> None:
    class Shaky(MemoryPublisher):
        broken = False

        def publish(self, messages: Sequence[Message], deadline: Deadline) -> Sequence[Outcome]:
            if self.broken:
                return super().publish(messages, deadline)
            self.broken = True
            outcomes = super().publish(messages[:3], deadline)
            raise Interrupted("gone in the middle", [*outcomes, *[Deferred()] * (len(messages) - 3)])

    add_events(engine, 10, key="k")
    publisher = Shaky()
    with running(relay(outbox_url, publisher)):
        eventually(lambda: len(publisher.published) >= 10)
    assert payloads(publisher) == list(range(10))


def test_a_publisher_that_raises_costs_no_event(engine: sa.Engine, outbox_url: str) -> None:
    class Buggy(MemoryPublisher):
        calls = 0

        def publish(self, messages: Sequence[Message], deadline: Deadline) -> Sequence[Outcome]:
            self.calls += 1
            if self.calls == 1:
                raise ZeroDivisionError("a bug")
            return super().publish(messages, deadline)

    add_events(engine, 10)
    publisher = Buggy()
    with running(relay(outbox_url, publisher)):
        eventually(lambda: len(publisher.published) == 10)
    assert rows(engine, "SELECT count(*) FROM outbox_event") == [(0,)]
    assert rows(engine, "SELECT count(*) FROM outbox_dead_letter") == [(0,)]


def test_a_destination_that_fails_pauses_alone_and_goes_on_when_it_is_back(engine: sa.Engine, outbox_url: str) -> None:
    missing = threading.Event()
    missing.set()
    publisher = MemoryPublisher(
        fail=lambda message: Paused("no such queue") if message.topic == "bad" and missing.is_set() else None
    )
    with running(relay(outbox_url, publisher)):
        add_events(engine, 20, topic="bad", key="k")
        add_events(engine, 20, topic="good", key="k2")
        eventually(lambda: len(publisher.published) == 20)
        eventually(lambda: rows(engine, "SELECT destination, reason FROM outbox_pause") == [("bad", "no such queue")])
        add_events(engine, 5, topic="bad", key="k")
        assert rows(engine, "SELECT sum(attempts) FROM outbox_event") == [(0,)]
        missing.clear()
        eventually(lambda: len(publisher.published) == 45)
        eventually(lambda: rows(engine, "SELECT count(*) FROM outbox_pause") == [(0,)])
    assert [json.loads(m.payload) for m in publisher.published if m.topic == "bad"] == [*range(20), *range(5)]


def test_what_follows_an_event_for_a_paused_destination_in_its_key_waits(engine: sa.Engine, outbox_url: str) -> None:
    """Also when both are read at once, before the first one is recorded as held."""
    missing = threading.Event()
    missing.set()
    publisher = MemoryPublisher(
        fail=lambda message: Paused("no such queue") if message.topic == "bad" and missing.is_set() else None
    )
    with running(relay(outbox_url, publisher)):
        add_events(engine, 1, topic="bad")
        eventually(lambda: rows(engine, "SELECT destination FROM outbox_pause") == [("bad",)])
        with Session(engine) as session:
            for n in range(20):
                session.add(OutboxEvent(topic="good" if n % 2 else "bad", type="T", payload=n, key="k"))
            session.commit()
        eventually(lambda: rows(engine, "SELECT count(*) FROM outbox_event WHERE held IS NULL") == [(0,)])
        missing.clear()
        eventually(lambda: len(publisher.published) == 21)
    assert [json.loads(message.payload) for message in publisher.published if message.key] == list(range(20))


def test_what_the_database_refuses_to_record_does_not_stop_the_rest(engine: sa.Engine, outbox_url: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE outbox_dead_letter ADD CHECK (reason <> 'rejected')"))
    add_events(engine, 20)
    publisher = MemoryPublisher(fail=lambda message: Rejected("no") if message.payload == b"7" else None)
    with running(relay(outbox_url, publisher)):
        eventually(lambda: rows(engine, "SELECT payload FROM outbox_event") == [(b"7",)])
    assert sorted(payloads(publisher)) == [n for n in range(20) if n != 7]


def test_a_stop_is_obeyed_while_the_start_is_held_up(engine: sa.Engine, outbox_url: str) -> None:
    with engine.connect() as locking:
        locking.execute(sa.text("LOCK TABLE outbox_event IN ACCESS EXCLUSIVE MODE"))
        started = time.monotonic()
        with running(relay(outbox_url, MemoryPublisher(), grace=1.0)):
            pass
        assert time.monotonic() - started < 2.5


def test_rows_that_somebody_keeps_locked_are_not_asked_for_all_the_time(engine: sa.Engine, outbox_url: str) -> None:
    publisher = MemoryPublisher()
    with running(relay(outbox_url, publisher, poll=1.0)):
        add_events(engine, 1)
        eventually(lambda: len(publisher.published) == 1)
        with engine.connect() as locking:
            locking.execute(sa.text("SELECT FROM outbox_lane FOR UPDATE"))
            add_events(engine, 50)
            threading.Event().wait(1.0)
            counted = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
            before = int(str(rows(engine, counted)[0][0]))
            threading.Event().wait(3.0)
            assert int(str(rows(engine, counted)[0][0])) - before < 150
            assert len(publisher.published) == 1
        eventually(lambda: len(publisher.published) == 51)


def test_a_drain_leaves_what_waits_and_says_so(engine: sa.Engine, outbox_url: str) -> None:
    add_events(engine, 2, key="k")
    add_events(engine, 1, delay=3600)
    add_events(engine, 3, topic="bad")
    outcomes: dict[str, Outcome] = {"t": Retry("no"), "bad": Paused("gone")}
    publisher = MemoryPublisher(fail=lambda message: outcomes[message.topic])
    summary = drain(outbox_url, publisher, backoff_min=3600, backoff_max=3600)
    assert summary.left == Left(ready=0, scheduled=1, waiting=1, parked=4)


def test_a_drain_sends_what_an_earlier_one_had_to_leave(engine: sa.Engine, outbox_url: str) -> None:
    """Drains from a schedule are short: nobody else would ever try a destination again."""
    add_events(engine, 30, topic="bad", key="k")
    publisher = MemoryPublisher(fail=lambda message: Paused("no such queue"))
    assert drain(outbox_url, publisher).left == Left(ready=0, scheduled=0, waiting=0, parked=30)
    publisher = MemoryPublisher()
    eventually(lambda: rows(engine, "SELECT next_probe <= clock_timestamp() FROM outbox_pause") == [(True,)])
    assert drain(outbox_url, publisher).left == Left(0, 0, 0, 0)
    assert payloads(publisher) == list(range(30))


def test_a_drain_waits_for_the_lanes_of_a_relay_that_died(engine: sa.Engine, outbox_url: str) -> None:
    add_events(engine, 100)
    leased = "leased_until = clock_timestamp() + interval '1.5 s', lease_token = gen_random_uuid()"
    with engine.connect() as connection:
        Store().open_outbox(connection, "default", "memory")
        with connection.begin():
            connection.execute(sa.text(f"UPDATE outbox_lane SET {leased}"))
    publisher = MemoryPublisher()
    started = time.monotonic()
    assert drain(outbox_url, publisher).published == 100
    assert time.monotonic() - started > 1.0


def test_scheduled_events_go_out_when_due_and_not_before(engine: sa.Engine, outbox_url: str) -> None:
    publisher = MemoryPublisher()
    with running(relay(outbox_url, publisher)):
        due = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1.5)
        add_events(engine, 1, available_at=due, key="k")
        eventually(lambda: len(publisher.published) == 1)
        late = (dt.datetime.now(dt.UTC) - due).total_seconds()
        assert 0 <= late < 1.0


def test_outboxes_are_drained_in_the_order_given(engine: sa.Engine, outbox_url: str) -> None:
    add_events(engine, 100, outbox="later", topic="later")
    add_events(engine, 100, outbox="first", topic="first")
    add_events(engine, 1, outbox="not mine")
    publisher = MemoryPublisher()
    drain(outbox_url, publisher, outboxes=("first", "later"), concurrency=1)
    assert [message.topic for message in publisher.published] == ["first"] * 100 + ["later"] * 100


def test_a_missing_schema_is_said_with_the_command(database_url: str) -> None:
    with pytest.raises(SchemaError, match="run `outbox-relay migrate`"):
        drain(database_url, MemoryPublisher())


def test_a_broker_that_does_not_come_in_time_ends_the_start(outbox_url: str) -> None:
    publisher = MemoryPublisher()
    publisher.outage = "not there"
    with pytest.raises(Unavailable, match="not there"):
        drain(outbox_url, publisher, startup_timeout=0.3)


def test_a_stop_while_waiting_for_the_broker_is_no_failure(outbox_url: str) -> None:
    publisher = MemoryPublisher()
    publisher.outage = "not there"
    with running(relay(outbox_url, publisher, startup_timeout=600)) as one:
        pass
    assert one.stats.published == 0


def test_a_broker_that_comes_late_is_waited_for(engine: sa.Engine, outbox_url: str) -> None:
    publisher = MemoryPublisher()
    publisher.outage = "not yet"
    add_events(engine, 1)
    with running(relay(outbox_url, publisher)):
        threading.Timer(0.5, lambda: setattr(publisher, "outage", None)).start()
        eventually(lambda: len(publisher.published) == 1)


def test_a_stop_settles_what_is_confirmed_and_gives_the_rest_back_at_once(engine: sa.Engine, outbox_url: str) -> None:
    class Slow(MemoryPublisher):
        """Confirms three, then hangs until it is closed."""

        def __init__(self) -> None:
            super().__init__()
            self.hanging, self.closing = threading.Event(), threading.Event()

        def publish(self, messages: Sequence[Message], deadline: Deadline) -> Sequence[Outcome]:
            outcomes = super().publish(messages[:3], deadline)
            self.hanging.set()
            self.closing.wait(60)
            raise Interrupted("closed", [*outcomes, *[Deferred()] * (len(messages) - 3)])

        def close(self, timeout: float) -> None:
            self.closing.set()

    add_events(engine, 10, key="k")
    publisher = Slow()
    started = time.monotonic()
    with running(relay(outbox_url, publisher, grace=2.0)) as one:
        assert publisher.hanging.wait(30)
        started = time.monotonic()
        one.stop()
    assert time.monotonic() - started < 2.5
    assert rows(engine, "SELECT count(*), sum(attempts) FROM outbox_event") == [(7, 0)]
    assert rows(engine, "SELECT count(*) FROM outbox_lane WHERE lease_token IS NOT NULL") == [(0,)]


def test_a_stop_lets_a_batch_finish(engine: sa.Engine, outbox_url: str) -> None:
    class Pausing(MemoryPublisher):
        def __init__(self) -> None:
            super().__init__()
            self.started, self.go_on = threading.Event(), threading.Event()

        def publish(self, messages: Sequence[Message], deadline: Deadline) -> Sequence[Outcome]:
            self.started.set()
            self.go_on.wait(60)
            return super().publish(messages, deadline)

    add_events(engine, 10, key="k")
    publisher = Pausing()
    with running(relay(outbox_url, publisher)) as one:
        assert publisher.started.wait(30)
        one.stop()
        publisher.go_on.set()
    assert len(publisher.published) == 10
    assert rows(engine, "SELECT count(*) FROM outbox_event") == [(0,)]


def test_connections_that_are_cut_are_made_again(engine: sa.Engine, outbox_url: str) -> None:
    publisher = MemoryPublisher()
    cut = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE application_name = 'outbox-relay test' AND datname = current_database()"
    )
    with running(relay(outbox_url, publisher)):
        for n in range(5):
            add_events(engine, 50, key="k")
            eventually(lambda n=n: len(publisher.published) >= 50 * (n + 1))
            assert rows(engine, cut)[0][0]
        add_events(engine, 50, key="k")
        eventually(lambda: rows(engine, "SELECT count(*) FROM outbox_event") == [(0,)])
    assert len({m.idempotency_key for m in publisher.published}) == 300


def test_a_settle_that_meets_an_outage_is_done_when_the_database_is_back(engine: sa.Engine, outbox_url: str) -> None:
    """What is confirmed must not be sent again only because the connection broke before it could be recorded."""

    class CutBeforeSettling(MemoryPublisher):
        cut = False

        def publish(self, messages: Sequence[Message], deadline: Deadline) -> Sequence[Outcome]:
            outcomes = super().publish(messages, deadline)
            if not self.cut:
                self.cut = True
                rows(
                    engine,
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'outbox-relay test' AND datname = current_database()",
                )
            return outcomes

    add_events(engine, 40)
    publisher = CutBeforeSettling()
    with running(relay(outbox_url, publisher)):
        eventually(lambda: rows(engine, "SELECT count(*) FROM outbox_event") == [(0,)])
    assert sorted(payloads(publisher)) == list(range(40))


def test_a_stricter_default_isolation_does_not_matter(engine: sa.Engine, outbox_url: str) -> None:
    database = sa.make_url(outbox_url).database
    with engine.begin() as connection:
        connection.execute(sa.text(f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'"))
    engine.dispose()
    add_events(engine, 1000)
    publisher = MemoryPublisher()
    with running(relay(outbox_url, publisher, batch_size=20)), running(relay(outbox_url, publisher, batch_size=20)):
        eventually(lambda: len(publisher.published) == 1000)


def test_a_hung_batch_loses_its_lanes_and_sends_nothing_more(engine: sa.Engine, outbox_url: str) -> None:
    class Hanging(MemoryPublisher):
        def __init__(self) -> None:
            super().__init__()
            self.expired: list[Outcome] = []

        def publish(self, messages: Sequence[Message], deadline: Deadline) -> Sequence[Outcome]:
            if not self.expired:
                eventually(deadline.expired)  # the keeper renews no batch for ever
                self.expired = list(super().publish(messages, deadline))
                return self.expired
            return super().publish(messages, deadline)

    add_events(engine, 3, key="k")
    publisher = Hanging()
    with running(relay(outbox_url, publisher, lease=0.3)):
        eventually(lambda: len(publisher.published) == 3)
    assert publisher.expired == [Deferred()] * 3


def test_two_events_with_one_idempotency_key_are_two_events(engine: sa.Engine, outbox_url: str) -> None:
    add_events(engine, 2, idempotency_key="same")
    publisher = MemoryPublisher()
    drain(outbox_url, publisher)
    assert sorted(payloads(publisher)) == [0, 1]
