"""`outbox-relay demo`: a shop, its outbox, two relays of which one is killed, a queue and a consumer, on one machine.

Nothing but temporary directories is needed, and nothing is left behind. What the shop committed and what the consumer
received are compared at the end; what the relays say of themselves plays no part in it.
"""

import sys
from collections.abc import Sequence

import sqlalchemy as sa
import typer
from alembic.migration import MigrationContext
from alembic.operations import Operations
from rich.console import Console

from outbox import migrations
from outbox.database import make_engine, parse_url
from outbox.errors import ConfigurationError
from relays.demo.brokers import check_extras, find_rabbitmq, moto_environment, start_sqs
from relays.demo.embedded import EmbeddedPostgres
from relays.demo.play import READY, Play
from relays.demo.processes import Family, clean_environment
from relays.demo.show import Result, Show, to_json, to_table

__all__ = ["TARGETS", "run_demo"]

TARGETS = ("sqs", "rabbitmq")

RELAY = (sys.executable, "-c", "from relays.cli import main; main()")
"""What runs a relay, whether the package is installed or lies in the working directory."""

PATIENCE = 10.0
"""Seconds that the processes get to end in good order."""

TIMEOUT, TIMEOUT_PER_ORDER = 60.0, 0.1
"""Seconds after which the demo ends in any case; a shop that takes 100 orders a second needs a tenth of that."""


def run_demo(
    *, orders: int = 1000, target: str | None = None, as_json: bool = False, relay: Sequence[str] = RELAY
) -> int:
    """Run the demo, print what came of it on stdout, and return the exit code.

    0: nothing was lost, invented or out of order. 1: something was, or had not arrived when time was up.

    Parameters:
        orders: how many orders the shop commits.
        target: sqs (the default: moto's server, started here) or rabbitmq (the broker of OUTBOX_RABBITMQ_URL).
        as_json: print one JSON object in place of a table.
        relay: the command that runs a relay.

    Raises MissingExtra, ConfigurationError, PublisherError, DatabaseError or ChildFailed when it can't be run.
    """
    target = target or TARGETS[0]
    broker = _find_broker(target)
    with Show(orders) as show, EmbeddedPostgres() as postgres, Family(PATIENCE) as family:
        sqs = start_sqs(family) if target == "sqs" else None
        engine = make_engine(parse_url(postgres.url()), application_name="outbox-relay demo")
        _migrate(engine)
        if sqs is not None:
            broker = moto_environment(sqs.first_line(READY))
        show.say(f"PostgreSQL listens on port {postgres.port}, the outbox tables are made")
        play = Play(
            target,
            engine,
            family,
            show,
            environment=clean_environment(**broker, OUTBOX_DATABASE_URL=postgres.url()),
            relay=relay,
            orders=orders,
            timeout=TIMEOUT + orders * TIMEOUT_PER_ORDER,
        )
        result = play.run()
    _print(result, as_json=as_json)
    return 0 if result.verdict.good else 1


def _find_broker(target: str) -> dict[str, str]:
    """See that the broker can be had, before anything is started; returns the environment that leads to it."""
    if target == "rabbitmq":
        return find_rabbitmq()
    if target != "sqs":
        raise ConfigurationError(f"--target: the demo knows {' and '.join(TARGETS)}, not {target!r}")
    check_extras()
    return {}


def _migrate(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        migrations.upgrade(Operations(MigrationContext.configure(connection)), to=migrations.SCHEMA_VERSION)


def _print(result: Result, *, as_json: bool) -> None:
    if as_json:
        typer.echo(to_json(result))
    else:
        Console().print(to_table(result))
