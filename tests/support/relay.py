"""A relay in a thread of the test's own process."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import OutboxEvent
from outbox.database import make_engine, parse_url
from outbox.store import Store
from relays.engine import Config
from relays.publishers import Publisher
from relays.supervisor import Relay, Summary

__all__ = ["add_events", "drain", "eventually", "relay", "running"]


def relay(url: str, publisher: Publisher, *, store: Store | None = None, **config: Any) -> Relay:
    """A relay with short waits on the database at `url`."""
    defaults: dict[str, Any] = {"target": "memory", "backoff_min": 0.01, "backoff_max": 0.05, "grace": 5.0}
    engine = make_engine(parse_url(url), "outbox-relay test")
    return Relay(Config(**(defaults | config)), store or Store(), publisher, engine)


def drain(url: str, publisher: Publisher, **config: Any) -> Summary:
    """Run a relay until nothing is left to send."""
    return relay(url, publisher, drain=True, **config).run()


@contextmanager
def running(relay: Relay) -> Iterator[Relay]:
    """Run it in a thread; at the end stop it and raise what it raised."""
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(relay.run)
        try:
            yield relay
        finally:
            relay.stop()
        ended.result(60)


def add_events(engine: sa.Engine, count: int, **fields: Any) -> None:
    """Commit `count` events whose payloads are 0, 1, 2, ... in one transaction."""
    with Session(engine) as session:
        session.add_all([OutboxEvent(**{"topic": "t", "type": "T", "payload": n} | fields) for n in range(count)])
        session.commit()


def eventually(condition: Callable[[], Any], *, timeout: float = 30.0) -> None:
    """Wait until the condition holds; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
