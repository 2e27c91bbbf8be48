"""A publisher that only remembers: for tests of this project and of its users."""

import logging
import threading
from collections.abc import Callable, Sequence

from pydantic_settings import BaseSettings, SettingsConfigDict

from outbox.errors import Unavailable
from relays.publishers import (
    Confirmed,
    Deadline,
    Deferred,
    Interrupted,
    Message,
    Options,
    Outcome,
    Plugin,
)
from relays.schedule import KeyedSchedule

__all__ = ["MemoryPublisher", "MemorySettings", "plugin"]

logger = logging.getLogger(__name__)


class MemorySettings(BaseSettings):
    """Nothing to set."""

    model_config = SettingsConfigDict(env_prefix="OUTBOX_MEMORY_")


class MemoryPublisher:
    """Keeps what is published, in order. Every method may be called by any thread.

    Parameters:
        options: as for every publisher.
        fail: what becomes of a message instead of being published; None publishes it. By idempotency key:
            `fail=lambda message: {"key-1": Retry("full")}.get(message.idempotency_key)`. It may raise Unavailable:
            the broker goes away at that message.
    """

    def __init__(
        self, options: Options | None = None, *, fail: Callable[[Message], Outcome | None] | None = None
    ) -> None:
        self.fail = fail
        self.outage: str | None = None
        """Set a reason to make the broker unavailable, None to bring it back."""
        self._options = options or Options()
        self._lock = threading.Lock()
        self._published: list[Message] = []
        self._closed = False

    @property
    def published(self) -> list[Message]:
        """What has arrived so far, in order: a copy."""
        with self._lock:
            return list(self._published)

    def open(self) -> None:
        self._check()

    def destination(self, topic: str) -> str:
        return self._options.routes.resolve(topic) or topic

    def publish(self, messages: Sequence[Message], deadline: Deadline) -> Sequence[Outcome]:
        schedule = KeyedSchedule([message.key for message in messages], self._options.key_window)
        outcomes: list[Outcome] = [Deferred()] * len(messages)
        while (position := schedule.take()) is not None:
            try:
                self._check()
                if deadline.expired():
                    return outcomes
                outcomes[position] = self._send(messages[position])
            except Unavailable as error:
                known = [outcome if isinstance(outcome, Confirmed) else Deferred() for outcome in outcomes]
                raise Interrupted(str(error), known) from error
            if isinstance(outcomes[position], Confirmed):
                schedule.confirmed(position)
            else:
                schedule.failed(position)
        return outcomes

    def close(self, timeout: float) -> None:  # noqa: ARG002 (nothing here takes time)
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise Unavailable("the publisher is closed")
        if self.outage is not None:
            raise Unavailable(self.outage)

    def _send(self, message: Message) -> Outcome:
        outcome = (self.fail and self.fail(message)) or Confirmed()
        if isinstance(outcome, Confirmed):
            with self._lock:
                self._published.append(message)
        return outcome


def _make(settings: MemorySettings, options: Options) -> MemoryPublisher:  # noqa: ARG001 (there are none)
    logger.warning("--target memory sends nothing anywhere: events are gone with this process")
    return MemoryPublisher(options)


plugin = Plugin(settings=MemorySettings, make=_make)
