"""One worker: claim lanes, read their events, publish them, settle what became of them. A plain sequential loop."""

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from outbox.errors import DatabaseError, DatabaseUnreachable, Unavailable
from outbox.store import Dead, Failed, ReadyEvent, Settlement, Store
from relays.database import Database
from relays.gate import Gate
from relays.lease import Lease, LeaseKeeper, boot_time
from relays.publishers import (
    Confirmed,
    Deferred,
    Interrupted,
    Message,
    Outcome,
    Paused,
    Publisher,
    Rejected,
    Retry,
)
from relays.retry import Backoff

__all__ = ["AbandonedError", "Config", "Floors", "Idle", "Pauses", "Stats", "Worker"]

logger = logging.getLogger(__name__)

LANES_AT_ONCE = 8
"""Enough lanes for parallel keys within a batch, few enough to leave some for others."""

BATCHES_PER_CLAIM = 4
"""How long lanes are kept while they have more: then somebody else may take them."""

RETRY_WHILE_STOPPING = 0.5
"""Seconds between tries to settle while the relay is stopping and the database away."""

UNBLOCK = 100
"""How many blocked events of a key come back at once when what they waited for has left."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a relay needs to know besides its database and its publisher. Times are seconds."""

    target: str
    outboxes: tuple[str, ...] = ("default",)
    batch_size: int = 500
    concurrency: int = 4
    lease: float = 30.0
    poll: float = 5.0
    max_attempts: int = 10
    backoff_min: float = 1.0
    backoff_max: float = 300.0
    grace: float = 20.0
    startup_timeout: float = 30.0
    drain: bool = False
    take_over: bool = False


class Stats:
    """What a relay has done since it started; read by anyone, added to by its workers."""

    def __init__(self) -> None:
        self.published = self.retried = self.dead = self.lease_lost = self.in_flight = 0
        self.first_claim: float | None = None
        self.last_settle: float | None = None
        self._lock = threading.Lock()

    def begin(self, events: int, now: float) -> None:
        with self._lock:
            self.in_flight += events
            self.first_claim = self.first_claim or now

    def settled(self, events: int, settlement: Settlement, lost: int, now: float) -> None:
        with self._lock:
            self.in_flight -= events
            self.published += len(settlement.confirmed)
            self.retried += len(settlement.failed)
            self.dead += len(settlement.dead)
            self.lease_lost += lost
            self.last_settle = now


class Idle(Protocol):
    """What a worker does when there is nothing to send."""

    def wait(self, database: Database) -> bool:
        """Return True when there may be something again, False to end. `database` is the worker's own."""
        ...

    def claimed(self, *, more: bool) -> None:
        """This worker has found work; with `more` there is some for another one as well."""
        ...


class Pauses(Protocol):
    """Which destinations are paused, as far as this process knows."""

    def paused(self, outbox: str, destination: str) -> bool: ...
    def add(self, outbox: str, destination: str) -> None: ...
    def remove(self, outbox: str, destination: str) -> None: ...


class Floors(Protocol):
    """Below which id nothing new can appear."""

    @property
    def limit(self) -> int: ...


class AbandonedError(Exception):
    """The grace period is over and the database is away: the lanes are left to their lease."""


