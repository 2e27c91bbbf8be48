"""The embedded PostgreSQL: it starts wherever it can, recovers, and leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from outbox import DatabaseError, MissingExtra
from relays.demo import embedded
from relays.demo.embedded import EmbeddedPostgres

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(durable=False) as server:
        yield server


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory that every user may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="outbox test ", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not in {timeout:g} s: {what}"
        time.sleep(0.02)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answer(server: EmbeddedPostgres, query: str) -> str:
    with psycopg.connect(server.url()) as connection:
        return str(connection.execute(query).fetchone()[0])


def test_a_killed_server_keeps_what_was_committed(server: EmbeddedPostgres) -> None:
    port = server.port
    with psycopg.connect(server.url()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS value")
    server.kill()
    assert not listens(port)
    server.start()
    assert server.port == port
    assert answer(server, "SELECT value FROM kept") == "42"


def test_a_restart_ends_sessions_and_comes_back_on_the_same_port(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.url()) as before:
        server.restart()
        with pytest.raises(psycopg.OperationalError):
            before.execute("SELECT 1")
    assert answer(server, "SELECT 1") == "1"


def test_nobody_gets_in_without_the_password(server: EmbeddedPostgres) -> None:
    url = sa.make_url(server.url())
    for password in ("", "guess"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(url.set(password=password).render_as_string(hide_password=False))
    assert answer(server, "SHOW listen_addresses") == "127.0.0.1"


def test_the_locale_of_the_machine_does_not_matter(server: EmbeddedPostgres) -> None:
    assert answer(server, "SELECT upper('é') || current_setting('server_encoding')") == "ÉUTF8"


def test_a_path_with_spaces_and_nothing_left_in_it(public_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(public_directory))
    with EmbeddedPostgres() as server:
        assert answer(server, "SHOW data_directory").startswith(str(public_directory))
        assert answer(server, "SHOW fsync") == "on"
    assert not listens(server.port)
    assert list(public_directory.iterdir()) == []


@pytest.mark.parametrize("name", ['$x `y` "z"', "closed"])
def test_a_temporary_directory_that_will_not_do(
    name: str, public_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = public_directory / name
    odd.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    with EmbeddedPostgres(durable=False) as server:
        assert answer(server, "SELECT 1") == "1"
    assert list(odd.iterdir()) == []


def test_a_port_that_is_taken_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", embedded.free_port()))
        taken.listen()
        ports = iter([taken.getsockname()[1], embedded.free_port()])
        monkeypatch.setattr(embedded, "free_port", lambda: next(ports))
        with EmbeddedPostgres(durable=False) as server:
            assert server.port != taken.getsockname()[1]
            assert answer(server, "SELECT 1") == "1"


def test_a_server_that_can_not_start_says_why(public_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(public_directory))
    with (
        pytest.raises(DatabaseError, match="shared_buffers"),
        EmbeddedPostgres(settings={"shared_buffers": "plenty"}),
    ):
        pytest.fail("it started")
    assert list(public_directory.iterdir()) == []


def test_a_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "WHEEL", "no_such_wheel")
    with pytest.raises(MissingExtra, match=r"pip install 'outbox-relay\[demo\]'"), EmbeddedPostgres():
        pytest.fail("it started")


OWNER = """
import sys, time
from relays.demo.embedded import EmbeddedPostgres
with EmbeddedPostgres(durable=False) as server:
    print(server.port, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_goes_down_with_the_process_that_started_it(number: signal.Signals, public_directory: Path) -> None:
    environment = os.environ | {"TMPDIR": str(public_directory), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=environment) as owner:
        port = int(owner.stdout.readline())
        assert listens(port)
        owner.send_signal(number)
    wait_until(lambda: not listens(port), "the server goes down")
    wait_until(lambda: not list(public_directory.iterdir()), "its directory is removed")
