"""One relay process: its threads, its start and its end."""

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa

from outbox import migrations
from outbox.errors import DatabaseUnreachable, Unavailable
from outbox.store import Left, Store
from relays.database import Database
from relays.engine import Config, Stats, Worker
from relays.floor import FloorWatch
from relays.gate import Gate
from relays.lease import LeaseKeeper
from relays.maintenance import Maintenance, PauseBoard
from relays.publishers import Publisher
from relays.retry import Backoff
from relays.wakeup import Drain, Sleeper

__all__ = ["Relay", "Summary"]

logger = logging.getLogger(__name__)

FOR_SETTLING = 0.25
"""The part of the grace period that is kept for settling, after the publisher had to be closed on its workers."""

SHORTEST_OUTAGE_WAIT, LONGEST_OUTAGE_WAIT = 0.5, 30.0
"""Seconds between two tries to reach a server that is away."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a relay did."""

    published: int
    dead: int
    left: Left | None
    """What a drain left behind; None when the relay was stopped."""
    seconds: float
    """From the first claim to the last settle; 0 when there was nothing to do."""


class Relay:
    """Runs `config.concurrency` workers until told to stop or, in a drain, until nothing is left to send.

    Parameters:
        engine: makes connections; about `concurrency` + 4 are used.
        publisher: shared by all workers.
        rng: for the jitter of all waits.
    """

    def __init__(
        self, config: Config, store: Store, publisher: Publisher, engine: sa.Engine, rng: random.Random | None = None
    ) -> None:
        self._config, self._store, self._publisher, self._engine = config, store, publisher, engine
        self._rng = rng or random.Random()  # noqa: S311 (jitter, not a secret)
        self._stop, self._give_up, self._ended = (threading.Event() for _ in range(3))
        self._board = PauseBoard()
        self._crash: BaseException | None = None
        self._running = 0
        self._lock = threading.Lock()
        self.stats = Stats()

    def stop(self) -> None:
        """Stop claiming, finish what is in flight within the grace period, settle, release; also from a signal."""
        self._stop.set()

    def run(self) -> Summary:
        """Block until stopped or drained. Raises the error of outbox.errors that makes a start impossible."""
        if not self._started():
            return self._summary()
        sleeper, keeper, maintenance, workers = self._build()
        helpers = [helper for helper in (sleeper, keeper, maintenance) if helper]
        threads = [self._thread(helper.run) for helper in helpers]
        self._running = len(workers)
        for worker in workers:
            self._thread(partial(self._work, worker))
        self._await_end()
        if sleeper:
            sleeper.close()
        deadline = time.monotonic() + self._config.grace
        self._finish(deadline)
        for helper in helpers:
            helper.close()
        for thread in threads:
            thread.join(_until(deadline))
        self._publisher.close(timeout=_until(deadline))
        if self._crash is not None:
            raise self._crash
        return self._summary()

    def _started(self) -> bool:
        """Start, in a thread, so that a stop is obeyed whatever a server does; False when stopped meanwhile."""
        starting = self._thread(self._start)
        while starting.is_alive() and not self._stop.is_set():
            starting.join(0.1)
        starting.join(self._config.grace if self._stop.is_set() else None)
        if self._crash is not None:
            raise self._crash
        return not self._stop.is_set()

    def _start(self) -> None:
        """Verify everything that can be verified before anything is claimed."""
        deadline = time.monotonic() + self._config.startup_timeout
        self._retry(deadline, self._open_outboxes)
        self._retry(deadline, self._publisher.open)
        logger.info("relaying %s to %s", ", ".join(self._config.outboxes), self._config.target)

    def _retry(self, deadline: float, step: Callable[[], None]) -> None:
        """Do it; retry while the server can't be reached and the start-up timeout lasts."""
        backoff, failures = Backoff(0.2, 3.0, self._rng), 0
        while True:
            try:
                return step()
            except (DatabaseUnreachable, Unavailable) as error:
                failures += 1
                if self._stop.is_set():
                    return None
                if time.monotonic() >= deadline:
                    raise
                if failures == 1:
                    logger.warning("not ready, trying for %.0f s: %s", self._config.startup_timeout, error)
                self._stop.wait(min(backoff.limit(failures), max(0.0, deadline - time.monotonic())))

    def _open_outboxes(self) -> None:
        database = Database(self._engine)
        try:
            with database.connection() as connection:
                with connection.begin():
                    migrations.check_version(connection, self._store.naming)
                for outbox in self._config.outboxes:
                    self._store.open_outbox(connection, outbox, self._config.target, take_over=self._config.take_over)
        finally:
            database.disconnect()

    def _build(self) -> tuple[Sleeper | None, LeaseKeeper, Maintenance, list[Worker]]:
        config, store = self._config, self._store
        sleeper = (
            None if config.drain else Sleeper(store, self._engine, config.outboxes, config.concurrency, config.poll)
        )
        keeper = LeaseKeeper(store, Database(self._engine), config.lease)
        events_backoff = Backoff(config.backoff_min, config.backoff_max, self._rng)
        outage_backoff = Backoff(SHORTEST_OUTAGE_WAIT, LONGEST_OUTAGE_WAIT, self._rng)
        broker_gate = Gate(f"the broker ({config.target})", self._publisher.open, outage_backoff, self._stop)
        database_gate = Gate("the database", self._ping, outage_backoff, self._stop)
        floors = FloorWatch(store, lambda: database_gate.epoch)
        maintenance = Maintenance(
            store,
            Database(self._engine),
            config.outboxes,
            self._board,
            destination=self._publisher.destination,
            backoff=events_backoff,
            floors=floors,
            wake=sleeper.more if sleeper else lambda: None,
        )
        idle = sleeper or Drain(store, config.outboxes, self._stop, maintenance.round)
        workers = [
            Worker(
                f"{socket.gethostname()}:{os.getpid()}/{number}",
                config,
                store,
                Database(self._engine, lambda: database_gate.epoch),
                self._publisher,
                keeper=keeper,
                broker_gate=broker_gate,
                database_gate=database_gate,
                idle=idle,
                pauses=self._board,
                floors=floors,
                stats=self.stats,
                backoff=events_backoff,
                stop=self._stop,
                give_up=self._give_up,
            )
            for number in range(config.concurrency)
        ]
        return sleeper, keeper, maintenance, workers

    def _thread(self, target: Callable[[], None]) -> threading.Thread:
        """Start it; a bug in one thread ends the process, not silently one thread."""

        def guarded() -> None:
            try:
                target()
            except BaseException as error:  # noqa: BLE001 (raised again by `run`)
                self._crash = self._crash or error
                self._stop.set()

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def _ping(self) -> None:
        database = Database(self._engine)
        try:
            database.ping()
        finally:
            database.disconnect()

    def _work(self, worker: Worker) -> None:
        try:
            worker.run()
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._ended.set()

    def _await_end(self) -> None:
        # A bounded wait, so that signal handlers run on platforms where a lock can't be interrupted.
        while not self._stop.is_set() and not self._ended.wait(0.1):
            pass

    def _finish(self, deadline: float) -> None:
        """Let the workers end: first by themselves, then without the broker, at last without the database."""
        reserve = self._config.grace * FOR_SETTLING
        if self._ended.wait(_until(deadline - reserve)):
            return
        logger.warning("still publishing after most of the grace period: leaving the rest to the next relay")
        self._publisher.close(timeout=reserve / 4)
        if not self._ended.wait(_until(deadline - reserve / 4)):
            self._give_up.set()
            self._ended.wait(_until(deadline))

    def _summary(self) -> Summary:
        left = None if self._stop.is_set() else self._count_left()
        stats = self.stats
        seconds = (stats.last_settle or 0.0) - (stats.first_claim or 0.0)
        return Summary(stats.published, stats.dead, left, seconds)

    def _count_left(self) -> Left:
        database = Database(self._engine)
        try:
            with database.connection() as connection:
                return self._store.left(connection, self._config.outboxes)
        finally:
            database.disconnect()


def _until(deadline: float) -> float:
    """Seconds until then; a moment at least, for what ends at once."""
    return max(0.05, deadline - time.monotonic())
