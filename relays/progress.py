"""What a relay is doing right now, on one line of a terminal."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

__all__ = ["Counters", "ProgressLine", "progress"]

WINDOW = 3.0
"""Seconds that a rate is taken over."""


class Counters(Protocol):
    """The numbers that are shown; they are only read."""

    @property
    def published(self) -> int: ...
    @property
    def retried(self) -> int: ...
    @property
    def dead(self) -> int: ...
    @property
    def in_flight(self) -> int: ...


class ProgressLine:
    """The line, computed when it is drawn."""

    def __init__(self, counters: Counters, clock: Callable[[], float] = time.monotonic) -> None:
        self._counters, self._clock = counters, clock
        self._samples: deque[tuple[float, int]] = deque([(clock(), counters.published)])

    def render(self) -> Text:
        """Sample the counters and say what they are."""
        now, published = self._clock(), self._counters.published
        self._samples.append((now, published))
        while len(self._samples) > 2 and self._samples[0][0] < now - WINDOW:
            self._samples.popleft()
        then, before = self._samples[0]
        rate = (published - before) / (now - then) if now > then else 0.0
        counters = self._counters
        return Text(
            f"published {published:,} · {rate:,.0f}/s · in flight {counters.in_flight:,}"
            f" · retried {counters.retried:,} · dead {counters.dead:,}"
        )


@contextmanager
def progress(counters: Counters, console: Console) -> Iterator[None]:
    """Show the line while the block runs, if `console` is a terminal that can; otherwise nothing."""
    if not console.is_interactive:
        yield
        return
    line = ProgressLine(counters)
    with Live(get_renderable=line.render, console=console, transient=True, refresh_per_second=4):
        yield
