"""One thread's connection to the database: made when needed, thrown away when it fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import sqlalchemy as sa

from outbox.database import translated
from outbox.errors import DatabaseError

__all__ = ["Database"]


class Database:
    """A connection that is kept between uses. Not for more than one thread.

    Parameters:
        epoch: a connection made before it last changed is replaced: the server has been away since.
    """

    def __init__(self, engine: sa.Engine, epoch: Callable[[], int] = lambda: 0) -> None:
        self._engine, self._epoch = engine, epoch
        self._connection: sa.Connection | None = None
        self._made_in = epoch()

    @contextmanager
    def connection(self) -> Iterator[sa.Connection]:
        """The open connection. Raises a DatabaseError for any failure within, and forgets the connection then."""
        if self._made_in != self._epoch():
            self.disconnect()
        try:
            with translated():
                if self._connection is None:
                    self._made_in = self._epoch()
                    self._connection = self._engine.connect()
                yield self._connection
        except BaseException:
            self.disconnect()
            raise

    def ping(self) -> None:
        """Raise a DatabaseError unless a connection can be had."""
        with self.connection():
            pass

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sa.exc.SQLAlchemyError, DatabaseError, OSError):
                connection.invalidate()
                connection.close()
