"""One thread's connection to the database: made when needed, thrown away when it fails."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import sqlalchemy as sa

from outbox.database import translated
from outbox.errors import DatabaseError

__all__ = ["Database"]


class Database:
    """A connection that is kept between uses. Not for more than one thread."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self._connection: sa.Connection | None = None

    @contextmanager
    def connection(self) -> Iterator[sa.Connection]:
        """The open connection. Raises a DatabaseError for any failure within, and forgets the connection then."""
        try:
            with translated():
                if self._connection is None:
                    self._connection = self.engine.connect()
                yield self._connection
        except BaseException:
            self.disconnect()
            raise

    def ping(self) -> None:
        """Raise a DatabaseError unless the database answers."""
        with self.connection() as connection, connection.begin():
            connection.execute(sa.text("SELECT 1"))

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sa.exc.SQLAlchemyError, DatabaseError, OSError):
                connection.invalidate()
                connection.close()
