"""The way to the database: URLs, engines, and what the driver's exceptions mean.

SQLSTATE classes are those of PostgreSQL's appendix A ("Error Codes").
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import make_conninfo

from outbox.errors import ConfigurationError, DatabaseError, DatabaseRefused, DatabaseUnreachable, SchemaError

__all__ = ["make_engine", "parse_url", "translated"]

SETTING = "OUTBOX_DATABASE_URL"

DRIVERS = {
    "postgres",
    "postgresql",
    "postgresql+asyncpg",
    "postgresql+psycopg",
    "postgresql+psycopg2",
    "postgresql+psycopg_async",
}

# What SQLAlchemy's asyncpg dialect and asyncpg itself take in a URL, and libpq does not.
ASYNCPG_OPTIONS = [
    "command_timeout",
    "max_cacheable_statement_size",
    "max_cached_statement_lifetime",
    "prepared_statement_cache_size",
    "prepared_statement_name_func",
    "statement_cache_size",
    "timeout",
]

# A peer that vanished without a word is noticed within 25 seconds: below the default lease.
CONNECT_ARGS: dict[str, str | int] = {
    "client_encoding": "utf8",
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}

MISSING = ("42P01", "42703", "3F000")
"""SQLSTATEs of tables, columns and schemas that are not there."""

REFUSED = ("28", "3D000", "42501", "57P04")
"""SQLSTATEs (or their classes): authorisation, no such database, insufficient privilege, database dropped."""

PASSING = ("08", "40", "53", "57", "55P03", "25006")
"""Connection, rollback (serialisation, deadlock), resources, operator intervention, lock timeout, read-only standby."""

# A connection that was never made has no SQLSTATE in libpq. These are words of the server, of libpq and of PgBouncer.
REFUSAL = re.compile(
    r"authentication failed|does not exist|no pg_hba\.conf entry|pg_hba\.conf rejects|not permitted to log in"
    r"|no password|permission denied|not currently accepting connections|no such (user|database)|certificate"
    r"|SSL was required|unrecognized configuration parameter|unsupported startup parameter",
    re.IGNORECASE,
)


def parse_url(text: str) -> sa.URL:
    """The URL of a PostgreSQL database, whatever driver it names, as one for psycopg.

    Takes postgresql://, postgres:// and postgresql+(psycopg|psycopg2|psycopg_async|asyncpg)://, with libpq's
    parameters (asyncpg's `ssl` becomes `sslmode`, its other ones are dropped).
    Raises ConfigurationError, which never quotes the URL: there may be a password in it.
    """
    try:
        url = sa.make_url(text.strip())
    except (sa.exc.ArgumentError, ValueError):  # its text, and the ValueError's, may hold a part of the password
        raise ConfigurationError(
            f"{SETTING} is not a URL of the form postgresql://USER:PASSWORD@HOST:PORT/DATABASE; "
            "several hosts are written ?host=A:5432&host=B:5432"
        ) from None
    if url.drivername not in DRIVERS:
        raise ConfigurationError(f"{SETTING} must begin with postgresql://, not with {url.drivername}://")
    if "@" in (url.host or ""):
        raise ConfigurationError(f"{SETTING}: write an @ in the user name or password as %40")
    if url.drivername == "postgresql+asyncpg":
        url = _without_asyncpg_options(url)
    if "password" in url.query:  # where SQLAlchemy would not hide it
        url = url.set(password=str(url.query["password"])).difference_update_query(["password"])
    url = url.set(drivername="postgresql+psycopg")
    _check_parameters(url)
    return url


def make_engine(url: sa.URL, application_name: str) -> sa.Engine:
    """An engine for the relay's own connections; `url` as `parse_url` makes it, whose parameters win over ours.

    READ COMMITTED is part of every BEGIN, for under a stricter default of the database claims would fail to
    serialise. Nothing is set for the session and nothing prepared, so that a pooler may share the connection by the
    transaction; and a plan made while the tables were empty is not kept for when they are full.
    """
    defaults = CONNECT_ARGS | {"application_name": application_name}
    engine = sa.create_engine(
        url,
        poolclass=sa.NullPool,  # a worker keeps its connection; what went bad must not come back from a pool
        isolation_level="READ COMMITTED",
        hide_parameters=True,  # payloads are no business of a log
        connect_args={name: value for name, value in defaults.items() if name not in url.query}
        | {"prepare_threshold": None},
    )
    where = _where(url)

    @sa.event.listens_for(engine, "handle_error")
    def locate(context: sa.ExceptionContext) -> None:
        context.original_exception.add_note(where)

    return engine


@contextmanager
def translated() -> Iterator[None]:
    """Raise what SQLAlchemy and psycopg raise in this block as the exceptions of `outbox.errors`, with their cause."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _translate(error.orig or error) from error
    except psycopg.Error as error:
        raise _translate(error) from error


def _without_asyncpg_options(url: sa.URL) -> sa.URL:
    ssl = url.query.get("ssl")
    url = url.difference_update_query([*ASYNCPG_OPTIONS, "ssl"])
    return url if ssl is None else url.update_query_dict({"sslmode": "require" if ssl in ("true", "True") else ssl})


def _check_parameters(url: sa.URL) -> None:
    try:
        make_conninfo(**{name: str(value) for name, value in url.query.items()})
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(f"{SETTING}: {_first_line(str(error))}") from error


def _where(url: sa.URL) -> str:
    """Names what an operator has to look at; parts that the URL leaves to libpq's own environment are left out."""
    hosts = url.query.get("host", ())
    host = url.host or ",".join([hosts] if isinstance(hosts, str) else hosts)
    server = f"{host}:{url.port or 5432}" if url.host else host
    return " ".join(
        [f"database {url.database or 'of the default name'}"]
        + ([f"at {server}"] if server else [])
        + ([f"as user {url.username}"] if url.username else [])
        + [f"({SETTING})"]
    )


def _translate(error: BaseException) -> DatabaseError | SchemaError:
    state: str | None = getattr(error, "sqlstate", None)
    message = ": ".join([*getattr(error, "__notes__", ["database"])[:1], _reason(error)])
    if state is None:
        if isinstance(error, psycopg.OperationalError):
            return (DatabaseRefused if REFUSAL.search(str(error)) else DatabaseUnreachable)(message)
        return DatabaseError(message)
    if state in MISSING:
        return SchemaError(f"{message}: run `outbox-relay migrate` (with the relay's --schema and --prefix)")
    if state.startswith(REFUSED):
        return DatabaseRefused(message)
    return (DatabaseUnreachable if state.startswith(PASSING) else DatabaseError)(message)


def _reason(error: BaseException) -> str:
    """One line for people: the server's own words where there are some, without the driver's frame around them."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return error.diag.message_primary  # and not the detail, which may quote the row
    lines = str(error).splitlines()
    telling = next((line for line in lines if REFUSAL.search(line)), lines[0] if lines else type(error).__name__)
    return re.sub(r"^(.*?connection to server .*? failed: )?(FATAL: +)?", "", telling).strip()


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
