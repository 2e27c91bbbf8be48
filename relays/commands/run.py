"""`outbox-relay` without a command: run a relay until it is stopped, or drain what is there."""

# ruff: noqa: ARG001 (typer reads the signature; the values are taken from the context, where None means not given)

import importlib.metadata
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from relays import log, wiring
from relays.commands.options import ConfigFile, DatabaseUrl, Debug, Prefix, Schema, config_path, given, option, twin
from relays.exit_codes import ExitCode, UsageError
from relays.progress import progress
from relays.settings import RelaySettings
from relays.sources import load
from relays.supervisor import Summary

__all__ = ["relay"]

logger = logging.getLogger(__name__)

SHOW_CURSOR = b"\x1b[?25h"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outbox-relay {importlib.metadata.version('outbox-relay')}")
        raise typer.Exit


def relay(
    context: typer.Context,
    target: Annotated[str | None, option("target")] = None,
    database_url: DatabaseUrl = None,
    schema: Schema = None,
    prefix: Prefix = None,
    outbox: Annotated[list[str] | None, option("outbox")] = None,
    rabbitmq_url: Annotated[str | None, twin("--rabbitmq-url", "Broker, amqp://USER:PASSWORD@HOST/VHOST.")] = None,
    rabbitmq_exchange: Annotated[
        str | None, twin("--rabbitmq-exchange", "Exchange to publish to; default: the default exchange.")
    ] = None,
    sqs_queue: Annotated[
        str | None, twin("--sqs-queue", "Name or URL of the queue for topics without a route; default: the topic.")
    ] = None,
    route: Annotated[list[str] | None, option("route")] = None,
    batch_size: Annotated[int | None, option("batch_size")] = None,
    concurrency: Annotated[int | None, option("concurrency")] = None,
    lease: Annotated[float | None, option("lease")] = None,
    poll: Annotated[float | None, option("poll")] = None,
    max_attempts: Annotated[int | None, option("max_attempts")] = None,
    backoff_min: Annotated[float | None, option("backoff_min")] = None,
    backoff_max: Annotated[float | None, option("backoff_max")] = None,
    grace: Annotated[float | None, option("grace")] = None,
    startup_timeout: Annotated[float | None, option("startup_timeout")] = None,
    key_window: Annotated[int | None, option("key_window")] = None,
    on_unroutable: Annotated[str | None, option("on_unroutable")] = None,
    take_over: Annotated[bool | None, option("take_over")] = None,
    drain: Annotated[
        bool | None, typer.Option("--drain", help="Publish what is there, then exit.", show_default=False)
    ] = None,
    config: ConfigFile = None,
    log_level: Annotated[str | None, option("log_level")] = None,
    log_format: Annotated[str | None, option("log_format")] = None,
    debug: Debug = None,
    version: Annotated[
        bool | None,
        typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True),
    ] = None,
) -> None:
    """Relay committed events from the outbox in PostgreSQL to a broker, or run a COMMAND."""
    flags = given(context)
    if context.invoked_subcommand is not None:
        _refuse_before(context.invoked_subcommand, flags)
        return
    raise typer.Exit(_run(flags))


def _refuse_before(command: str, flags: dict[str, object]) -> None:
    if flags:
        names = ", ".join("--" + name.replace("_", "-") for name in flags)
        raise UsageError(f"options of {command} stand after it: move or remove {names}")


def _run(flags: dict[str, object]) -> ExitCode:
    config = config_path(flags)
    settings = load(RelaySettings, flags, config, None)
    console = Console(stderr=True)
    log.configure(settings.log_level, settings.log_format, console)
    if foreign := wiring.foreign_options(flags, settings.target):
        raise UsageError(f"{', '.join(foreign)}: no option of --target {settings.target}")
    drain = bool(flags.get("drain"))
    relay = wiring.make_relay(settings, flags, config, drain=drain)
    with _stopped_by_signals(relay.stop), progress(relay.stats, console):
        summary = relay.run()
    return _report(summary, drain=drain)


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a graceful stop, the second one ends the process at once.

    Handlers of our own, because without them PID 1 of a container gets no SIGTERM at all.
    """
    seen: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        if seen:
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), SHOW_CURSOR)  # the progress line has hidden it
            os._exit(128 + number)
        seen.append(number)
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(summary: Summary, *, drain: bool) -> ExitCode:
    logger.info("published %d, dead letters %d", summary.published, summary.dead)
    if not drain:
        return ExitCode.DONE
    if summary.left is None:
        typer.echo("error: stopped before the outbox was drained", err=True)
        return ExitCode.LEFT_BEHIND
    counts = ", ".join(f"{count} {name}" for name, count in summary.left._asdict().items() if count)
    # Scheduled events are where they should be; the others should have gone.
    stuck = sum(summary.left) - summary.left.scheduled
    if stuck:
        typer.echo(f"error: drained, but {stuck} events could not be sent: {counts}", err=True)
        return ExitCode.LEFT_BEHIND
    if counts:
        logger.info("drained; left for later: %s", counts)
    return ExitCode.DONE
