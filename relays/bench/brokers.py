"""What the benchmark needs of a broker, and how to come by one."""

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from outbox.errors import ConfigurationError, MissingExtra
from relays.publishers import Message

__all__ = ["Broker", "open_broker"]


class Broker(Protocol):
    """Two queues of the same kind: one for the relay, one for what is sent one by one."""

    @property
    def queue(self) -> str:
        """The relay's."""
        ...

    @property
    def flags(self) -> Mapping[str, object]:
        """The settings with which a relay publishes there."""
        ...

    def send_one_by_one(self, messages: Sequence[Message]) -> float:
        """Send each when the one before is confirmed, in the form the relay gives them; returns the seconds it took."""
        ...

    def take(self, expected: int) -> Counter[str]:
        """Empty the relay's queue; returns how often each idempotency key was in it.

        `expected`: how many there should be; some queues can't say for sure that they are empty.
        """
        ...


def open_broker(
    target: str, flags: Mapping[str, object], config: Path | None, *, fifo: bool
) -> AbstractContextManager[Broker]:
    """A broker, to be entered; its queues are made then, and removed at the end of the `with` block.

    Raises ConfigurationError for an unknown target, MissingExtra for one whose packages are not installed.
    """
    name = f"outbox-bench-{secrets.token_hex(6)}"
    try:
        if target == "rabbitmq" and not fifo:
            from relays.bench.rabbitmq import open_rabbitmq

            return open_rabbitmq(flags, config, name)
        if target == "sqs":
            from relays.bench.sqs import open_sqs

            return open_sqs(name, fifo=fifo)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"--target {target} needs the package {error.name}: run `pip install 'outbox-relay[{target}]'`"
        ) from error
    if target == "rabbitmq":
        raise ConfigurationError("--fifo: only SQS has FIFO queues, this is --target rabbitmq")
    raise ConfigurationError(f"--target: bench knows rabbitmq and sqs, not {target!r}")
