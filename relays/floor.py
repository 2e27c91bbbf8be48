"""Below which id no new event can appear any more, however long other transactions run.

Ids are drawn at insert and seen at commit. Dead rows that vacuum may not remove yet make a scan from the start of an
index slow, so scans begin above a floor; and a floor that is too high would hide an event for good. Hence:

1. Read the id sequence: S. *Then*, in a second statement, the transactions that hold the lock of an insert.
2. When all of those have ended, S is valid: whatever drew an id up to S is visible to every later snapshot.
3. Only a read that begins after that may raise a floor, and not above S.
"""

import sqlalchemy as sa

from outbox.store import Store

__all__ = ["FloorWatch"]


class FloorWatch:
    """Finds valid limits, one after the other. `advance` belongs to one thread, `limit` may be read by any."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._candidate: int | None = None
        self._writers: set[str] = set()
        self.limit = 0
        """No event with an id up to this one can newly appear."""

    def advance(self, connection: sa.Connection) -> None:
        """One step; called now and then."""
        if self._candidate is None:
            self._candidate = self._store.last_id(connection)
            if self._candidate < self.limit:
                self.limit = 0  # truncated or restored under our feet
            self._writers = self._store.writers(connection)
        elif self._writers:
            self._writers &= self._store.writers(connection)
        if not self._writers:
            self.limit, self._candidate = self._candidate, None

    def start_over(self) -> None:
        """The connection was lost: this may be another server now."""
        self.limit, self._candidate, self._writers = 0, None, set()
