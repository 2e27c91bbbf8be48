"""RabbitMQ for the tests: the first broker that this machine has to offer.

In this order: the one that OUTBOX_TEST_AMQP_URL names; one that listens on localhost:5672 and knows guest; Docker;
the program `rabbitmq-server`, started privately; and, in CI or with OUTBOX_TEST_APT=1, as root on Debian or Ubuntu,
that program after `apt-get install`.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pika.exceptions

from relays.demo.embedded import free_port
from relays.demo.guardian import Guardian
from tests.support.requirements import in_ci, unavailable

__all__ = ["PrivateRabbitMQ", "connect", "running_broker", "server_program", "temporary_queue"]

LOCAL = "amqp://guest:guest@localhost:5672/%2F"
DEBIAN_PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one in PATH insists on the user rabbitmq
STARTUP_TIMEOUT = 90.0


def connect(url: str) -> pika.BlockingConnection:
    """A blocking connection that gives up after a few seconds."""
    parameters = pika.URLParameters(url)
    parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = 5
    parameters.connection_attempts = 1
    return pika.BlockingConnection(parameters)


@contextmanager
def running_broker() -> Iterator[str]:
    """The address of a broker; skips, and in CI fails, when there is none."""
    if url := os.environ.get("OUTBOX_TEST_AMQP_URL"):
        yield url
    elif _answers(LOCAL):
        yield LOCAL
    elif _docker_answers():
        yield from _docker_broker()
    else:
        with PrivateRabbitMQ() as broker:
            yield broker.url


@contextmanager
def temporary_queue(url: str) -> Iterator[str]:
    """A durable queue with a name of its own; yields the name."""
    name = f"outbox-test-{secrets.token_hex(6)}"
    with connect(url) as connection:
        connection.channel().queue_declare(name, durable=True)
    try:
        yield name
    finally:
        # A connection of its own: the broker may have been restarted meanwhile.
        with connect(url) as connection:
            connection.channel().queue_delete(name)


class PrivateRabbitMQ:
    """A broker of our own, for tests that stop or kill it: own port, node name, data and port mapper (epmd)."""

    def __init__(self) -> None:
        self._program = server_program()
        self.port = free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "PrivateRabbitMQ":
        # Below /tmp whatever TMPDIR says: RabbitMQ's scripts can't cope with spaces.
        self._directory = Path(tempfile.mkdtemp(prefix="outbox-mq-", dir="/tmp"))
        self._guardian = Guardian(self._directory)
        (self._directory / "plugins").write_text("[].\n")
        (self._directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\ndisk_free_limit.absolute = 10MB\nlog.console = true\n"
        )
        self._environment = self._make_environment()
        # In the foreground and ours to end: the one that RabbitMQ would start stays behind as a daemon.
        epmd = ["epmd", "-port", self._environment["ERL_EPMD_PORT"], "-address", "127.0.0.1"]
        self._epmd = self._spawn(epmd)
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._epmd.kill()
        self._epmd.wait()
        self._guardian.watch()
        self._guardian.remove()

    def start(self) -> None:
        """Start the broker (again, with what it had stored) and wait until it answers."""
        self._process = self._spawn([str(self._program)])
        self._guardian.watch(self._process.pid, self._epmd.pid)
        deadline = time.monotonic() + STARTUP_TIMEOUT
        while not _answers(self.url):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"RabbitMQ did not start:\n{self._log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop the broker in good order (SIGTERM)."""
        self._end(signal.SIGTERM, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the broker as a crash would."""
        self._end(signal.SIGKILL)

    def keep_declared(self) -> None:
        """See that queues and exchanges outlive a `kill`: Mnesia confirms them before they are in its log file."""
        self.ctl("eval", "mnesia:sync_log().")

    def restart(self) -> None:
        """`stop` and `start`."""
        self.stop()
        self.start()

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl against this broker; returns what it prints."""
        program = self._program.with_name("rabbitmqctl")
        run = subprocess.run(
            [program, "--quiet", *arguments], env=self._environment, capture_output=True, text=True, timeout=60
        )
        if run.returncode != 0:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)} failed:\n{run.stdout}{run.stderr}")
        return run.stdout

    @property
    def _log(self) -> Path:
        return self._directory / "output"

    def _make_environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C.UTF-8",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the broker instead of waiting for it
            "HOME": str(self._directory),  # where Erlang keeps its cookie
            "ERL_EPMD_PORT": str(free_port()),
            "RABBITMQ_NODENAME": f"outbox-{secrets.token_hex(4)}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self._directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._directory / "logs"),
            "RABBITMQ_PID_FILE": str(self._directory / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._directory / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self._directory / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env=self._environment,
                start_new_session=True,
            )

    def _end(self, *signals: signal.Signals) -> None:
        if self._process is None:
            return
        for number in signals:
            self._process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
                break
        self._process = None
        self._guardian.watch(self._epmd.pid)


def server_program() -> Path:
    """The program `rabbitmq-server`, installed if that is allowed; skips, and in CI fails, when there is none."""
    if not (found := _installed_program()) and _may_install():
        _install()
        found = _installed_program()
    if not found:
        unavailable(
            "needs a RabbitMQ broker: set OUTBOX_TEST_AMQP_URL, start one on localhost:5672, start Docker, "
            "install rabbitmq-server, or set OUTBOX_TEST_APT=1 to have it installed (as root on Debian or Ubuntu)"
        )
    return found


def _installed_program() -> Path | None:
    if DEBIAN_PROGRAM.exists():
        return DEBIAN_PROGRAM
    found = shutil.which("rabbitmq-server")
    return Path(found) if found else None


def _may_install() -> bool:
    allowed = in_ci() or os.environ.get("OUTBOX_TEST_APT") == "1"
    return allowed and os.geteuid() == 0 and shutil.which("apt-get") is not None


def _install() -> None:
    """Install RabbitMQ; one process of the tests at a time."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    with (Path(tempfile.gettempdir()) / "outbox-test-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _installed_program():
            install = ["install", "--yes", "--no-install-recommends", "rabbitmq-server"]
            for arguments in (["update"], install):
                subprocess.run(["apt-get", "--quiet", *arguments], env=environment, check=True, timeout=600)


def _answers(url: str) -> bool:
    try:
        connect(url).close()
    except (pika.exceptions.AMQPError, OSError):
        return False
    return True


def _docker_answers() -> bool:
    """Whether there is a Docker engine to start the broker with."""
    try:
        run = subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return run.returncode == 0


def _docker_broker() -> Iterator[str]:
    from testcontainers.rabbitmq import RabbitMqContainer

    with RabbitMqContainer("rabbitmq:4") as container:
        yield f"amqp://guest:guest@{container.get_container_host_ip()}:{container.get_exposed_port(5672)}/%2F"
