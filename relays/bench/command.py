"""`outbox-relay bench`: events are committed, a real relay drains them, and every one is looked for in the queue.

What it is compared with is what people write first: the next message when the one before is confirmed. Both are
measured in turns, since a machine is not as fast in every minute.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from relays import wiring
from relays.bench.brokers import open_broker
from relays.bench.measuring import Bench, Result, summarise
from relays.bench.scratch import scratch
from relays.exit_codes import UsageError
from relays.settings import RelaySettings
from relays.sources import load

__all__ = ["run_bench"]

EVENTS = {"rabbitmq": 20_000, "sqs": 1_000}
"""How many events a round has when nobody says so."""

ONE_BY_ONE = {"rabbitmq": 1000, "sqs": 100}
"""How many messages a round sends one by one, at most."""


def run_bench(
    flags: Mapping[str, object],
    config: Path | None = None,
    *,
    events: int | None = None,
    keys: int = 1000,
    rounds: int = 3,
    fifo: bool = False,
    as_json: bool = False,
) -> int:
    """Measure, print what came of it on stdout, and return the exit code.

    0: every idempotency key was in the queue exactly once. 1: not so.

    Parameters:
        flags: settings of the relay, as `relays.sources.load` takes them. Without a `target` it is rabbitmq, without a
            `rabbitmq_url` the broker on localhost, without a `database_url` an embedded PostgreSQL.
        config: a TOML file with further settings.
        events: for each round; None: as many as fit the target.
        keys: ordering keys that the events are spread over; 0: events without keys.
        rounds: how often, at least 1.
        fifo: use FIFO queues (SQS only).
        as_json: print one JSON object in place of a table.

    Raises an OutboxError that says so when something can't be had.
    """
    settings = load(RelaySettings, flags, config, None)
    target = settings.target or "rabbitmq"
    if foreign := wiring.foreign_options(flags, target):
        raise UsageError(f"{', '.join(foreign)}: no option of --target {target}")
    url = settings.database_url.get_secret_value() if settings.database_url else None
    with open_broker(target, flags, config, fifo=fifo) as broker, scratch(url) as place:
        count = events or EVENTS[target]
        bench = Bench(target, flags, config, broker, place, count, keys, min(count, ONE_BY_ONE[target]))
        result = _measure(bench, rounds)
    if as_json:
        typer.echo(json.dumps(asdict(result)))
    else:
        Console().print(_table(result))
    return 0 if result.exactly_once else 1


def _measure(bench: Bench, rounds: int) -> Result:
    console = Console(stderr=True)
    done = []
    for number in range(1, rounds + 1):
        done.append(bench.round())
        rates = f"relay {done[-1].relay_rate:,.0f}/s, one confirm at a time {done[-1].one_by_one_rate:,.0f}/s"
        console.print(f"round {number} of {rounds}: {rates}", highlight=False)
    return summarise(bench.target, bench.events, done)


def _table(result: Result) -> Table:
    title = f"{result.events:,} events to {result.target}, median of {result.rounds}"
    table = Table(title=title, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("relay, events/s", f"{result.relay_rate:,.0f}")
    table.add_row("one confirm at a time, events/s", f"{result.one_by_one_rate:,.0f}")
    table.add_row("times as fast (median)", f"{result.ratio:.1f}")
    table.add_row("missing", f"{result.missing:,}")
    table.add_row("more than once", f"{result.duplicates:,}")
    table.add_row("foreign", f"{result.foreign:,}")
    return table
