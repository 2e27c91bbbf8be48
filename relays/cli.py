"""The console script `outbox-relay`: commands, exit codes, and one line on stderr for every error."""

import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import typer

from outbox.errors import OutboxError
from relays.commands.bench import bench
from relays.commands.demo import demo
from relays.commands.migrate import migrate
from relays.commands.run import relay
from relays.exit_codes import ExitCode, exit_code

__all__ = ["app", "main"]

EXAMPLES = """\b
Examples:
  outbox-relay migrate --database-url postgresql://app@db/shop
  outbox-relay --target rabbitmq --rabbitmq-exchange events
  outbox-relay --target sqs --route 'orders.*=orders' --drain
  outbox-relay demo"""

SOURCES = (
    "A flag wins over its environment variable, that over OUTBOX_..._FILE (for URLs: a file that holds it), that over "
    "the TOML file of --config, that over the default."
)

EXIT_CODES = "\b\nExit codes:\n" + "\n".join(f"  {code:2}  {code.meaning}" for code in ExitCode)

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables, passwords among them
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.callback(invoke_without_command=True, epilog="\n\n".join([EXAMPLES, SOURCES, EXIT_CODES]))(relay)
app.command()(migrate)
app.command()(demo)
app.command()(bench)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of `ExitCode`."""
    signal.signal(signal.SIGTERM, _terminate)
    given = sys.argv[1:] if arguments is None else list(arguments)
    sys.exit(_run(given, debug="--debug" in given))


def _run(arguments: list[str], *, debug: bool) -> int:
    try:
        # Out of standalone mode an Exit's code is what comes back, and exceptions come out.
        return app(arguments, prog_name="outbox-relay", standalone_mode=False) or ExitCode.DONE
    except (typer.Abort, KeyboardInterrupt):
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 (the last resort: it becomes exit code 70)
        if debug:
            traceback.print_exc()
        return _report(error)


def _report(error: Exception) -> ExitCode:
    if isinstance(error, OutboxError):
        _print_error(str(error))
        return exit_code(error)
    if hasattr(error, "format_message"):  # the parser's own; where its class lives depends on typer's version
        _print_error(f"{error.format_message()} (outbox-relay --help shows what there is)")
        return ExitCode.USAGE
    _print_error(f"internal: {type(error).__name__}: {error}; --debug shows where, please report it")
    return ExitCode.INTERNAL


def _print_error(message: str) -> None:
    typer.echo(f"error: {' '.join(message.split())}", err=True)


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    """Unwind, so that whatever a command has started is ended; a relay puts its own handler in this one's place."""
    sys.exit(128 + number)
