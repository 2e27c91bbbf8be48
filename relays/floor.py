"""Below which id no new event can appear any more, however long other transactions run.

Ids are drawn at insert and seen at commit. Dead rows that vacuum may not remove yet make a scan from the start of an
index slow, so scans begin above a floor; and a floor that is too high would hide an event for good. Hence:

1. Read the id sequence: S. *Then*, in a second statement, the transactions that hold the lock of an insert.
2. When all of those have ended, S is valid: whatever drew an id up to S is visible to every later snapshot.
3. Only a read that begins after that may raise a floor, and not above S.
"""

from collections.abc import Callable

import sqlalchemy as sa

from outbox.store import Store

__all__ = ["FloorWatch"]


class FloorWatch:
    """Finds valid limits, one after the other. `advance` belongs to one thread, `limit` may be read by any.

    Parameters:
        epoch: changes when the database was away; what was true before may not be so on the server that is there now.
    """

    def __init__(self, store: Store, epoch: Callable[[], int] = lambda: 0) -> None:
        self._store, self._epoch = store, epoch
        self._candidate: int | None = None
        self._writers: set[str] = set()
        self._found = (0, epoch())
        self._begun_in = epoch()

    @property
    def limit(self) -> int:
        """No event with an id up to this one can newly appear; 0 when that is not known."""
        limit, epoch = self._found
        return limit if epoch == self._epoch() else 0

    def advance(self, connection: sa.Connection) -> bool:
        """One step; called now and then. True when the id sequence was set back: stored floors are wrong then."""
        if self._begun_in != self._epoch():
            self.start_over()
        set_back = False
        if self._candidate is None:
            self._candidate = self._store.last_id(connection)
            set_back = self._candidate < self._found[0]
            self._writers = self._store.writers(connection)
        elif self._writers:
            self._writers &= self._store.writers(connection)
        if not self._writers:
            self._found, self._candidate = (self._candidate, self._begun_in), None
        return set_back

    def start_over(self) -> None:
        """The connection was lost: this may be another server now."""
        self._begun_in = self._epoch()
        self._found, self._candidate, self._writers = (0, self._begun_in), None, set()
