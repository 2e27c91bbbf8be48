"""What has to happen without an event to cause it: due events return, paused destinations are probed and resumed."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import sqlalchemy as sa

from outbox.errors import DatabaseError
from outbox.store import Store
from relays.database import Database
from relays.floor import FloorWatch
from relays.retry import Backoff

__all__ = ["Maintenance", "PauseBoard"]

logger = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two rounds."""

RETURNED_AT_ONCE = 1000
SWEEP_EVERY = 60
"""Rounds between two looks for events that nothing else would bring back.

Settling on a lost lease can leave some behind blocked, and SQL by hand some below a floor.
"""


class PauseBoard:
    """The paused destinations as this process knows them: refreshed by every round, corrected by its own workers.

    Being behind is harmless: an event that should have waited is refused by the broker and waits then; one that need
    not wait comes back in the next round.
    """

    def __init__(self) -> None:
        self._paused: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def paused(self, outbox: str, destination: str) -> bool:
        return destination in self._paused.get(outbox, ())

    def add(self, outbox: str, destination: str) -> None:
        with self._lock:
            self._paused[outbox] = self._paused.get(outbox, set()) | {destination}

    def remove(self, outbox: str, destination: str) -> None:
        with self._lock:
            self._paused[outbox] = self._paused.get(outbox, set()) - {destination}

    def refresh(self, outbox: str, destinations: Mapping[str, bool]) -> None:
        with self._lock:
            self._paused[outbox] = set(destinations)


class Maintenance:
    """One round a second, on a connection of its own; several relays may do it at once and take turns by row locks.

    Parameters:
        destination: where a topic goes.
        backoff: how often a paused destination is probed.
        floors: advanced in every round.
        wake: called when events have come back.
    """

    def __init__(
        self,
        store: Store,
        database: Database,
        outboxes: Sequence[str],
        board: PauseBoard,
        destination: Callable[[str], str],
        backoff: Backoff,
        floors: FloorWatch,
        wake: Callable[[], None],
    ) -> None:
        self._store, self._database, self._outboxes = store, database, outboxes
        self._board, self._destination, self._backoff, self._wake = board, destination, backoff, wake
        self._floors = floors
        self._closing = threading.Event()
        self._turn = threading.Lock()
        self._rounds = 0

    def run(self) -> None:
        """Do a round every second until closed; runs in a thread of its own."""
        while not self._closing.wait(INTERVAL):
            try:
                self.round()
            except DatabaseError as error:
                self._floors.start_over()
                # The workers meet the same outage and say so.
                logger.debug("maintenance has to wait: %s", error)
        self._database.disconnect()

    def round(self, probe: bool = True) -> None:
        """Return what is due and what waited for a destination that works again; with `probe`, probe one that may.

        Any thread may call it; they take turns.
        """
        with self._turn, self._database.connection() as connection:
            self._rounds += 1
            set_back = self._floors.advance(connection)
            for outbox in self._outboxes:
                if set_back:
                    self._store.lower_floors(connection, outbox)
                if self._round(connection, outbox, probe=probe):
                    self._wake()

    def _round(self, connection: sa.Connection, outbox: str, *, probe: bool) -> bool:
        returned = self._in_batches(partial(self._store.promote, connection, outbox))
        pauses = self._store.pauses(connection, outbox)
        self._board.refresh(outbox, pauses)
        topics: dict[str, list[str]] = {}
        for topic in self._store.paused_topics(connection, outbox):
            topics.setdefault(self._destination(topic), []).append(topic)
        for destination, waiting in topics.items():
            if destination not in pauses:
                for topic in waiting:
                    returned |= self._in_batches(partial(self._store.return_paused, connection, outbox, topic))
            elif probe and pauses[destination] and self._may_probe(connection, outbox, destination):
                returned |= self._store.return_paused(connection, outbox, waiting[0], 1) > 0
        if self._rounds % SWEEP_EVERY == 0:
            returned |= self._sweep(connection, outbox)
        return returned

    def _may_probe(self, connection: sa.Connection, outbox: str, destination: str) -> bool:
        # Half of the jitter: a probe that comes at once would be one per round.
        jitter = 0.5 + self._backoff.rng.random() / 2
        shortest, longest = self._backoff.shortest, self._backoff.longest
        return self._store.claim_probe(
            connection, outbox, destination, shortest=shortest, longest=longest, jitter=jitter
        )

    def _sweep(self, connection: sa.Connection, outbox: str) -> bool:
        forgotten = self._store.return_forgotten(connection, outbox, RETURNED_AT_ONCE)
        if forgotten:
            logger.warning(
                "returned %d events that nothing blocked any more", forgotten, extra={"forgotten": forgotten}
            )
        hidden = self._store.mend_floors(connection, outbox)
        if hidden:
            logger.error("the floors of %d lanes hid events: reset", hidden, extra={"floors_mended": hidden})
        return forgotten + hidden > 0

    def _in_batches(self, step: Callable[[int], int]) -> bool:
        """Repeat the step while it takes whole batches; returns whether it took anything."""
        total = count = step(RETURNED_AT_ONCE)
        while count == RETURNED_AT_ONCE and not self._closing.is_set():
            count = step(RETURNED_AT_ONCE)
            total += count
        return total > 0

    def close(self) -> None:
        self._closing.set()