class Worker:
    """Runs the loop until its stop event is set or, in a drain, until nothing is left to send.

    Parameters:
        name: who holds the lanes, for operators (`leased_by`).
        give_up: set when waiting for the database has to end, too.
        backoff: the waits of events that failed.
    """

    def __init__(
        self,
        name: str,
        config: Config,
        store: Store,
        database: Database,
        publisher: Publisher,
        *,
        keeper: LeaseKeeper,
        broker_gate: Gate,
        database_gate: Gate,
        idle: Idle,
        pauses: Pauses,
        floors: Floors,
        stats: Stats,
        backoff: Backoff,
        stop: threading.Event,
        give_up: threading.Event,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._name, self._config, self._store, self._database = name, config, store, database
        self._publisher, self._keeper = publisher, keeper
        self._broker_gate, self._database_gate = broker_gate, database_gate
        self._idle, self._pauses, self._floors, self._stats, self._backoff = idle, pauses, floors, stats, backoff
        self._stop, self._give_up, self._clock = stop, give_up, clock

    def run(self) -> None:
        """Work until told to stop. Never ends for an outage of the database or the broker."""
        try:
            while self._broker_gate.wait() and self._database_gate.wait():
                try:
                    lease = self._claim_on_a_live_connection()
                    self._database_gate.worked()
                    if lease is None and not self._idle.wait(self._database):
                        break
                except DatabaseError as error:
                    self._database_gate.fail(error)
                    continue
                if lease is not None:
                    self._work(lease)
        except AbandonedError:
            logger.warning(
                "%s gives up waiting for the database; its lanes come free when their lease ends", self._name
            )
        finally:
            self._database.disconnect()

    def _claim_on_a_live_connection(self) -> Lease | None:
        try:
            return self._claim()
        except DatabaseUnreachable:
            # A connection that was kept while idle may have gone without an outage: once more on a new one.
            return self._claim()

    def _claim(self) -> Lease | None:
        """Lease lanes of the first outbox that has something to send."""
        for outbox in self._config.outboxes:
            token, started = uuid.uuid4(), self._clock()
            with self._database.connection() as connection:
                lanes = self._store.claim(
                    connection, outbox, limit=LANES_AT_ONCE, lease=self._config.lease, token=token, by=self._name
                )
            if lanes:
                self._idle.claimed(more=len(lanes) == LANES_AT_ONCE)
                return Lease(outbox, lanes, token, self._config.lease, started, self._clock)
        return None

    def _work(self, lease: Lease) -> None:
        """Publish from the lanes for a few batches, then give them back."""
        self._keeper.hold(lease)
        try:
            for remaining in reversed(range(BATCHES_PER_CLAIM)):
                lease.begin_batch()
                if not self._batch(lease, last=not remaining):
                    break
        finally:
            self._keeper.drop(lease)

    def _batch(self, lease: Lease, *, last: bool) -> bool:
        """One batch; returns whether the lanes are still held and probably have more."""
        each = max(1, self._config.batch_size // len(lease.floors))
        limit = self._floors.limit  # before the read: its snapshot has to be younger
        try:
            with self._database.connection() as connection:
                events = self._store.read(connection, lease.outbox, lanes=lease.floors, token=lease.token, each=each)
        except DatabaseError as error:
            self._database_gate.fail(error)
            self._settle(lease, Settlement(), {}, release=True)
            return False
        self._stats.begin(len(events), self._clock())
        outcomes, broken = self._publish(lease, events)
        settlement = self._judge(lease.outbox, events, outcomes)
        release = last or broken is not None or self._stop.is_set() or lease.expired() or len(events) < each
        floors = _floors(lease.floors, events, settlement, each, limit)
        self._settle(lease, settlement, floors, release=release, events=len(events))
        if broken is not None:
            self._broker_gate.fail(broken)
        elif settlement.confirmed:
            self._broker_gate.worked()
        return not release

    def _publish(self, lease: Lease, events: Sequence[ReadyEvent]) -> tuple[list[Outcome | None], Unavailable | None]:
        """What became of each event: None for one that was not handed to the publisher."""
        outcomes: list[Outcome | None] = [None] * len(events)
        sendable: list[int] = []
        stuck: set[str | None] = set()
        for position, event in enumerate(events):
            if event.key is not None and event.key in stuck:
                outcomes[position] = Deferred()
            elif self._may_go(lease.outbox, event):
                sendable.append(position)
            else:
                stuck.add(event.key)
        broken: Unavailable | None = None
        reported: Sequence[Outcome] = ()
        try:
            if sendable:
                reported = self._publisher.publish([_message(events[position]) for position in sendable], lease)
        except Interrupted as error:
            reported, broken = error.outcomes, error
        except Unavailable as error:
            broken = error
        except Exception as error:  # a publisher is somebody else's code: its bugs must not cost an event
            logger.exception("the publisher failed in a way it should not")
            broken = Unavailable(f"the publisher raised {type(error).__name__}: {error}")
        for index, position in enumerate(sendable):
            outcomes[position] = reported[index] if index < len(reported) else Deferred()
        return outcomes, broken

    def _may_go(self, outbox: str, event: ReadyEvent) -> bool:
        if event.blocked:
            return False
        # One that comes back from a pause goes out in any case: it is the probe, or the pause is over.
        return event.held == "paused" or not self._pauses.paused(outbox, self._publisher.destination(event.topic))

    def _judge(self, outbox: str, events: Sequence[ReadyEvent], outcomes: Sequence[Outcome | None]) -> Settlement:
        """Turn outcomes into what the database has to record."""
        settlement = Settlement()
        stuck: set[str | None] = set()
        for event, outcome in zip(events, outcomes, strict=True):
            match outcome:
                case Confirmed():
                    settlement.confirmed.append(event)
                    if event.held == "paused":
                        destination = self._publisher.destination(event.topic)
                        settlement.resumes.add(destination)
                        self._pauses.remove(outbox, destination)
                    continue
                case Retry(reason):
                    self._retry(settlement, event, reason)
                case Rejected(reason):
                    settlement.dead.append(Dead(event, "rejected", reason, charge=1))
                    continue
                case Paused(reason):
                    destination = self._publisher.destination(event.topic)
                    settlement.pauses[destination] = reason
                    settlement.paused.append(event)
                    self._pauses.add(outbox, destination)
                case None if not event.blocked:
                    settlement.paused.append(event)
                case None:
                    settlement.blocked.append(event)
                case Deferred() if event.key in stuck:
                    settlement.blocked.append(event)
                case Deferred():
                    continue
            if event.key is not None:
                stuck.add(event.key)
        return settlement

    def _retry(self, settlement: Settlement, event: ReadyEvent, reason: str) -> None:
        attempts = event.attempts + 1
        if attempts >= self._config.max_attempts:
            settlement.dead.append(Dead(event, "exhausted", reason, charge=1))
        else:
            settlement.failed.append(Failed(event, self._backoff.delay(attempts), reason))

    def _settle(
        self, lease: Lease, settlement: Settlement, floors: dict[int, int], *, release: bool, events: int = 0
    ) -> None:
        """Record it, however long the database is away: what is confirmed must not be sent again."""
        while True:
            started = self._clock()
            try:
                with self._database.connection() as connection:
                    held = self._store.settle(
                        connection,
                        lease.outbox,
                        settlement,
                        lanes=lease.floors,
                        floors=floors,
                        token=lease.token,
                        lease=None if release else lease.seconds,
                        unblock=UNBLOCK,
                        probe_after=self._backoff.shortest,
                        by=self._name,
                    )
                break
            except DatabaseError as error:
                if not isinstance(error, DatabaseUnreachable) and settlement != Settlement(settlement.confirmed):
                    # It refuses to record the rest, and may for good. What is confirmed must go all the same.
                    logger.error("what became of a batch can't be recorded: %s", error)
                    settlement, floors, release = Settlement(settlement.confirmed), {}, True
                self._database_gate.fail(error)
                if not self._database_gate.wait() and self._give_up.wait(RETRY_WHILE_STOPPING):
                    raise AbandonedError from error
        self._record(lease, settlement, held, events, started)

    def _record(
        self, lease: Lease, settlement: Settlement, held: Mapping[int, int], events: int, started: float
    ) -> None:
        lost = lease.floors.keys() - held.keys()
        lease.floors.update(held)
        self._database_gate.worked()
        self._stats.settled(events, settlement, len(lost), self._clock())
        if lost:
            logger.warning("lost the lease of %d lanes while publishing", len(lost), extra={"lease_lost": len(lost)})
        else:
            lease.renewed(started)
        for item in settlement.dead:
            if item.event.lane in lost:
                continue
            logger.error(
                "event %s of topic %r became a dead letter (%s): %s",
                item.event.idempotency_key,
                item.event.topic,
                item.reason,
                item.error,
            )
        for destination, reason in settlement.pauses.items():
            logger.warning("publishing to %r is paused: %s", destination, reason, extra={"destination": destination})
        for destination in settlement.resumes:
            logger.info("publishing to %r goes on", destination, extra={"destination": destination})


def _floors(
    lanes: Collection[int], events: Sequence[ReadyEvent], settlement: Settlement, each: int, limit: int
) -> dict[int, int]:
    """Up to which id each lane has no fresh event any more, once the settlement is recorded; at most `limit`.

    A lane of which less than `each` was read has none beyond; otherwise the last one read is as far as we know.
    """
    gone = {event.id for event in (*settlement.confirmed, *settlement.paused)}
    gone |= {item.event.id for item in settlement.failed} | {item.event.id for item in settlement.dead}
    floors = dict.fromkeys(lanes, limit)
    read = Counter(event.lane for event in events)
    last = {event.lane: event.id for event in events}
    for lane, count in read.items():
        if count >= each:
            floors[lane] = min(limit, last[lane])
    for event in events:
        if event.id not in gone and not event.returned:
            floors[event.lane] = min(floors[event.lane], event.id - 1)
    return floors


def _message(event: ReadyEvent) -> Message:
    return Message(
        event.idempotency_key,
        event.key,
        event.topic,
        event.type,
        event.payload,
        event.content_type,
        event.headers,
        event.created_at,
        event.resends,
    )
