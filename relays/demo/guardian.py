"""What ends a server and removes its directory when the process that started it is killed."""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["Guardian"]

# Its standard input ends when our process does, however that ends. (A parent-death signal would not do: it comes
# already when the *thread* that started the server ends, and only Linux has it.)
SCRIPT = """
while read -r line; do pids=$line; done
if [ -n "$pids" ]; then
    kill -QUIT $pids
    tries=100
    while kill -0 $pids && [ $tries -gt 0 ]; do sleep 0.1; tries=$((tries - 1)); done
    kill -KILL $pids  # a shell's background jobs ignore SIGQUIT, and what they start inherits that
fi
rm -rf "$0"
"""


class Guardian:
    """Watches over one directory and the processes that live in it, until `remove` or the end of this process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        reading, self._lifeline = os.pipe()
        with os.fdopen(reading, "rb") as stdin:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", SCRIPT, directory],
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )

    def watch(self, *pids: int) -> None:
        """These processes, and no others any more, are to be ended (SIGQUIT) with this one."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._lifeline, f"{' '.join(map(str, pids))}\n".encode())

    def remove(self) -> None:
        """End what is still watched, and remove the directory."""
        os.close(self._lifeline)
        self._process.wait()
        # Once more, should somebody have killed the guardian.
        shutil.rmtree(self._directory, ignore_errors=True)
