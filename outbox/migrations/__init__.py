"""The schema as numbered, frozen steps, for a host application's own Alembic history and for `outbox-relay migrate`.

In a revision of the host's:

    from outbox import migrations

    def upgrade() -> None:
        migrations.upgrade(op, to=1)

    def downgrade() -> None:
        migrations.downgrade(op, to=0)

and in its env.py, so that autogenerate leaves our tables alone:

    context.configure(..., include_object=migrations.include_object)
"""

import re
from collections.abc import Callable
from typing import Any, Protocol

import sqlalchemy as sa

from outbox.errors import SchemaError
from outbox.migrations import v01
from outbox.naming import Naming

__all__ = [
    "SCHEMA_VERSION",
    "check_version",
    "current_version",
    "downgrade",
    "include_object",
    "make_include_object",
    "make_schema",
    "upgrade",
    "version_comment",
]

SCHEMA_VERSION = 1
"""The newest version, and the one that this package's relays need."""

TABLES = ("event", "lane", "pause", "dead_letter")


class Operations(Protocol):
    """The part of `alembic.op` that is used."""

    def execute(self, sqltext: Any) -> None: ...
    def get_context(self) -> Any: ...


def upgrade(
    op: Operations, to: int, *, schema: str | None = None, prefix: str = "outbox_", wake_up: bool = True, start: int = 0
) -> None:
    """Bring the outbox tables from whatever version they have to version `to`.

    `op` is `alembic.op` or any alembic Operations. Offline (`--sql`) nothing can be read, so the steps begin after
    version `start`. `wake_up=False` leaves the NOTIFY trigger out, for applications that use two-phase commit.
    Raises SchemaError for a version that this package does not know.
    """
    naming = Naming(schema, prefix)
    _check_known(to)
    if _version(op, naming, start) < 1 <= to:
        _run(op, v01.upgrade(naming, wake_up=wake_up))


def downgrade(
    op: Operations, to: int = 0, *, schema: str | None = None, prefix: str = "outbox_", start: int = SCHEMA_VERSION
) -> None:
    """Take the outbox tables back to version `to`; 0 removes them, with the events that are in them.

    Raises SchemaError for a version that this package does not know, asked for or found.
    """
    naming = Naming(schema, prefix)
    _check_known(to)
    version = _version(op, naming, start)
    _check_known(version)
    if to < 1 <= version:
        _run(op, v01.downgrade(naming))


def make_schema(connection: sa.Connection, schema: str | None) -> None:
    """Create the schema of the tables unless it is there; the steps themselves leave that to their caller."""
    # Asked first: CREATE SCHEMA IF NOT EXISTS needs the privilege even when there is nothing to create.
    if schema and connection.scalar(sa.text("SELECT to_regnamespace(:schema)"), {"schema": schema}) is None:
        connection.execute(sa.schema.CreateSchema(schema))


def current_version(connection: sa.Connection, naming: Naming | None = None) -> int:
    """The schema version that the database says it has; 0 when there are no outbox tables."""
    table = (naming or Naming()).table("event")
    query = sa.text("SELECT obj_description(to_regclass(:table), 'pg_class')")
    comment = connection.execute(query, {"table": table}).scalar() or ""
    found = re.fullmatch(r"outbox-relay schema (\d+)", comment)
    return int(found[1]) if found else 0


def check_version(connection: sa.Connection, naming: Naming | None = None) -> None:
    """Raise SchemaError, naming the command to run, unless the tables are there and new enough."""
    naming = naming or Naming()
    version = current_version(connection, naming)
    if version < SCHEMA_VERSION:
        state = f"at version {version}" if version else "missing"
        raise SchemaError(
            f"the outbox tables ({naming.table('*')}) are {state}, this version needs {SCHEMA_VERSION}: "
            f"run `outbox-relay migrate{_options(naming)}`"
        )


def version_comment(version: int) -> str:
    """What COMMENT ON TABLE says of a schema version."""
    return f"outbox-relay schema {version}"


def make_include_object(schema: str | None = None, prefix: str = "outbox_") -> Callable[..., bool]:
    """An `include_object` for `context.configure` that hides the outbox tables of this schema and prefix."""
    names = {f"{Naming(schema, prefix).prefix}{name}" for name in (*TABLES, "alembic_version")}

    def include(item: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:  # noqa: ARG001
        table = item if type_ == "table" else getattr(item, "table", None)
        return table is None or table.name not in names or (schema is not None and table.schema != schema)

    return include


include_object = make_include_object()
"""Hides the outbox tables of the default names from a host's autogenerate."""


def _check_known(version: int) -> None:
    if not 0 <= version <= SCHEMA_VERSION:
        raise SchemaError(f"outbox schema version {version} is unknown here; this package knows 0 to {SCHEMA_VERSION}")


def _version(op: Operations, naming: Naming, offline: int) -> int:
    context = op.get_context()
    return offline if context.as_sql else current_version(context.connection, naming)


def _run(op: Operations, statements: list[str]) -> None:
    for statement in statements:
        op.execute(sa.text(statement.replace(":", r"\:")))


def _options(naming: Naming) -> str:
    schema = f" --schema {naming.schema}" if naming.schema else ""
    return schema + (f" --prefix {naming.prefix}" if naming.prefix != "outbox_" else "")
