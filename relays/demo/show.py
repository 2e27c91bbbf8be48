"""What a run of the demo shows: two bars while it runs, a table or JSON when it is over."""

import json
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from relays.demo.oracle import Verdict

__all__ = ["Result", "Show", "to_json", "to_table"]


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict, and what else is worth knowing of a run."""

    target: str
    verdict: Verdict
    rolled_back: int
    in_flight_at_kill: int
    seconds: float
    """From the first order to the last message."""


class Show:
    """Progress on stderr: bars if that is a terminal, lines for what happens once in any case."""

    def __init__(self, orders: int) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:16}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_interactive,
        )
        self._committed = self._progress.add_task("orders committed", total=orders)
        self._received = self._progress.add_task("messages received", total=orders)

    def __enter__(self) -> "Show":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line, above the bars."""
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def update(self, committed: int, received: int) -> None:
        """Move the bars."""
        self._progress.update(self._committed, completed=committed)
        self._progress.update(self._received, completed=received)


def to_json(result: Result) -> str:
    """One JSON object: the verdict's numbers, and the rest beside them."""
    numbers = asdict(result)
    return json.dumps(numbers.pop("verdict") | numbers | {"seconds": round(result.seconds, 2)})


def to_table(result: Result) -> Table:
    """The closing table."""
    verdict = result.verdict
    table = Table(title=f"PostgreSQL to {result.target}, one relay killed", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for label, number in (
        ("orders committed", verdict.committed),
        ("orders rolled back", result.rolled_back),
        ("distinct messages received", verdict.received_distinct),
        ("duplicates", verdict.duplicates),
        ("lost", verdict.lost),
        ("invented", verdict.invented),
        ("order violations", verdict.order_violations),
    ):
        table.add_row(label, f"{number:,}")
    table.add_row("events/s", f"{verdict.received_distinct / max(result.seconds, 0.001):,.0f}")
    table.add_row("seconds", f"{result.seconds:.1f}")
    return table
