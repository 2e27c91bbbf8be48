"""URLs, engines and translated errors: what needs no server, and what a real one says."""

import socket
import traceback
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
import sqlalchemy as sa

from outbox import ConfigurationError, DatabaseError, DatabaseRefused, DatabaseUnreachable, OutboxError, SchemaError
from outbox.database import make_engine, parse_url, translated

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "scheme",
    ["postgres", "postgresql", "postgresql+psycopg", "postgresql+psycopg2", "postgresql+asyncpg"],
)
def test_every_usual_scheme_means_psycopg(scheme: str) -> None:
    url = parse_url(f" {scheme}://app:{SECRET}@db:5433/shop ")
    assert url == sa.make_url(f"postgresql+psycopg://app:{SECRET}@db:5433/shop")


def test_parameters_of_libpq_are_kept_and_those_of_asyncpg_translated() -> None:
    assert parse_url("postgresql://db/shop?sslmode=verify-full&options=-c%20jit%3Doff").query == {
        "sslmode": "verify-full",
        "options": "-c jit=off",
    }
    asyncpg = parse_url("postgresql+asyncpg://db/shop?ssl=require&prepared_statement_cache_size=0")
    assert asyncpg.query == {"sslmode": "require"}
    assert parse_url("postgresql+asyncpg://db/shop?ssl=true").query == {"sslmode": "require"}


def test_a_password_among_the_parameters_is_hidden_like_any_other() -> None:
    url = parse_url(f"postgresql://app@db/shop?password={SECRET}&connect_timeout=3")
    assert url.password == SECRET
    assert SECRET not in str(url)
    assert url.query == {"connect_timeout": "3"}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (f"mysql://app:{SECRET}@db/shop", "must begin with postgresql://"),
        (f"app:{SECRET}@db/shop", "is not a URL"),
        (f"postgresql://app:{SECRET}@db:port/shop", "is not a URL"),
        (f"postgresql://app:{SECRET}@db:5432,db2:5432/shop", "?host=A:5432&host=B:5432"),
        (f"postgresql://app:x@{SECRET}:y@db/shop", "is not a URL"),
        (f"postgresql://app:x@{SECRET}@db/shop", "%40"),
        (f"postgresql://app:{SECRET}@db/shop?sslmod=require", 'invalid connection option "sslmod"'),
        ("", "is not a URL"),
    ],
)
def test_a_wrong_url_names_the_setting_and_shows_no_password(text: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_url(text)
    assert "OUTBOX_DATABASE_URL" in str(caught.value)
    assert hint in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("28P01", DatabaseRefused),
        ("28000", DatabaseRefused),
        ("3D000", DatabaseRefused),
        ("42501", DatabaseRefused),
        ("57P01", DatabaseUnreachable),
        ("57P02", DatabaseUnreachable),
        ("57P03", DatabaseUnreachable),
        ("57P05", DatabaseUnreachable),
        ("57014", DatabaseUnreachable),
        ("53300", DatabaseUnreachable),
        ("08006", DatabaseUnreachable),
        ("40001", DatabaseUnreachable),
        ("40P01", DatabaseUnreachable),
        ("55P03", DatabaseUnreachable),
        ("25006", DatabaseUnreachable),
        ("42P01", SchemaError),
        ("42703", SchemaError),
        ("3F000", SchemaError),
        ("22012", DatabaseError),
        ("23505", DatabaseError),
        ("XX000", DatabaseError),
    ],
)
def test_what_an_sqlstate_means(state: str, expected: type[OutboxError]) -> None:
    driver_error = psycopg.errors.lookup(state)("first line\nsecond line")
    with pytest.raises(OutboxError) as caught, translated():
        raise driver_error
    assert type(caught.value) is expected
    assert caught.value.__cause__ is driver_error
    assert "first line" in str(caught.value)
    assert "\n" not in str(caught.value)


SERVER = 'connection failed: connection to server at "10.0.0.1", port 5432 failed: FATAL:  '
SEVERAL = """connection failed: connection to server at "::1", port 5432 failed: Connection refused
\tIs the server running on that host and accepting TCP/IP connections?
Multiple connection attempts failed. All failures were:
- host: 'db', hostaddr: '::1': connection failed: connection to server at "::1", port 5432 failed: Refused
- host: 'db', hostaddr: '10.0.0.1': connection failed: connection to server at "10.0.0.1", port 5432 failed:\
 FATAL:  no pg_hba.conf entry for host "10.0.0.1"
"""
BROKEN = (
    "consuming input failed: server closed the connection unexpectedly\n\tThis probably means the server terminated"
)


