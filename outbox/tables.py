"""The tables as SQLAlchemy metadata: what the mapped class, the store and a host's own metadata are built from.

`outbox.migrations` holds the same schema as frozen steps; a test compares the two in pg_catalog.
"""

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import BYTEA, JSONB, TIMESTAMP
from sqlalchemy.sql.elements import conv
from sqlalchemy.types import TypeDecorator

from outbox import codecs
from outbox.errors import InvalidEvent
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


class _Field(TypeDecorator[Any]):
    """A column whose values are checked before the database sees them; None only where the column may be NULL."""

    impl: Any = sa.Text
    nullable = False

    def check(self, value: object) -> Any:
        raise NotImplementedError

    def process_bind_param(self, value: Any, _dialect: sa.Dialect) -> Any:
        return None if value is None and self.nullable else self.check(value)

    def coerce_compared_value(self, op: Any, value: object) -> Any:
        # What a WHERE compares a column with is no value of that column: LIKE patterns, header names.
        return self.impl_instance.coerce_compared_value(op, value)


class CheckedText(_Field):
    cache_ok = True

    def __init__(self, field: str, nullable: bool = False) -> None:
        super().__init__()
        self.field, self.nullable = field, nullable

    def check(self, value: object) -> str:
        return codecs.check_text(self.field, value, codecs.LIMITS[self.field])


class IdempotencyKey(_Field):
    cache_ok = True

    def check(self, value: object) -> str:
        return codecs.check_idempotency_key(value)


class Headers(_Field):
    impl = JSONB(none_as_null=True)
    cache_ok = True
    nullable = True

    def check(self, value: object) -> dict[str, codecs.HeaderValue]:
        return codecs.check_headers(value)


