"""What a relay needs of a broker: the `Publisher` protocol and the outcomes it reports.

A publisher is made by a `Plugin` that is registered in the entry-point group `outbox.publishers` under the name that
`--target` takes. `tests/contract/publisher_contract.py` holds the behaviour that every publisher has to show.
"""

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from pydantic_settings import BaseSettings

from outbox.codecs import HeaderValue
from outbox.errors import Unavailable
from relays.routing import Routes

__all__ = [
    "Confirmed",
    "Deadline",
    "Deferred",
    "Interrupted",
    "Message",
    "Options",
    "Outcome",
    "Paused",
    "Plugin",
    "Publisher",
    "Rejected",
    "Retry",
    "wire_headers",
]


class Message(NamedTuple):
    """An event as a publisher sees it: everything that goes on the wire, nothing of the table."""

    idempotency_key: str
    key: str | None
    topic: str
    type: str
    payload: bytes
    content_type: str
    headers: dict[str, HeaderValue] | None
    created_at: dt.datetime
    resends: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker has taken responsibility for this very message."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The broker refused this message now; the attempt is charged and its key waits."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """No broker of this kind will ever take this message: it goes to the dead-letter table."""

    reason: str


@dataclass(frozen=True, slots=True)
class Paused:
    """The destination is at fault, not the message: publishing to it pauses and nobody is charged."""

    reason: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """Not sent: an earlier message of its key did not go, the lease ran out, or the broker went away first."""


Outcome = Confirmed | Retry | Rejected | Paused | Deferred


@dataclass
class Interrupted(Unavailable):
    """The broker went away in the middle of a batch; `outcomes` says, message by message, what is known.

    What is not known to be confirmed is `Deferred`. Nobody is charged.
    """

    reason: str
    outcomes: Sequence[Outcome] = field(default=(), repr=False)

    def __str__(self) -> str:
        return self.reason


class Deadline(Protocol):
    """Until when a worker may send: it ends with the lease, also for a process that was frozen meanwhile."""

    def expired(self) -> bool:
        """Whether nothing more may be sent. Cheap and safe in any thread: asked before every single send."""
        ...


class Publisher(Protocol):
    """A broker as the engine uses it. All methods block; `publish` is called by several threads at once."""

    def open(self) -> None:
        """Connect and verify credentials and the destinations that are known; called at start and after an outage.

        Does nothing when all is well already. Sends no message. Raises BrokerRefused for what waiting won't mend
        (credentials, missing exchange or queue of the settings), Unavailable for what it may.
        """
        ...

    def destination(self, topic: str) -> str:
        """Where events of this topic go, as an operator would name it. Depends on nothing but topic and settings."""
        ...

    def publish(self, messages: Sequence[Message], deadline: Deadline) -> Sequence[Outcome]:
        """Send what may be sent and wait for the broker's word: one outcome per message, in the order given.

        Messages of one key are sent in the order given, each only after its predecessor is confirmed. Nothing is
        sent once `deadline` has expired: what remains is Deferred. Bounded in time by the publisher's own confirm
        timeout. Raises Interrupted (an Unavailable) when the broker as a whole fails.
        """
        ...

    def close(self, timeout: float) -> None:
        """Disconnect within `timeout` seconds. Nothing is lost by it: what is unconfirmed is still in the outbox."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """What the relay tells every publisher, whatever its broker."""

    concurrency: int = 4
    """How many threads call `publish` at once."""
    routes: Routes = field(default_factory=Routes)
    """Where topics go that don't go where the publisher's own settings say."""
    key_window: int = 1
    """How many messages of one key may be in flight at once; more than 1 gives up strict order."""
    on_unroutable: Literal["pause", "dead-letter"] = "pause"
    """What an unroutable message is: a fault of its destination, or its own."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """What the entry point of a publisher names."""

    settings: type[BaseSettings]
    """The publisher's own settings: environment `OUTBOX_<TARGET>_*`, section `[<target>]` of the TOML file."""
    make: Callable[[Any, Options], Publisher]
    """Make a publisher of an instance of `settings`. Does not connect: `open` does."""


def wire_headers(message: Message) -> dict[str, HeaderValue]:
    """The names every message carries, the same on all brokers, then the event's own headers."""
    headers: dict[str, HeaderValue] = {"idempotency-key": message.idempotency_key, "outbox-type": message.type}
    if message.key is not None:
        headers["outbox-key"] = message.key
    headers["outbox-created-at"] = message.created_at.astimezone(dt.UTC).isoformat()
    # SQL bypasses the event class: it could use our names (ours win), and write the integer 1 as 1.0.
    own = {name: int(value) if isinstance(value, float) else value for name, value in (message.headers or {}).items()}
    return headers | own | headers