@pytest.mark.parametrize(
    ("words", "expected", "reason"),
    [
        (SERVER + 'password authentication failed for user "app"', DatabaseRefused, 'failed for user "app"'),
        (SERVER + "the database system is starting up", DatabaseUnreachable, ": the database system is starting up"),
        (SERVER + "sorry, too many clients already", DatabaseUnreachable, ": sorry, too many clients already"),
        (SEVERAL, DatabaseRefused, ': no pg_hba.conf entry for host "10.0.0.1"'),
        (BROKEN, DatabaseUnreachable, "server closed the connection unexpectedly"),
        # PgBouncer
        (
            "FATAL:  server login has been failing, try again",
            DatabaseUnreachable,
            ": server login has been failing, try again",
        ),
        ("FATAL:  no such database: shop", DatabaseRefused, ": no such database: shop"),
    ],
)
def test_what_words_without_an_sqlstate_mean(words: str, expected: type[OutboxError], reason: str) -> None:
    """libpq gives no SQLSTATE for a connection that was never made, or is no more."""
    with pytest.raises(OutboxError) as caught, translated():
        raise psycopg.OperationalError(words)
    assert type(caught.value) is expected
    assert str(caught.value).endswith(reason)


def test_other_exceptions_pass() -> None:
    with pytest.raises(ZeroDivisionError), translated():
        _ = 1 / 0
    with pytest.raises(sa.exc.ArgumentError), translated():
        sa.make_url("nonsense")


def connect(url: sa.URL) -> None:
    with translated(), make_engine(url, "outbox-test").connect():
        pass


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


def test_a_silent_server_is_unreachable(silent_port: int) -> None:
    with pytest.raises(DatabaseUnreachable, match=f"shop at 127.0.0.1:{silent_port} as user app .OUTBOX_DATABASE_URL."):
        connect(parse_url(f"postgresql://app:{SECRET}@127.0.0.1:{silent_port}/shop?connect_timeout=2"))


def test_a_closed_port_and_an_unknown_host_are_unreachable() -> None:
    with pytest.raises(DatabaseUnreachable, match="Connection refused"):
        connect(parse_url("postgresql://127.0.0.1:1/shop"))
    with pytest.raises(DatabaseUnreachable, match=r"nowhere\.invalid"):
        connect(parse_url("postgresql://nowhere.invalid/shop"))


def test_a_wrong_password_a_missing_role_and_a_missing_database_are_refused(database_url: str) -> None:
    url = parse_url(database_url)
    for wrong in (
        url.set(password=SECRET),
        url.set(username="nobody-of-that-name", password=SECRET),
        url.set(database="no_such_database"),
    ):
        with pytest.raises(DatabaseRefused) as caught:
            connect(wrong)
        assert f"{wrong.database} at {wrong.host}:{wrong.port} as user {wrong.username}" in str(caught.value)
        assert SECRET not in str(caught.value)
        assert (url.password or SECRET) not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_database_of_a_failed_statement_is_named(database_url: str) -> None:
    url = parse_url(database_url)
    with pytest.raises(SchemaError, match=f'{url.database}.*"missing_table" does not exist.*outbox-relay migrate'):
        execute(url, "SELECT * FROM missing_table")
    with pytest.raises(DatabaseUnreachable, match=f"{url.database}.*terminating connection"):
        execute(url, "SELECT pg_terminate_backend(pg_backend_pid())")


def test_values_never_show_in_an_error(database_url: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        execute(parse_url(database_url), "SELECT 1 / 0, :payload", payload=SECRET)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def execute(url: sa.URL, statement: str, **values: object) -> sa.Row[tuple[object, ...]]:
    with translated(), make_engine(url, "outbox-test").connect() as connection:
        return connection.execute(sa.text(statement), values).one()


def test_isolation_and_session(database_url: str) -> None:
    """A stricter default of the database does not matter, and nothing was SET that a pooler would pass on."""
    url = parse_url(database_url)
    assert url.database
    with make_engine(url, "outbox-test").connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        quoted = connection.dialect.identifier_preparer.quote(url.database)
        connection.execute(sa.text(f"ALTER DATABASE {quoted} SET default_transaction_isolation TO 'repeatable read'"))
    row = execute(
        url,
        "SELECT current_setting('transaction_isolation'), current_setting('default_transaction_isolation'),"
        " current_setting('application_name'), current_setting('client_encoding')",
    )
    assert tuple(row) == ("read committed", "repeatable read", "outbox-test", "UTF8")
    changed = "SELECT array_agg(name) FROM pg_settings WHERE source = 'session' AND name NOT LIKE 'transaction_%'"
    assert execute(url, changed)[0] is None


def test_parameters_of_the_url_win_over_ours(database_url: str) -> None:
    url = parse_url(database_url).update_query_dict({"application_name": "mine"})
    assert execute(url, "SELECT current_setting('application_name')")[0] == "mine"


def test_no_statement_is_prepared(database_url: str) -> None:
    """A pooler that shares connections by the transaction would hand them to others."""
    with make_engine(parse_url(database_url), "outbox-test").connect() as connection:
        for _ in range(10):
            connection.execute(sa.text("SELECT 1"))
        assert connection.scalar(sa.text("SELECT count(*) FROM pg_prepared_statements")) == 0
