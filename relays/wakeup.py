"""Sleeping when there is nothing to do, and waking within milliseconds of a commit, without taxing the application.

The insert trigger notifies only while somebody sleeps, which a relay shows by holding, or queueing for, an exclusive
advisory lock: then the trigger's shared try-lock fails. The order of the steps is what makes it safe:

1. LISTEN on one connection.
2. Queue for the lock on a second one, without waiting for the grant; see in pg_locks that it is so.
3. Look once more. What committed before step 2 is seen now; what comes later finds the lock taken and notifies.
4. Sleep until a notification, the grant (a producer that was in flight when we queued has ended, or another sleeper
   has woken), the next due event, or the poll interval.

Every wake-up means no more than: look again.
"""

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import psycopg
import sqlalchemy as sa

from outbox.database import translated
from outbox.errors import DatabaseError
from outbox.naming import Naming
from outbox.store import Signal, Store
from relays.database import Database

__all__ = ["Drain", "Sleeper"]

logger = logging.getLogger(__name__)

PATIENCE = 0.02
"""Seconds that a busy worker gets to come back and look, before the idle ones have producers notify."""

FIRST_POLL = 0.05
"""Where polling starts, in seconds, when notifications can't be had; it doubles up to the poll interval."""

QUEUE_TIMEOUT, CANCEL_AGAIN = 5.0, 0.05
"""Seconds to get into the queue for the lock or out of it, and between two tries to get out."""

LISTEN_AGAIN = 60.0
"""Seconds until notifications are tried again after they could not be had."""

PROMOTED_AT_ONCE = 1000


class Drain:
    """`Idle` for a relay that ends when nothing is left to send.

    Parameters:
        maintain: brings back what is due and, if told to, probes paused destinations: a drain may be over before
            anyone else does. It probes once, or a destination that stays away would keep the drain going.
    """

    def __init__(
        self, store: Store, outboxes: Sequence[str], stop: threading.Event, maintain: Callable[[bool], None]
    ) -> None:
        self._store, self._outboxes, self._stop, self._maintain = store, outboxes, stop, maintain
        self._probe = True

    def wait(self, database: Database) -> bool:
        probe, self._probe = self._probe, False
        self._maintain(probe)
        with database.connection() as connection:
            ready = any(self._store.look(connection, outbox, anyones=True)[0] for outbox in self._outboxes)
        # What is ready but not free is in the hands of another worker, or of one that died.
        return ready and not self._stop.wait(FIRST_POLL)

    def claimed(self, *, more: bool) -> None:
        """Nobody sleeps in a drain."""


