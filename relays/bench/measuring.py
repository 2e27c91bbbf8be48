"""The measurement: the same messages one by one and through a relay, in turns, and a count of what arrived."""

import secrets
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relays import wiring
from relays.bench.brokers import Broker
from relays.bench.messages import make_messages
from relays.bench.scratch import Scratch
from relays.settings import RelaySettings
from relays.sources import load
from relays.supervisor import Summary

__all__ = ["Bench", "Result", "Round", "summarise"]


@dataclass(frozen=True, slots=True)
class Round:
    """A series of single messages, then one drain by a relay. Rates are messages per second."""

    relay_rate: float
    """From the first claim to the last settle."""
    one_by_one_rate: float
    missing: int
    duplicates: int
    foreign: int
    """Messages in the relay's queue that nobody committed."""


@dataclass(frozen=True, slots=True)
class Result:
    """Medians of the rates, sums of the rest."""

    target: str
    events: int
    """In each round."""
    rounds: int
    relay_rate: float
    one_by_one_rate: float
    ratio: float
    """The median of the rounds' ratios: what is measured one after the other was measured under like conditions."""
    missing: int
    duplicates: int
    foreign: int

    @property
    def exactly_once(self) -> bool:
        """Whether every event was in the queue once, and nothing else."""
        return not (self.missing or self.duplicates or self.foreign)


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured, and where."""

    target: str
    flags: Mapping[str, object]
    """The user's settings of the relay; those that decide where it publishes are replaced."""
    config: Path | None
    broker: Broker
    scratch: Scratch
    events: int
    keys: int
    one_by_one: int
    """How many messages are sent one by one in a round."""

    def round(self) -> Round:
        """Measure once."""
        name = secrets.token_hex(6)
        messages = make_messages(name, self.broker.queue, self.events, self.keys)
        self.scratch.add(messages)
        singles = make_messages(f"{name}-single", self.broker.queue, self.one_by_one, self.keys)
        seconds = self.broker.send_one_by_one(singles)
        summary = self._drain()
        arrived = self.broker.take(self.events)
        expected = {message.idempotency_key for message in messages}
        return Round(
            relay_rate=_rate(summary.published, summary.seconds),
            one_by_one_rate=_rate(self.one_by_one, seconds),
            missing=len(expected - arrived.keys()),
            duplicates=arrived.total() - len(arrived),
            foreign=len(arrived.keys() - expected),
        )

    def _drain(self) -> Summary:
        queue = self.broker.queue
        ours = {
            "target": self.target,
            "database_url": self.scratch.url,
            "schema": self.scratch.schema,
            "prefix": "outbox_",
            "outbox": ("default",),
            "route": (f"{queue}={queue}",),
        }
        flags = {**self.flags, **self.broker.flags, **ours}
        relay = wiring.make_relay(load(RelaySettings, flags, self.config, None), flags, self.config, drain=True)
        try:
            return relay.run()
        except BaseException:
            relay.stop()  # its threads would go on while the tables are removed
            raise


def summarise(target: str, events: int, rounds: Sequence[Round]) -> Result:
    """The result of several rounds, at least one, of so many events each."""
    return Result(
        target=target,
        events=events,
        rounds=len(rounds),
        relay_rate=_median(each.relay_rate for each in rounds),
        one_by_one_rate=_median(each.one_by_one_rate for each in rounds),
        ratio=_median(_rate(each.relay_rate, each.one_by_one_rate) for each in rounds),
        missing=sum(each.missing for each in rounds),
        duplicates=sum(each.duplicates for each in rounds),
        foreign=sum(each.foreign for each in rounds),
    )


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 2)


def _rate(count: float, per: float) -> float:
    return count / per if per else 0.0
