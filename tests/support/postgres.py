"""PostgreSQL for the tests: databases of their own on the embedded server, or on one that the environment names."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psycopg
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from psycopg import sql

from outbox import MissingExtra, migrations
from relays.demo.embedded import EmbeddedPostgres
from tests.support.requirements import unavailable

__all__ = [
    "LocalPostgres",
    "PostgresServer",
    "RunningPostgres",
    "WheelPostgres16",
    "migrate",
    "running_server",
    "sqlalchemy_url",
    "temporary_database",
]


class PostgresServer(Protocol):
    """What a test needs of a server."""

    def url(self, dbname: str = "postgres") -> str:
        """The address of a database, as `postgresql://`, for a role that may do everything."""
        ...


class RunningPostgres:
    """A server that somebody else has started."""

    def __init__(self, url: str) -> None:
        self._url = sa.make_url(url).set(drivername="postgresql")

    def url(self, dbname: str = "postgres") -> str:
        return self._url.set(database=dbname).render_as_string(hide_password=False)


class WheelPostgres16(EmbeddedPostgres):
    """A private server of the other version that the wheel carries."""

    _installation = "pginstall"

    def _initdb_options(self) -> list[str]:
        return ["--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C", "--auth=scram-sha-256"]


class LocalPostgres(WheelPostgres16):
    """A private server from binaries that are installed on this machine."""

    def __init__(self, programs: Path) -> None:
        super().__init__(durable=False)
        self._local = programs

    def _programs(self) -> Path:
        return self._local


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """The server of OUTBOX_TEST_POSTGRES_URL, or else an embedded one of our own."""
    if url := os.environ.get("OUTBOX_TEST_POSTGRES_URL"):
        yield RunningPostgres(url)
        return
    server = EmbeddedPostgres(durable=False)
    try:
        server.__enter__()
    except MissingExtra as error:
        unavailable(str(error))
    try:
        yield server
    finally:
        server.__exit__(None, None, None)


@contextmanager
def temporary_database(server: PostgresServer, template: str = "template0") -> Iterator[str]:
    """A database of its own; yields its name."""
    name = f"outbox_test_{secrets.token_hex(6)}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
    _execute(server, create)
    try:
        yield name
    finally:
        _execute(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def migrate(url: str) -> None:
    """Bring a database to the newest schema version, the way a host application's own revision does."""
    engine = sa.create_engine(sqlalchemy_url(url))
    with engine.begin() as connection:
        migrations.upgrade(Operations(MigrationContext.configure(connection)), to=migrations.SCHEMA_VERSION)
    engine.dispose()


def sqlalchemy_url(url: str) -> str:
    """The same address with the driver named, as SQLAlchemy takes it."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def _execute(server: PostgresServer, statement: sql.Composable) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(statement)
