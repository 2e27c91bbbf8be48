"""Killing a relay at the worst moment: while it has events in flight."""

import signal
from collections.abc import Sequence

import sqlalchemy as sa

from relays.demo.processes import Child

__all__ = ["kill_in_flight"]

IN_FLIGHT = sa.text("""
    SELECT count(*) FROM outbox_lane l JOIN outbox_event e ON e.outbox = l.outbox AND e.lane = l.lane
    WHERE l.lease_token IS NOT NULL AND l.leased_by LIKE '%:' || :pid || '/%'""")


def kill_in_flight(engine: sa.Engine, relays: Sequence[Child]) -> tuple[Child, int] | None:
    """Kill (SIGKILL) the first relay that has claimed events; returns it and how many, None when none has.

    It is frozen for the look, so that the answer is still true when the kill comes.
    """
    for relay in relays:
        if not _in_flight(engine, relay):
            continue
        relay.process.send_signal(signal.SIGSTOP)
        if events := _in_flight(engine, relay):
            relay.process.kill()
            relay.process.wait()
            return relay, events
        relay.process.send_signal(signal.SIGCONT)
    return None


def _in_flight(engine: sa.Engine, relay: Child) -> int:
    """How many events are in the lanes that this process holds."""
    with engine.connect() as connection:
        return int(connection.execute(IN_FLIGHT, {"pid": str(relay.process.pid)}).scalar_one())