class Ears:
    """The two connections of a sleeper: one listens, the other queues for the lock."""

    def __init__(self, engine: sa.Engine, naming: Naming) -> None:
        self.listening, self._queueing = (self._connect(engine) for _ in range(2))
        self._raw_listening, self._raw_queueing = self._raw(self.listening), self._raw(self._queueing)
        self._asking = self._granted = False
        self._refusal = ""
        self.signal = Signal.find(self.listening, naming)
        self.signal.listen(self.listening)

    @staticmethod
    def _connect(engine: sa.Engine) -> sa.Connection:
        return engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    @staticmethod
    def _raw(connection: sa.Connection) -> "psycopg.Connection[Any]":
        return cast("psycopg.Connection[Any]", connection.connection.driver_connection)

    def hear_each_other(self, timeout: float) -> bool:
        """Whether a NOTIFY of one connection reaches the other: not so behind a transaction-mode pooler.

        To be asked before the lock is queued for: through such a pooler the lock would stay behind with a connection
        of somebody else's.
        """
        self.signal.notify(self._queueing)
        heard = any(True for _ in self._raw_listening.notifies(timeout=timeout, stop_after=1))
        if heard:
            # This session is ours alone: it may wait for long, whatever the role's defaults are.
            self.signal.wait_without_limit(self._queueing)
        return heard

    def queue(self) -> None:
        """Take the lock, or stand in the queue for it: from when this returns, producers notify."""
        self._granted = self.signal.try_lock(self._queueing)
        if self._granted:
            return
        self._raw_queueing.pgconn.send_query(self.signal.queue_statement)
        self._asking = True
        deadline = time.monotonic() + QUEUE_TIMEOUT
        # Sent is not queued: a producer that commits before the server has come to it would neither notify nor, beside
        # another one that stays open, let the grant come.
        while not self._granted and not self.signal.in_queue(self.listening, self._raw_queueing.info.backend_pid):
            if time.monotonic() > deadline:
                raise psycopg.OperationalError("the statement that waits for the sleepers' lock does not begin")
            select.select([self._raw_queueing.fileno()], [], [], 0.001)
            self._collect()

    def wait(self, timeout: float, alarm: socket.socket) -> None:
        """Return at a notification, at the grant, when `alarm` is readable, or after `timeout` seconds."""
        if self._heard():  # it came with the answer to a statement, and the socket will not tell of it again
            return
        watched: list[int] = [self._raw_listening.fileno(), alarm.fileno()]
        if self._asking:
            watched.append(self._raw_queueing.fileno())
        readable, _, _ = select.select(watched, [], [], max(0.0, timeout))
        if self._raw_listening.fileno() in readable:
            self._heard()
        if self._raw_queueing.fileno() in readable:
            self._collect()

    def _heard(self) -> bool:
        """Whether notifications have come since this was last asked."""
        return bool(list(self._raw_listening.notifies(timeout=0)))

    def _collect(self) -> None:
        """Take what the waiting statement has answered so far; raise what the server refused it for."""
        pgconn = self._raw_queueing.pgconn
        pgconn.consume_input()
        while self._asking and not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                self._asking = False
            elif result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
                self._refusal = result.error_message.decode(errors="replace")
            else:
                self._granted = True
        if not self._asking and not self._granted:
            raise psycopg.OperationalError(self._refusal)

    def leave_queue(self) -> None:
        """Give the lock back, or stop waiting for it. Raises psycopg.OperationalError if that can't be done."""
        deadline = time.monotonic() + QUEUE_TIMEOUT
        while self._asking and time.monotonic() < deadline:
            # A cancellation that arrives before the server has begun with the statement cancels nothing: once more.
            self._raw_queueing.cancel_safe(timeout=QUEUE_TIMEOUT)
            select.select([self._raw_queueing.fileno()], [], [], CANCEL_AGAIN)
            with suppress(psycopg.errors.OperationalError):  # that it was cancelled
                self._collect()
        if self._asking:
            raise psycopg.OperationalError("the statement that waits for the sleepers' lock can't be cancelled")
        # The grant may have come before the cancellation did; this session has no other lock.
        self.signal.unlock(self._queueing)
        self._granted = False

    def close(self) -> None:
        for connection in (self.listening, self._queueing):
            with suppress(sa.exc.SQLAlchemyError, psycopg.Error, OSError):
                connection.invalidate()
                connection.close()


