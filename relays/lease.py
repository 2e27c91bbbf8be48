"""Leases on lanes: how a worker knows that it may still send, and the thread that prolongs them."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping

from outbox.errors import DatabaseError
from outbox.store import Store
from relays.database import Database

__all__ = ["Lease", "LeaseKeeper", "boot_time"]

logger = logging.getLogger(__name__)

SAFETY = 0.9
"""The part of a lease that is used: the rest is for a message on its way and for clocks that tick differently."""

RENEWED_FOR = 10
"""A batch that takes longer than this many lease times is hung: its lanes go to somebody else."""


def boot_time() -> float:
    """Seconds on a clock that goes on while the machine is suspended, where there is one (CLOCK_MONOTONIC stops)."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lease:
    """The lanes one claim holds. Its local deadline is never later than the database's.

    Parameters:
        outbox, floors, token: what was claimed; `floors` maps each lane to the floor that reads of it begin from.
        seconds: how long a renewal lasts.
        started: the clock's time before the claim was sent.
    """

    def __init__(
        self,
        outbox: str,
        floors: Mapping[int, int],
        token: uuid.UUID,
        seconds: float,
        started: float,
        clock: Callable[[], float],
    ) -> None:
        self.outbox, self.floors, self.token, self.seconds = outbox, dict(floors), token, seconds
        self._clock = clock
        self._until = started + seconds * SAFETY
        self._batch_started = started

    def expired(self) -> bool:
        """Whether nothing more may be sent. Also true in a process that was frozen past its lease."""
        return self._clock() >= self._until

    def renewed(self, started: float) -> None:
        """The database prolonged the lease of every lane, in a statement sent at `started`."""
        # A lease that ran out is lost, even if nobody has taken the lanes yet: its worker may have noticed.
        if not self.expired():
            self._until = max(self._until, started + self.seconds * SAFETY)

    def begin_batch(self) -> None:
        self._batch_started = self._clock()

    @property
    def hung(self) -> bool:
        return self._clock() - self._batch_started > self.seconds * RENEWED_FOR


class LeaseKeeper:
    """Prolongs the leases of this process, on a connection of its own, so that a slow broker costs no lane."""

    def __init__(
        self, store: Store, database: Database, seconds: float, clock: Callable[[], float] = boot_time
    ) -> None:
        self._store, self._database, self._seconds, self._clock = store, database, seconds, clock
        self._leases: dict[uuid.UUID, Lease] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def hold(self, lease: Lease) -> None:
        with self._lock:
            self._leases[lease.token] = lease

    def drop(self, lease: Lease) -> None:
        with self._lock:
            self._leases.pop(lease.token, None)

    def run(self) -> None:
        """Prolong leases until closed; runs in a thread of its own."""
        while not self._closing.wait(self._seconds / 3):
            try:
                self.renew()
            except DatabaseError as error:
                logger.warning("leases could not be renewed: %s", error)
        self._database.disconnect()

    def renew(self) -> None:
        """Prolong every lease whose batch is not hung."""
        with self._lock:
            leases = [lease for lease in self._leases.values() if not lease.hung and not lease.expired()]
        if not leases:
            return
        started = self._clock()
        with self._database.connection() as connection:
            lanes = self._store.renew(connection, [lease.token for lease in leases], self._seconds)
        for lease in leases:
            if lanes[lease.token] == len(lease.floors):
                lease.renewed(started)

    def close(self) -> None:
        self._closing.set()
