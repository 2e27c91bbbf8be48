"""`outbox-relay bench`: what a relay reaches on this machine, this database and this broker."""

# ruff: noqa: ARG001 (typer reads the signature; the settings are taken from the context, where None means not given)

from typing import Annotated

import typer

from relays.commands.options import ConfigFile, DatabaseUrl, Debug, config_path, given, option, twin

__all__ = ["bench"]


def bench(
    context: typer.Context,
    target: Annotated[str | None, option("target")] = None,
    database_url: DatabaseUrl = None,
    rabbitmq_url: Annotated[
        str | None, twin("--rabbitmq-url", "Broker, amqp://USER:PASSWORD@HOST/VHOST; default: the one on localhost.")
    ] = None,
    events: Annotated[
        int | None, typer.Option(help="Events in each round; default 20,000, for sqs 1,000.", min=1)
    ] = None,
    keys: Annotated[int, typer.Option(help="Ordering keys that they have; 0: none.", min=0)] = 1000,
    rounds: Annotated[int, typer.Option(help="How often; the medians count.", min=1)] = 3,
    fifo: Annotated[bool, typer.Option("--fifo", help="Use FIFO queues (sqs only).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of a table.")] = False,
    config: ConfigFile = None,
    debug: Debug = None,
) -> None:
    """Measure a relay against one confirm per message, in queues and a schema of its own that are removed again.

    Without --target it is rabbitmq, without --database-url an embedded PostgreSQL.
    """
    from relays.bench.command import run_bench  # of no use to a relay, which has to start quickly

    flags = given(context)
    code = run_bench(flags, config_path(flags), events=events, keys=keys, rounds=rounds, fifo=fifo, as_json=as_json)
    raise typer.Exit(code)
