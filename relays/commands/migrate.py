"""`outbox-relay migrate`: make the outbox tables, or bring them up to date."""

# ruff: noqa: ARG001 (typer reads the signature; the values are taken from the context, where None means not given)

import sys
from typing import Annotated

import sqlalchemy as sa
import typer
from alembic.migration import MigrationContext
from alembic.operations import Operations

from outbox import migrations
from outbox.database import make_engine, translated
from outbox.naming import Naming
from relays.commands.options import ConfigFile, DatabaseUrl, Debug, Prefix, Schema, config_path, given
from relays.exit_codes import UsageError
from relays.settings import RelaySettings
from relays.sources import load

__all__ = ["migrate"]

LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('outbox-relay migrate', 0))"


def migrate(
    context: typer.Context,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    prefix: Prefix = None,
    to: Annotated[
        int | None,
        typer.Option(
            help=f"Schema version to end at, if not {migrations.SCHEMA_VERSION} or newer; 0 removes the tables.",
            min=0,
            max=migrations.SCHEMA_VERSION,
        ),
    ] = None,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL that makes the tables; connect to nothing.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 4 when the tables are missing or too old.")
    ] = False,
    no_wake_up: Annotated[
        bool,
        typer.Option("--no-wake-up", help="Leave out the NOTIFY trigger, which two-phase commit can't bear: poll."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove tables without asking.")] = False,
    config: ConfigFile = None,
    debug: Debug = None,
) -> None:
    """Make the outbox tables, or bring them to the version that this package needs. Safe to run at any time."""
    if sql and check:
        raise UsageError("--sql and --check exclude each other")
    flags = given(context)
    settings = load(RelaySettings, flags, config_path(flags), None)
    if sql:
        _print_sql(settings.naming, to, wake_up=not no_wake_up)
        return
    engine = make_engine(settings.url, application_name="outbox-relay migrate")
    if check:
        _check(engine, settings.naming)
        return
    before, after = _change(engine, settings.naming, to, wake_up=not no_wake_up, confirmed=yes)
    done = f"is at version {after}" if before == after else f"went from version {before} to {after}"
    typer.echo(f"outbox schema ({settings.naming.table('*')}) {done}", err=True)


def _check(engine: sa.Engine, naming: Naming) -> None:
    with translated(), engine.connect() as connection:
        migrations.check_version(connection, naming)
        typer.echo(f"outbox schema is at version {migrations.current_version(connection, naming)}", err=True)


def _change(engine: sa.Engine, naming: Naming, to: int | None, *, wake_up: bool, confirmed: bool) -> tuple[int, int]:
    """In one transaction, one process at a time. Returns the versions before and after.

    Nobody goes back without being told to: tables of a newer package stay as they are.
    """
    with translated(), engine.begin() as connection:
        connection.execute(sa.text(LOCK))
        before = migrations.current_version(connection, naming)
        op = Operations(MigrationContext.configure(connection))
        to = max(before, migrations.SCHEMA_VERSION) if to is None else to
        if to < before:
            _confirm_removal(to, confirmed=confirmed)
            migrations.downgrade(op, to, schema=naming.schema, prefix=naming.prefix)
        elif to > before:
            migrations.make_schema(connection, naming.schema)
            migrations.upgrade(op, to, schema=naming.schema, prefix=naming.prefix, wake_up=wake_up)
        return before, migrations.current_version(connection, naming)


def _confirm_removal(to: int, *, confirmed: bool) -> None:
    if confirmed:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"--to {to} removes tables and the events in them: add --yes")
    typer.confirm(f"--to {to} removes tables and the events in them. Go on?", abort=True, err=True)


def _print_sql(naming: Naming, to: int | None, *, wake_up: bool) -> None:
    if to == 0:
        raise UsageError("--sql prints how to make the tables, not how to remove them")
    to = migrations.SCHEMA_VERSION if to is None else to
    typer.echo("BEGIN;\n")
    if naming.schema:
        typer.echo(f"CREATE SCHEMA IF NOT EXISTS {naming.schema};\n")
    context = MigrationContext.configure(dialect_name="postgresql", opts={"as_sql": True, "output_buffer": sys.stdout})
    migrations.upgrade(Operations(context), to, schema=naming.schema, prefix=naming.prefix, wake_up=wake_up)
    typer.echo("COMMIT;")
