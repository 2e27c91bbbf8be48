"""Waking within milliseconds, missing nothing, and leaving producers alone while nobody sleeps."""

import random
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import OutboxEvent
from outbox.database import make_engine, parse_url
from outbox.naming import Naming
from outbox.store import Signal
from relays.publishers import Outcome
from relays.publishers.memory import MemoryPublisher
from relays.wakeup import Ears
from tests.support.relay import add_events, eventually, relay, running


class Timed(MemoryPublisher):
    """Notes when each event arrived."""

    def __init__(self) -> None:
        super().__init__(fail=self._note)
        self.arrived: dict[str, float] = {}

    def _note(self, message) -> Outcome | None:  # type: ignore[no-untyped-def]
        self.arrived.setdefault(message.idempotency_key, time.monotonic())
        return None


@pytest.mark.parametrize("relays", [1, 3])
@pytest.mark.parametrize(("events", "gap", "hold"), [(60, 0.03, 0.0), (400, 0.001, 0.0), (20, 0.02, 0.05)])
def test_no_relay_sleeps_past_an_event(
    engine: sa.Engine, outbox_url: str, relays: int, events: int, gap: float, hold: float
) -> None:
    publisher, committed = Timed(), {}
    rng = random.Random(relays * events)
    with ExitStack() as stack:
        for _ in range(relays):
            stack.enter_context(
                running(relay(outbox_url, publisher, poll=30.0))
            )  # a missed wake-up would take this long
        asleep(engine, relays)
        with Session(engine) as session:
            for n in range(events):
                event = OutboxEvent(topic="t", type="T", payload=n)
                session.add(event)
                session.flush()
                time.sleep(hold)
                session.commit()
                committed[event.idempotency_key] = time.monotonic()
                time.sleep(rng.expovariate(1 / gap))
        eventually(lambda: len(publisher.arrived) == events, timeout=10)
    delays = [publisher.arrived[key] - at for key, at in committed.items()]
    assert max(delays) < 3.0
    assert statistics.median(delays) < 0.1


def test_beside_a_transaction_that_stays_open(engine: sa.Engine, outbox_url: str) -> None:
    """A producer in flight keeps the sleeper from its lock; queueing for it makes the others notify all the same."""
    publisher = Timed()
    with running(relay(outbox_url, publisher, poll=30.0)):
        asleep(engine, 1)
        with Session(engine) as long, Session(engine) as session:
            long.add(OutboxEvent(topic="t", type="T", payload="late"))
            long.flush()
            for n in range(20):
                event = OutboxEvent(topic="t", type="T", payload=n)
                session.add(event)
                session.commit()
                eventually(lambda event=event: event.idempotency_key in publisher.arrived, timeout=10)
            long.commit()
            eventually(lambda: len(publisher.arrived) == 21, timeout=10)


def test_a_notification_that_comes_with_an_answer_is_heard(engine: sa.Engine, outbox_url: str) -> None:
    """psycopg takes it off the socket together with the answer: waiting for the socket alone would miss it."""
    ears = Ears(make_engine(parse_url(outbox_url), "outbox-relay test"), Naming())
    alarm, _ = socket.socketpair()
    try:
        ears.signal.notify(ears.listening)  # its own notification comes with the answer to this statement
        started = time.monotonic()
        ears.wait(10.0, alarm)
        assert time.monotonic() - started < 5.0
    finally:
        ears.close()


def test_producers_notify_only_while_somebody_sleeps(engine: sa.Engine, listener: psycopg.Connection) -> None:
    add_events(engine, 1)
    assert heard(listener, timeout=0.3) == 0
    with engine.connect() as sleeping:
        signal = Signal.find(sleeping, Naming())
        assert signal.try_lock(sleeping)
        add_events(engine, 1)
        assert heard(listener, timeout=10) == 1
        signal.unlock(sleeping)
        add_events(engine, 1)
        assert heard(listener, timeout=0.3) == 0


def test_the_trigger_fires_for_every_writer(engine: sa.Engine, listener: psycopg.Connection) -> None:
    """ENABLE ALWAYS: logical replication applies rows as a replica."""
    with engine.connect() as sleeping:
        signal = Signal.find(sleeping, Naming())
        assert signal.try_lock(sleeping)
        with engine.begin() as connection:
            connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
            connection.execute(sa.text("INSERT INTO outbox_event (topic, type, payload) VALUES ('t', 'T', '')"))
        assert heard(listener, timeout=10) == 1


def test_without_the_trigger_the_relay_polls_and_says_so(
    engine: sa.Engine, outbox_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TRIGGER outbox_wake_up ON outbox_event"))
    publisher = Timed()
    with running(relay(outbox_url, publisher, poll=0.5)):
        for n in range(3):
            add_events(engine, 1)
            eventually(lambda n=n: len(publisher.arrived) == n + 1, timeout=10)
    said = [record.message for record in caplog.records if "trigger is not there" in record.message]
    assert len(said) == 1


def test_a_listening_connection_that_is_cut_is_made_again(engine: sa.Engine, outbox_url: str) -> None:
    publisher = Timed()
    with running(relay(outbox_url, publisher, poll=30.0)):
        for n in range(3):
            asleep(engine, 1)
            with engine.begin() as connection:
                connection.execute(
                    sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
                )
            add_events(engine, 1)
            eventually(lambda n=n: len(publisher.arrived) == n + 1, timeout=10)


def test_an_idle_relay_is_quiet(engine: sa.Engine, outbox_url: str) -> None:
    statements = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    with running(relay(outbox_url, MemoryPublisher())), engine.connect() as connection:
        asleep(engine, 1)

        def transactions() -> int:
            connection.execute(sa.text("SELECT pg_stat_clear_snapshot()"))
            count: int = connection.execute(sa.text(statements)).scalar_one()
            connection.commit()
            return count

        before, started = transactions(), time.monotonic()
        threading.Event().wait(6)
        rate = (transactions() - before) / (time.monotonic() - started)
    assert rate < 12, f"{rate:.1f} transactions a second while there is nothing to do"


@pytest.fixture
def listener(engine: sa.Engine, outbox_url: str) -> Iterator[psycopg.Connection]:
    with engine.connect() as connection:
        channel = Signal.find(connection, Naming()).channel
    with psycopg.connect(outbox_url.replace("+psycopg", ""), autocommit=True) as listening:
        listening.execute(f"LISTEN {channel}")
        yield listening


def heard(listener: psycopg.Connection, timeout: float) -> int:
    return len(list(listener.notifies(timeout=timeout, stop_after=1)))


def asleep(engine: sa.Engine, relays: int) -> None:
    """Wait until that many relays hold or queue for the sleepers' lock."""
    query = """
        SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
    with engine.connect() as connection:

        def sleeping() -> bool:
            found: int = connection.execute(sa.text(query)).scalar_one()
            connection.rollback()
            return found >= relays

        eventually(sleeping)
