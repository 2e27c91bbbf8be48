"""The demo's plot: a shop takes orders, two relays publish them, one is killed, a consumer keeps what comes."""

import secrets
import time
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from outbox.store import Store
from relays.demo.crash import kill_in_flight
from relays.demo.ledger import Ledger
from relays.demo.oracle import judge
from relays.demo.processes import Child, Family, python
from relays.demo.shop import TOPIC, Shop
from relays.demo.show import Result, Show

__all__ = ["READY", "Play"]

READY = 60.0
"""Seconds a process may take to start."""

TICK = 0.02
"""Seconds between two looks at what goes on."""

RELAY_SETTINGS = {
    "OUTBOX_LEASE": "3",  # so that the survivor takes over soon what the killed one had
    "OUTBOX_POLL": "1",
    "OUTBOX_CONCURRENCY": "2",
    "OUTBOX_SQS_THREADS": "2",
    "OUTBOX_LOG_FORMAT": "text",
}


class Play:
    """One run.

    Parameters:
        target: the broker.
        environment: where relays find the database, and they and the consumer the broker.
        relay: the command that runs a relay.
        timeout: seconds after the first order after which the rest is not waited for.
    """

    def __init__(
        self,
        target: str,
        engine: sa.Engine,
        family: Family,
        show: Show,
        *,
        environment: Mapping[str, str],
        relay: Sequence[str],
        orders: int,
        timeout: float,
    ) -> None:
        self._target, self._engine, self._family, self._show = target, engine, family, show
        self._environment, self._relay, self._orders, self._timeout = environment, relay, orders, timeout
        self._queue = f"outbox-demo-{secrets.token_hex(6)}" + (".fifo" if target == "sqs" else "")
        self._shop = Shop(engine, orders)
        self._path = family.directory / "ledger"
        self._ledger = Ledger(self._path)
        self._relays: list[Child] = []
        self._killed_with = 0
        self._looks_before: int | None = None

    def run(self) -> Result:
        """Raises ChildFailed when a process ends that should not."""
        consumer = self._start("consumer", python("relays.demo.consumer", self._target, self._queue, str(self._path)))
        consumer.first_line(READY)
        self._relays = [self._start(f"relay-{number}", self._relay) for number in (1, 2)]
        self._show.say(f"two relays publish to queue {self._queue}: {' and '.join(map(str, self._relays))}")
        started = time.monotonic()
        self._shop.open()
        try:
            self._follow(started + self._timeout, consumer)
        finally:
            self._shop.close()
        seconds = time.monotonic() - started
        self._family.end(*self._relays)
        self._family.end(consumer)
        verdict = judge(self._shop.sales(), self._ledger.sales())
        return Result(self._target, verdict, self._shop.rolled_back, self._killed_with, seconds)

    def _start(self, name: str, command: Sequence[str]) -> Child:
        settings = {"OUTBOX_TARGET": self._target, "OUTBOX_ROUTE": f"{TOPIC}={self._queue}"} | RELAY_SETTINGS
        return self._family.start(name, command, {**self._environment, **settings})

    def _follow(self, deadline: float, consumer: Child) -> None:
        """Stay until everything that was committed has arrived, or time is up; kill a relay on the way."""
        while time.monotonic() < deadline:
            for child in (consumer, *self._relays):
                child.check()
            self._show.update(self._shop.committed, self._ledger.arrivals())
            if not self._killed_with and self._shop.committed * 2 >= self._orders:
                self._kill_one()
            if self._all_arrived():
                return
            time.sleep(TICK)
        self._show.say(f"gave up after {self._timeout:.0f} s: {self._left()} events are still in the outbox")

    def _kill_one(self) -> None:
        if killed := kill_in_flight(self._engine, self._relays):
            relay, self._killed_with = killed
            self._relays.remove(relay)
            self._show.say(f"{relay} killed (SIGKILL) with {self._killed_with} events in flight")

    def _all_arrived(self) -> bool:
        """Whether the outbox is empty, and then the queue: found so by a look that began after that."""
        if self._shop.is_open:
            return False
        if self._looks_before is None:
            if not self._left():
                self._looks_before = self._ledger.empty_looks()
            return False
        return self._ledger.empty_looks() >= self._looks_before + 2

    def _left(self) -> int:
        with self._engine.connect() as connection:
            return sum(Store().left(connection, ["default"]))
