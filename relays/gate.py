"""A server that is away stops everyone who needs it, and one of them at a time looks whether it is back."""

import logging
import threading
import time
from collections.abc import Callable

from outbox.errors import OutboxError
from relays.retry import Backoff

__all__ = ["Gate"]

logger = logging.getLogger(__name__)


class Gate:
    """Open while a server works. `fail` closes it; `wait` opens it again by probing with a growing backoff.

    The backoff starts anew only after `worked`: a server that lets us in and fails at once is not back.

    Parameters:
        name: what is away, for the log.
        probe: returns when the server is back, raises an OutboxError when it isn't.
        backoff: how long to wait between probes.
        stop: ends all waiting.
    """

    def __init__(self, name: str, probe: Callable[[], None], backoff: Backoff, stop: threading.Event) -> None:
        self._name, self._probe, self._backoff, self._stop = name, probe, backoff, stop
        self._open = threading.Event()
        self._open.set()
        self._prober = threading.Lock()
        self._state = threading.Lock()
        self._failures = 0
        self._since = 0.0
        self.epoch = 0
        """How many times it has closed: what was connected in an earlier epoch is not to be trusted."""

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def fail(self, error: OutboxError) -> None:
        """The server failed: everyone waits. One log line, however many threads report the same outage."""
        with self._state:
            if not self._open.is_set():
                return
            self._open.clear()
            self.epoch += 1
            if not self._failures:
                self._since = time.monotonic()
            self._failures += 1
        logger.warning("%s is away: %s", self._name, error, extra={"away": self._name, "failures": self._failures})

    def worked(self) -> None:
        """The server did what it is there for: the next outage starts with the shortest wait again."""
        if self._failures and self._open.is_set():
            with self._state:
                self._failures = 0
            logger.info(
                "%s works again after %.1f s", self._name, time.monotonic() - self._since, extra={"away": self._name}
            )

    def wait(self) -> bool:
        """Return True once the server is back, False when `stop` is set first. At once when it isn't away."""
        while not self._open.is_set():
            if self._stop.is_set():
                return False
            if self._prober.acquire(timeout=0.1):
                try:
                    self._try_once()
                finally:
                    self._prober.release()
        return not self._stop.is_set()

    def _try_once(self) -> None:
        if self._open.is_set() or self._stop.wait(self._backoff.delay(self._failures)):
            return
        try:
            self._probe()
        except OutboxError as error:
            self._failures += 1
            logger.warning(
                "%s is still away, next try within %.0f s: %s",
                self._name,
                self._backoff.limit(self._failures),
                error,
                extra={"away": self._name, "failures": self._failures},
            )
        else:
            self._open.set()
