"""`outbox-relay demo`: the whole product on one machine, with nothing installed beside it."""

from typing import Annotated

import typer

from relays.commands.options import Debug

__all__ = ["demo"]


def demo(
    orders: Annotated[int, typer.Option(help="Orders that the application commits.", min=1)] = 1000,
    target: Annotated[
        str | None,
        typer.Option(help="sqs: an emulator, started here (the default); rabbitmq: the broker of OUTBOX_RABBITMQ_URL."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of a table.")] = False,
    debug: Debug = None,  # noqa: ARG001 (read by main, which shows the tracebacks)
) -> None:
    """Take orders, relay their events, kill a relay in the middle, and count what arrived: nothing may be lost."""
    from relays.demo.command import run_demo  # it needs what only the extra `demo` installs

    raise typer.Exit(run_demo(orders=orders, target=target, as_json=as_json))