class AvailableAt(_Field):
    """A time with its zone. Reads as None where the relay has put an infinity, which no datetime can hold."""

    impl = TIMESTAMP(timezone=True)
    cache_ok = True
    nullable = True

    def check(self, value: object) -> dt.datetime:
        return codecs.check_available_at(value)

    def column_expression(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        return sa.case((sa.func.isfinite(column), column))


class Payload(TypeDecorator[Any]):
    """Anything `codecs.encode_payload` takes; None is JSON null. What comes back from the database is bytes."""

    impl = BYTEA
    cache_ok = True
    should_evaluate_none = True  # the ORM would leave the column out

    def process_bind_param(self, value: Any, _dialect: sa.Dialect) -> bytes:
        return codecs.encode_payload(value)


def _idempotency_key_default(context: Any) -> str:
    if context.compiled.statement.select is not None:
        # A Python default is called once for such a statement: all rows would get one key, and look like duplicates.
        raise InvalidEvent(
            "idempotency_key: an INSERT from a SELECT needs from_select(..., include_defaults=False), "
            "so that the database makes a key for each row"
        )
    return uuid7()


def _content_type_default(context: Any) -> str:
    parameters, column = context.current_parameters, context.current_column.key
    payload = column.replace("content_type", "payload")  # content_type_m1 and payload_m1: the second row of a list
    if payload not in parameters and column == "content_type" and "payload_m0" in parameters:
        payload = "payload_m0"  # the first row's defaults have no number
    elif payload not in parameters:
        payload = {content_type: name for name, content_type in _payload_parameters(context, parameters)}.get(column)
    return codecs.default_content_type(parameters.get(payload))


def _attempts_default(context: Any) -> int:
    """0, and the one thing a column type can't do: encode a str payload by the content type of its own row.

    Bind types see one value at a time. A default is called with all parameters of the statement before the types
    are; nobody gives `attempts` in an INSERT, so its default is called for every row, whichever way it is inserted.
    """
    parameters = context.current_parameters
    if parameters.get("attempts") is None:  # a VALUES list of many rows shows them all to each: one call is enough
        for payload, content_type in _payload_parameters(context, parameters):
            value = parameters[payload]
            if isinstance(value, str) and codecs.is_text(parameters[content_type]):
                parameters[payload] = codecs.encode_payload(value, parameters[content_type])
    return 0


def _payload_parameters(context: Any, parameters: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """The names under which the statement's rows have their payload and their content type."""
    if "payload" in parameters and "content_type" in parameters:
        return [("payload", "content_type")]
    binds = context.compiled.bind_names.items()
    payloads = [name for bind, name in binds if isinstance(bind.type, Payload)]
    content_types = [name for bind, name in binds if getattr(bind.type, "field", None) == "content_type"]
    if len(payloads) == len(content_types):
        return zip(payloads, content_types, strict=True)
    if any(isinstance(parameters[name], str) for name in payloads):
        raise InvalidEvent("payload: give bytes, not str, beside a payload or content_type that is an SQL expression")
    return []


def _event_columns() -> list[sa.Column[Any]]:
    """The columns that an event keeps when it becomes a dead letter."""
    return [
        sa.Column("idempotency_key", IdempotencyKey, nullable=False, default=_idempotency_key_default),
        sa.Column("outbox", CheckedText("outbox"), nullable=False, default="default"),
        sa.Column("key", CheckedText("key", nullable=True)),
        sa.Column("topic", CheckedText("topic"), nullable=False),
        sa.Column("type", CheckedText("type"), nullable=False),
        sa.Column("payload", Payload, nullable=False),
        sa.Column("content_type", CheckedText("content_type"), nullable=False, default=_content_type_default),
        sa.Column("headers", Headers),
        sa.Column("attempts", sa.SmallInteger, nullable=False, server_default=sa.text("0"), default=_attempts_default),
        sa.Column("crashes", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("resends", sa.SmallInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("created_at", TIMESTAMP(timezone=True), nullable=False),
    ]


def _event_table(metadata: sa.MetaData, naming: Naming) -> sa.Table:
    name = f"{naming.prefix}event"
    columns = {column.name: column for column in _event_columns()}
    columns["idempotency_key"].server_default = sa.DefaultClause(sa.text("gen_random_uuid()::text"))
    columns["outbox"].server_default = sa.DefaultClause("default")
    columns["content_type"].server_default = sa.DefaultClause("application/json")
    columns["created_at"].server_default = sa.DefaultClause(sa.text("clock_timestamp()"))
    spread = "CASE WHEN key IS NULL THEN hashint8extended(id, 0) ELSE hashtextextended(key, 0) END"
    lane = f"({spread} & {LANES - 1})::smallint"
    event = sa.Table(
        name,
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True, cache=1)),
        *columns.values(),
        sa.Column("lane", sa.SmallInteger, sa.Computed(lane, persisted=True), nullable=False),
        sa.Column("available_at", AvailableAt),
        sa.Column("held", sa.Text),
        sa.Column("last_error", sa.Text),
        _primary_key(name, "id"),
        *_event_checks(name),
        schema=naming.schema,
        comment=version_comment(SCHEMA_VERSION),
    )
    _event_indexes(event)
    _afterwards(event, "after_create", naming, lambda here: wake_up_trigger(here.table("event")))
    _afterwards(event, "after_drop", naming, lambda here: [f"DROP FUNCTION IF EXISTS {here.table('event')}_wake_up()"])
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
        "headers": """jsonb_typeof(headers) = 'object' AND NOT jsonb_path_exists(headers,
            'strict $.* ? (@.type() != "string" && @.type() != "boolean" && !(@.type() == "number" && @ == @.floor()
             && @ >= -9223372036854775808 && @ <= 9223372036854775807))')""",
        "header_names": """jsonb_typeof(headers) <> 'object' OR NOT jsonb_path_exists(headers,
            'strict $.keyvalue() ? (@.key == ""
             || @.key like_regex "^(outbox-|idempotency-key)" flag "i" || @.key like_regex "^.{255}." flag "s")')""",
        "held": "held IN ('failed', 'blocked', 'paused', 'exhausted')",
        # A row at infinity without a reason is one that nothing would ever bring back.
        "parked": "available_at < 'infinity' OR held IS NOT NULL",
        # What Python's datetime can't hold would make a batch unreadable.
        "created_at": "created_at >= '2000-01-01 00:00:00+00' AND created_at < '9999-01-01 00:00:00+00'",
        "counters": "attempts >= 0 AND crashes >= 0 AND resends >= 0",
    }
    return [sa.CheckConstraint(sa.text(sql), name=conv(f"{name}_{check}_check")) for check, sql in checks.items()]


def _primary_key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=conv(f"{table}_pkey"))


