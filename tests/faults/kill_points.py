"""A relay that reports a named point over a pipe and then kills itself, as SIGKILL would from outside.

python -m tests.faults.kill_points POINT FD

The product knows nothing of this: the points are wrapped around its store and its publisher. The settings come from the
environment, as for the command line.
"""

import os
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from outbox.database import make_engine
from outbox.store import ReadyEvent, Settlement, Store
from relays import wiring
from relays.publishers import Deadline, Message, Outcome, Publisher
from relays.settings import RelaySettings
from relays.sources import load
from relays.supervisor import Relay

POINTS = ("claimed", "read", "mid-publish", "published", "settling", "settled")


class Killer:
    """Dies at one point, the `nth` time it is reached."""

    def __init__(self, point: str, fd: int, nth: int) -> None:
        self._point, self._fd, self._left = point, fd, nth

    def at(self, point: str) -> None:
        if point != self._point:
            return
        self._left -= 1
        if self._left == 0:
            os.write(self._fd, point.encode())
            os.kill(os.getpid(), signal.SIGKILL)


class KilledStore(Store):
    def __init__(self, settings: RelaySettings, killer: Killer) -> None:
        super().__init__(settings.naming)
        self._killer = killer

    def claim(self, connection: sa.Connection, outbox: str, **arguments: Any) -> dict[int, int]:
        lanes = super().claim(connection, outbox, **arguments)
        if lanes:
            self._killer.at("claimed")
        return lanes

    def read(self, connection: sa.Connection, outbox: str, **arguments: Any) -> list[ReadyEvent]:
        events = super().read(connection, outbox, **arguments)
        if events:
            self._killer.at("read")
        return events

    def settle(
        self,
        connection: sa.Connection,
        outbox: str,
        settlement: Settlement,
        *,
        lanes: Mapping[int, int],
        **arguments: Any,
    ) -> dict[int, int]:
        held = super().settle(connection, outbox, settlement, lanes=lanes, **arguments)
        self._killer.at("settled")
        return held

    def _settle_others(
        self, connection: sa.Connection, outbox: str, settlement: Settlement, owned: Collection[int], unblock: int
    ) -> None:
        super()._settle_others(connection, outbox, settlement, owned, unblock)
        self._killer.at("settling")  # the transaction is open, the confirmed events are deleted in it


class KilledPublisher:
    def __init__(self, inner: Publisher, killer: Killer) -> None:
        self._inner, self._killer = inner, killer
        self.open, self.destination, self.close = inner.open, inner.destination, inner.close

    def publish(self, messages: Sequence[Message], deadline: Deadline) -> Sequence[Outcome]:
        half = len(messages) // 2
        outcomes = list(self._inner.publish(messages[:half], deadline))
        self._killer.at("mid-publish")
        outcomes += self._inner.publish(messages[half:], deadline)
        self._killer.at("published")
        return outcomes


def main(point: str, fd: str) -> None:
    killer = Killer(point, int(fd), nth=2)
    settings = load(RelaySettings, {}, None, None)
    publisher = KilledPublisher(wiring.make_publisher(settings, {}, None), killer)
    engine = make_engine(settings.url, application_name="outbox-relay")
    Relay(wiring.engine_config(settings, drain=True), KilledStore(settings, killer), publisher, engine).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
