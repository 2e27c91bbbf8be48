"""Processes that end with ours, however that ends, and a directory that goes with them."""

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from outbox.errors import OutboxError
from relays.demo.guardian import Guardian

__all__ = ["Child", "ChildFailed", "Family", "clean_environment", "python"]

FOREIGN = ("OUTBOX_", "AWS_")
"""What these name is meant for a relay of the user's own."""


class ChildFailed(OutboxError):
    """A process of ours ended when it should not have, or was not ready in time; the message has its last words."""


class Child:
    """A process, and the file that its stderr goes to."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.process, self._log = name, process, log

    def __str__(self) -> str:
        return f"{self.name} (pid {self.process.pid})"

    def first_line(self, timeout: float) -> str:
        """What it says on stdout once it is ready. Raises ChildFailed if that is nothing, or not within the time."""
        output = self.process.stdout
        line = output.readline() if output and select.select([output], [], [], timeout)[0] else b""
        if not line:
            raise ChildFailed(f"{self} was not ready within {timeout:.0f} s, or ended{self._last_words()}")
        return line.decode().strip()

    def check(self) -> None:
        """Raise ChildFailed if it has ended."""
        status = self.process.poll()
        if status is not None:
            raise ChildFailed(f"{self} has ended with exit code {status}{self._last_words()}")

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")[-15:]
        text = "\n".join(lines).strip()
        return f": {text}" if text else ""


class Family:
    """Children and their directory; leaving the `with` block ends and removes them."""

    def __init__(self, patience: float) -> None:
        """`patience`: seconds that the children get to end in good order, all together."""
        self._patience = patience
        self._children: list[Child] = []

    def __enter__(self) -> "Family":
        self.directory = Path(tempfile.mkdtemp(prefix="outbox-demo-"))
        self._guardian = Guardian(self.directory)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end(*self._children)
        finally:
            for child in self._children:
                child.process.kill()
                child.process.wait()
            self._guardian.watch()
            self._guardian.remove()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Start a process, in a session of its own: Ctrl-C is for us, and we end it in our own time."""
        log = self.directory / f"{name}.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        self._watch()
        return child

    def end(self, *children: Child) -> None:
        """End them by SIGTERM and wait for that; who takes too long is killed."""
        deadline = time.monotonic() + self._patience
        for child in children:
            child.process.terminate()
        for child in children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            if child.process.stdout is not None:
                child.process.stdout.close()
        self._watch()

    def _watch(self) -> None:
        self._guardian.watch(*(child.process.pid for child in self._children if child.process.poll() is None))


def clean_environment(**variables: str) -> dict[str, str]:
    """Our environment for a child: without the user's own settings of relays and of AWS, with these variables."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return environment | variables


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with the interpreter that runs us."""
    return [sys.executable, "-m", module, *arguments]
