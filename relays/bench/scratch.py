"""A schema of its own for the events that are measured, made in the user's database or in an embedded one."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

from outbox import make_event_class, migrations
from outbox.database import make_engine, parse_url, translated
from relays.demo.embedded import EmbeddedPostgres
from relays.publishers import Message

__all__ = ["Scratch", "scratch"]


class Scratch:
    """The outbox tables in a schema of their own."""

    def __init__(self, url: str, schema: str) -> None:
        self.url, self.schema = url, schema
        self._engine = make_engine(parse_url(url), application_name="outbox-relay bench")
        self._event_class = make_event_class(schema=schema)

    def make(self) -> None:
        """Make schema and tables. Raises a DatabaseError when the user must not, or there is no server."""
        with translated(), self._engine.begin() as connection:
            connection.execute(sa.schema.CreateSchema(self.schema))
            operations = Operations(MigrationContext.configure(connection))
            migrations.upgrade(operations, migrations.SCHEMA_VERSION, schema=self.schema)

    def drop(self) -> None:
        """Remove the schema with everything in it."""
        with translated(), self._engine.begin() as connection:
            connection.execute(sa.schema.DropSchema(self.schema, cascade=True))

    def add(self, messages: Sequence[Message]) -> None:
        """Commit these messages as events, as an application would."""
        rows = [
            {
                "topic": message.topic,
                "type": message.type,
                "payload": message.payload,
                "content_type": message.content_type,
                "key": message.key,
                "idempotency_key": message.idempotency_key,
            }
            for message in messages
        ]
        with translated(), self._engine.begin() as connection:
            connection.execute(sa.insert(self._event_class), rows)


@contextmanager
def scratch(url: str | None) -> Iterator[Scratch]:
    """A scratch schema in the database at `url`, removed in the end; without one, on an embedded server."""
    if url is None:
        with EmbeddedPostgres() as server, scratch(server.url()) as place:
            yield place
        return
    place = Scratch(url, f"outbox_bench_{secrets.token_hex(6)}")
    place.make()
    try:
        yield place
    finally:
        place.drop()
