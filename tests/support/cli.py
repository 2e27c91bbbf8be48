"""The command line as a user meets it: a process of its own, with an environment that says nothing of the outbox."""

import os
import subprocess
import sys
from dataclasses import dataclass

__all__ = ["Result", "command", "environment", "run_cli"]


@dataclass(frozen=True)
class Result:
    """What a process left behind."""

    code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The one line that a failure has to be."""
        assert "Traceback" not in self.stderr, self.stderr
        errors = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, self.stderr
        return errors[0].removeprefix("error: ")


def command(*arguments: str, before: str = "") -> list[str]:
    """How to start it with this interpreter; `before` is Python code to run first."""
    return [sys.executable, "-c", f"{before}\nfrom relays.cli import main\nmain()", *arguments]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without outbox settings, then `variables`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")} | variables


def run_cli(*arguments: str, before: str = "", timeout: float = 60, **variables: str) -> Result:
    """Run it to its end."""
    run = subprocess.run(
        command(*arguments, before=before),
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Result(run.returncode, run.stdout, run.stderr)