class Sleeper:
    """`Idle` for the workers of one process: sleeps for all of them and wakes one at a time.

    Parameters:
        workers: how many there are: only when all are idle, or the others are long at work, do producers notify.
        poll: the longest sleep in seconds: the safety net under the notifications.
    """

    def __init__(self, store: Store, engine: sa.Engine, outboxes: Sequence[str], workers: int, poll: float) -> None:
        self._store, self._engine, self._outboxes = store, engine, outboxes
        self._workers, self._poll = workers, poll
        self._changed = threading.Condition()
        self._idle = self._calls = 0
        self._closing = False
        self._listen_after, self._said = 0.0, False
        self._fruitless = 0
        self._database = Database(engine)
        self._next_poll = FIRST_POLL
        self._alarm, self._alarm_end = socket.socketpair()

    def wait(self, database: Database) -> bool:  # noqa: ARG002 (a drain uses it)
        """Called by an idle worker: returns when there may be something to send, False when the relay stops."""
        with self._changed:
            self._idle += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._calls or self._closing)
            self._calls = max(0, self._calls - 1)
            self._idle -= 1
            return not self._closing

    def claimed(self, *, more: bool) -> None:
        """Called by a worker that found work; with `more` there is some for another one."""
        self._fruitless = 0
        if more:
            self.more()

    def more(self) -> None:
        """There is work for one more worker, if one is idle."""
        with self._changed:
            if self._idle > self._calls:
                self._calls += 1
                self._changed.notify_all()

    def close(self) -> None:
        """Let every worker go and end `run`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._alarm_end.send(b"!")

    def run(self) -> None:
        """Sleep and wake until closed; runs in a thread of its own."""
        ears: Ears | None = None
        while self._await_idle_workers():
            try:
                with translated():
                    ears = ears or self._listen()
                    if ears:
                        self._sleep(ears)
                    else:
                        self._poll_for_work()
            except DatabaseError as error:
                # The woken worker meets the same outage, waits for its end and says so.
                logger.debug("could not sleep on the database: %s", error)
                if ears:
                    ears.close()
                    ears = None
                self._pause(FIRST_POLL)
            self._wait_if_fruitless()
            self.more()
        if ears:
            ears.close()
        self._database.disconnect()

    def _wait_if_fruitless(self) -> None:
        """Look less often while what is ready can't be claimed: somebody holds the rows of its lanes locked."""
        self._fruitless += 1
        if self._fruitless > self._workers:
            self._pause(min(self._poll, FIRST_POLL * 2.0 ** min(self._fruitless - self._workers, 10)))

    def _await_idle_workers(self) -> bool:
        """Return True when somebody is idle and nobody busy is about to look again; False to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle > self._calls or self._closing)
            self._changed.wait_for(lambda: self._idle == self._workers or self._closing, timeout=PATIENCE)
            return not self._closing

    def _listen(self) -> Ears | None:
        """The connections to sleep on, or None when notifications can't be had: then the relay polls, and says so."""
        if time.monotonic() < self._listen_after:
            return None
        ears = Ears(self._engine, self._store.naming)
        if ears.signal.has_trigger and ears.hear_each_other(timeout=2.0):
            return ears
        ears.close()
        self._listen_after = time.monotonic() + LISTEN_AGAIN
        if self._said:
            return None
        self._said = True
        why = (
            "a pooler in transaction mode is in between"
            if ears.signal.has_trigger
            else "the wake-up trigger is not there"
        )
        logger.warning("no notifications of new events (%s): polling every %.2f to %.0f s", why, FIRST_POLL, self._poll)
        return None

    def _sleep(self, ears: Ears) -> None:
        """Sleep until there may be something to send."""
        until = time.monotonic() + self._poll
        ears.queue()
        try:
            while not self._closing:
                pause = min(until - time.monotonic(), self._look(ears.listening))
                if pause <= 0:
                    break
                ears.wait(pause, self._alarm)
        finally:
            ears.leave_queue()

    def _poll_for_work(self) -> None:
        with self._database.connection() as connection:
            while not self._closing:
                pause = self._look(connection)
                if pause <= 0:
                    self._next_poll = FIRST_POLL
                    break
                self._pause(min(pause, self._next_poll))
                self._next_poll = min(self._poll, self._next_poll * 2)

    def _look(self, connection: sa.Connection) -> float:
        """Seconds until something is due; 0 when something is ready."""
        soonest = self._poll
        for outbox in self._outboxes:
            ready, due_in = self._store.look(connection, outbox)
            if due_in is not None and due_in <= 0:
                ready = self._store.promote(connection, outbox, PROMOTED_AT_ONCE) > 0 or ready
            if ready:
                return 0.0
            if due_in is not None and due_in > 0:
                soonest = min(soonest, due_in)
        return soonest

    def _pause(self, seconds: float) -> None:
        select.select([self._alarm], [], [], seconds)
