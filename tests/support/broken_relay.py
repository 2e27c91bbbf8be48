"""A relay with a deliberately broken publisher, for tests of what judges relays.

`python -m tests.support.broken_relay KIND`, with the settings of a relay in the environment.
"""

import signal
import sys
import threading
from collections.abc import Sequence

from outbox import uuid7
from outbox.database import make_engine
from outbox.store import Store
from relays import wiring
from relays.publishers import Confirmed, Deadline, Message, Outcome, Publisher
from relays.settings import RelaySettings
from relays.sources import load
from relays.supervisor import Relay

__all__ = ["KINDS", "main"]


class Broken:
    """Passes everything on; its subclasses do not."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._lock = threading.Lock()

    def open(self) -> None:
        self._publisher.open()

    def destination(self, topic: str) -> str:
        return self._publisher.destination(topic)

    def close(self, timeout: float) -> None:
        self._publisher.close(timeout)


class Loses(Broken):
    """Reports every fifth message as confirmed that was never sent."""

    _seen = 0

    def publish(self, messages: Sequence[Message], deadline: Deadline) -> Sequence[Outcome]:
        outcomes: list[Outcome] = [Confirmed()] * len(messages)
        sent = [position for position in range(len(messages)) if self._counts()]
        reported = self._publisher.publish([messages[position] for position in sent], deadline)
        for position, outcome in zip(sent, reported, strict=True):
            outcomes[position] = outcome
        return outcomes

    def _counts(self) -> bool:
        with self._lock:
            self._seen += 1
            return self._seen % 5 != 0


class Invents(Broken):
    """Sends the first message of a batch again as if it were another one."""

    def publish(self, messages: Sequence[Message], deadline: Deadline) -> Sequence[Outcome]:
        extra = messages[0]._replace(idempotency_key=uuid7(), key=None)
        return self._publisher.publish([*messages, extra], deadline)[: len(messages)]


class Reorders(Broken):
    """Keeps the first message of each key back until the second one has been sent."""

    def __init__(self, publisher: Publisher) -> None:
        super().__init__(publisher)
        self._kept: dict[str | None, Message | None] = {}

    def publish(self, messages: Sequence[Message], deadline: Deadline) -> Sequence[Outcome]:
        sent: list[Message] = []
        for message in messages:
            with self._lock:
                if message.key not in self._kept:
                    self._kept[message.key] = message
                    continue
                kept, self._kept[message.key] = self._kept[message.key], None
            sent += [message, *([kept] if kept else [])]
        self._publisher.publish(sent, deadline)
        return [Confirmed()] * len(messages)


KINDS = {"loses": Loses, "invents": Invents, "reorders": Reorders}


def main(kind: str) -> None:
    """Run until SIGTERM."""
    settings = load(RelaySettings, {}, None, None)
    publisher = KINDS[kind](wiring.make_publisher(settings, {}, None))
    engine = make_engine(settings.url, application_name="broken relay")
    relay = Relay(wiring.engine_config(settings), Store(settings.naming), publisher, engine)
    signal.signal(signal.SIGTERM, lambda *_: relay.stop())
    relay.run()


if __name__ == "__main__":
    main(sys.argv[1])
