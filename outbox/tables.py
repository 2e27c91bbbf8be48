"""The tables as SQLAlchemy metadata: what the mapped class, the store and a host's own metadata are built from.

`outbox.migrations` holds the same schema as frozen steps; a test compares the two in pg_catalog.
"""

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import BYTEA, JSONB, TIMESTAMP
from sqlalchemy.types import TypeDecorator

from outbox import codecs
from outbox.identifiers import uuid7
from outbox.migrations import SCHEMA_VERSION, version_comment
from outbox.migrations.v01 import wake_up_trigger
from outbox.naming import Naming

__all__ = ["LANES", "Tables", "build_tables"]

LANES = 64
"""Lanes per outbox: fixed by the generated column of the event table."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one outbox schema, bound to one MetaData."""

    event: sa.Table
    lane: sa.Table
    pause: sa.Table
    dead_letter: sa.Table


class CheckedText(TypeDecorator[str]):
    """Text whose limits are checked before the database sees it."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, field: str, limit: int) -> None:
        super().__init__()
        self.field, self.limit = field, limit

    def check(self, value: object) -> str:
        return codecs.check_text(self.field, value, self.limit)

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else self.check(value)


class IdempotencyKey(TypeDecorator[str]):
    impl = sa.Text
    cache_ok = True

    def check(self, value: object) -> str:
        return codecs.check_idempotency_key(value)

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else self.check(value)


class Headers(TypeDecorator[dict[str, codecs.HeaderValue]]):
    impl = JSONB(none_as_null=True)
    cache_ok = True

    def check(self, value: object) -> dict[str, codecs.HeaderValue]:
        return codecs.check_headers(value)

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> dict[str, codecs.HeaderValue] | None:
        return None if value is None else self.check(value)


class AvailableAt(TypeDecorator[dt.datetime]):
    impl = TIMESTAMP(timezone=True)
    cache_ok = True

    def check(self, value: object) -> dt.datetime:
        return codecs.check_available_at(value)

    def process_bind_param(self, value: dt.datetime | None, dialect: sa.Dialect) -> dt.datetime | None:
        return None if value is None else self.check(value)


class Payload(TypeDecorator[Any]):
    """Anything `codecs.encode_payload` takes; None is JSON null. What comes back from the database is bytes."""

    impl = BYTEA
    cache_ok = True
    should_evaluate_none = True  # the ORM would leave the column out

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> bytes:
        return codecs.encode_payload(value)


def _content_type_default(context: Any) -> str:
    return codecs.default_content_type(context.get_current_parameters().get("payload"))


def _attempts_default(context: Any) -> int:
    """0, and the one thing a column type can't do: encode a str payload by the content type of its own row.

    Bind types see one value at a time. A default is called with all parameters of the statement before the types
    are; nobody gives `attempts` in an INSERT, so its default is called for every row, whichever way it is inserted.
    """
    parameters = context.get_current_parameters(isolate_multiinsert_groups=False)
    for name, value in parameters.items():
        if isinstance(value, str) and re.fullmatch(r"payload(_m\d+)?", name):
            content_type = parameters.get("content_type" + name.removeprefix("payload"))
            if codecs.is_text(content_type):
                parameters[name] = codecs.encode_payload(value, content_type)
    return 0


def _event_columns() -> list[sa.Column[Any]]:
    """The columns that an event keeps when it becomes a dead letter."""
    return [
        sa.Column("idempotency_key", IdempotencyKey, nullable=False, default=uuid7),
        sa.Column("outbox", CheckedText("outbox", 63), nullable=False, default="default"),
        sa.Column("key", CheckedText("key", 255)),
        sa.Column("topic", CheckedText("topic", 255), nullable=False),
        sa.Column("type", CheckedText("type", 255), nullable=False),
        sa.Column("payload", Payload, nullable=False),
        sa.Column("content_type", CheckedText("content_type", 255), nullable=False, default=_content_type_default),
        sa.Column("headers", Headers),
        sa.Column("attempts", sa.SmallInteger, nullable=False, server_default="0", default=_attempts_default),
        sa.Column("crashes", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("resends", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("created_at", TIMESTAMP(timezone=True), nullable=False),
    ]


def _event_table(metadata: sa.MetaData, naming: Naming) -> sa.Table:
    name = f"{naming.prefix}event"
    columns = {column.name: column for column in _event_columns()}
    columns["idempotency_key"].server_default = sa.DefaultClause(sa.text("gen_random_uuid()::text"))
    columns["outbox"].server_default = sa.DefaultClause("default")
    columns["content_type"].server_default = sa.DefaultClause("application/json")
    columns["created_at"].server_default = sa.DefaultClause(sa.text("clock_timestamp()"))
    lane = f"(CASE WHEN key IS NULL THEN hashint8extended(id, 0) ELSE hashtextextended(key, 0) END & {LANES - 1})::smallint"
    event = sa.Table(
        name,
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True, cache=1), primary_key=True),
        *columns.values(),
        sa.Column("lane", sa.SmallInteger, sa.Computed(lane, persisted=True), nullable=False),
        sa.Column("available_at", AvailableAt),
        sa.Column("held", sa.Text),
        sa.Column("last_error", sa.Text),
        *_event_checks(name),
        schema=naming.schema,
        comment=version_comment(SCHEMA_VERSION),
    )
    _event_indexes(event)
    sa.event.listen(event, "after_create", _wake_up_ddl(naming))
    sa.event.listen(event, "after_drop", sa.DDL(f"DROP FUNCTION IF EXISTS {naming.table('event')}_wake_up()"))
    return event


def _event_checks(name: str) -> list[sa.CheckConstraint]:
    """The limits of the column types once more, for writers that bypass them."""
    checks = {
        "idempotency_key": """(idempotency_key COLLATE "C") ~ '^[!-~]{1,128}$'""",
        "outbox": "octet_length(outbox) BETWEEN 1 AND 63",
        "key": "octet_length(key) BETWEEN 1 AND 255",
        "topic": "octet_length(topic) BETWEEN 1 AND 255",
        "type": "octet_length(type) BETWEEN 1 AND 255",
        "content_type": "octet_length(content_type) BETWEEN 1 AND 255",
        "headers": "jsonb_typeof(headers) = 'object' AND NOT jsonb_path_exists(headers, 'strict $.* ? (@.type() != \"string\""
        ' && @.type() != "boolean" && !(@.type() == "number" && @ == @.floor()))\')',
        "held": "held IN ('failed', 'blocked', 'paused', 'exhausted')",
        # A row at infinity without a reason is one that nothing would ever bring back.
        "parked": "available_at < 'infinity' OR held IS NOT NULL",
        "counters": "attempts >= 0 AND crashes >= 0 AND resends >= 0",
    }
    return [sa.CheckConstraint(sa.text(condition), name=f"{name}_{check}_check") for check, condition in checks.items()]


def _event_indexes(event: sa.Table) -> None:
    def index(suffix: str, *columns: str, where: str) -> None:
        sa.Index(f"{event.name}_{suffix}", *(event.c[column] for column in columns), postgresql_where=sa.text(where))

    index("fresh", "outbox", "lane", "id", where="available_at IS NULL")
    index("returned", "outbox", "lane", "id", where="available_at = '-infinity'")
    index("due", "outbox", "available_at", where="available_at > '-infinity' AND available_at < 'infinity'")
    index("held", "outbox", "key", "id", where="held IS NOT NULL AND key IS NOT NULL")
    index("blocked", "outbox", "key", "id", where="held = 'blocked'")
    index("paused", "outbox", "topic", "id", where="held = 'paused' AND available_at = 'infinity'")


def _wake_up_ddl(naming: Naming) -> Callable[..., None]:
    def create(target: sa.Table, connection: sa.Connection, **_: object) -> None:
        for statement in wake_up_trigger(naming.table("event")):
            connection.exec_driver_sql(statement)

    return create


def _dead_letter_table(metadata: sa.MetaData, naming: Naming) -> sa.Table:
    name = f"{naming.prefix}dead_letter"
    table = sa.Table(
        name,
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        *_event_columns(),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("failed_at", TIMESTAMP(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        schema=naming.schema,
    )
    sa.Index(f"{name}_failed_at", table.c.outbox, table.c.failed_at)
    return table


def build_tables(metadata: sa.MetaData, naming: Naming | None = None) -> Tables:
    """Define the tables in `metadata`; `metadata.create_all()` then makes them complete, trigger included."""
    naming = naming or Naming()
    timestamp = TIMESTAMP(timezone=True)
    lane = sa.Table(
        f"{naming.prefix}lane",
        metadata,
        sa.Column("outbox", sa.Text, primary_key=True),
        sa.Column("lane", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("leased_until", timestamp, nullable=False, server_default=sa.text("'-infinity'")),
        sa.Column("lease_token", sa.Uuid),
        sa.Column("leased_by", sa.Text),
        sa.Column("floor", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("careful_left", sa.Integer, nullable=False, server_default="0"),
        schema=naming.schema,
    )
    # Leases are updated all the time: room on the page keeps those updates on it.
    sa.event.listen(lane, "after_create", sa.DDL(f"ALTER TABLE {naming.table('lane')} SET (fillfactor = 10)"))
    pause = sa.Table(
        f"{naming.prefix}pause",
        metadata,
        sa.Column("outbox", sa.Text, primary_key=True),
        sa.Column("destination", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("since", timestamp, nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.Column("next_probe", timestamp, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        schema=naming.schema,
    )
    return Tables(_event_table(metadata, naming), lane, pause, _dead_letter_table(metadata, naming))