def _event_indexes(event: sa.Table) -> None:
    def index(suffix: str, *columns: str, where: str) -> None:
        sa.Index(
            conv(f"{event.name}_{suffix}"), *(event.c[column] for column in columns), postgresql_where=sa.text(where)
        )

    index("fresh", "outbox", "lane", "id", where="available_at IS NULL")
    index("returned", "outbox", "lane", "id", where="available_at = '-infinity'")
    index("due", "outbox", "available_at", where="available_at > '-infinity' AND available_at < 'infinity'")
    index("held", "outbox", "key", "id", where="held IS NOT NULL AND key IS NOT NULL")
    index("blocked", "outbox", "key", "id", where="held = 'blocked'")
    index("paused", "outbox", "topic", "id", where="held = 'paused' AND available_at = 'infinity'")


def _afterwards(table: sa.Table, event: str, naming: Naming, statements: Callable[[Naming], list[str]]) -> None:
    """Have create_all or drop_all run more statements after the table's own, in the schema it is translated to."""

    def run(_table: sa.Table, connection: sa.Connection, **_: object) -> None:
        translated = connection.get_execution_options().get("schema_translate_map") or {}
        for statement in statements(replace(naming, schema=translated.get(naming.schema, naming.schema))):
            connection.exec_driver_sql(statement)

    sa.event.listen(table, event, run)


def _dead_letter_table(metadata: sa.MetaData, naming: Naming) -> sa.Table:
    name = f"{naming.prefix}dead_letter"
    table = sa.Table(
        name,
        metadata,
        sa.Column("id", sa.BigInteger, autoincrement=False),
        *_event_columns(),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("failed_at", TIMESTAMP(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
        _primary_key(name, "id", "idempotency_key"),
        schema=naming.schema,
    )
    sa.Index(conv(f"{name}_failed_at"), table.c.outbox, table.c.failed_at)
    return table


def build_tables(metadata: sa.MetaData, naming: Naming | None = None) -> Tables:
    """Define the tables in `metadata`; `metadata.create_all()` then makes them complete, trigger included.

    Without a schema of their own they are where the other tables of `metadata` are.
    """
    naming = naming or Naming()
    if naming.schema is None:
        naming = replace(naming, schema=metadata.schema)
    timestamp = TIMESTAMP(timezone=True)
    lane = sa.Table(
        f"{naming.prefix}lane",
        metadata,
        sa.Column("outbox", sa.Text),
        sa.Column("lane", sa.SmallInteger, autoincrement=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("leased_until", timestamp, nullable=False, server_default=sa.text("'-infinity'")),
        sa.Column("lease_token", sa.Uuid),
        sa.Column("leased_by", sa.Text),
        sa.Column("floor", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("careful_left", sa.Integer, nullable=False, server_default=sa.text("0")),
        _primary_key(f"{naming.prefix}lane", "outbox", "lane"),
        schema=naming.schema,
    )
    # Leases are updated all the time: room on the page keeps those updates on it.
    _afterwards(lane, "after_create", naming, lambda here: [f"ALTER TABLE {here.table('lane')} SET (fillfactor = 10)"])
    pause = sa.Table(
        f"{naming.prefix}pause",
        metadata,
        sa.Column("outbox", sa.Text),
        sa.Column("destination", sa.Text),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("since", timestamp, nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.Column("next_probe", timestamp, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        _primary_key(f"{naming.prefix}pause", "outbox", "destination"),
        schema=naming.schema,
    )
    return Tables(_event_table(metadata, naming), lane, pause, _dead_letter_table(metadata, naming))
