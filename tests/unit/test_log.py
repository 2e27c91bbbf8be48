"""The log of a relay process, and the progress line beside it."""

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from rich.console import Console

from relays import log
from relays.progress import ProgressLine, progress


@dataclass
class Counters:
    published: int = 0
    retried: int = 0
    dead: int = 0
    in_flight: int = 0


def record(message: str, *values: object, **extra: object) -> logging.LogRecord:
    fields = {"name": "relays.test", "levelno": logging.WARNING, "levelname": "WARNING", "msg": message, "args": values}
    return logging.makeLogRecord(fields | extra)


def test_json_has_the_message_and_the_extra_fields() -> None:
    entry = json.loads(log.JsonFormatter().format(record("paused %s\n", "orders", destination="orders", events=3)))
    assert entry.pop("time").endswith("+00:00")
    assert entry == {
        "level": "warning",
        "logger": "relays.test",
        "message": "paused orders\n",
        "destination": "orders",
        "events": 3,
    }


def test_json_is_one_line_whatever_is_in_it() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        line = log.JsonFormatter().format(record("x", exc_info=(ValueError, error, error.__traceback__), what=object()))
    assert "\n" not in line
    assert "Traceback" in json.loads(line)["exception"]


def test_text_is_for_people() -> None:
    line = log.TextFormatter().format(record("paused %s", "orders", destination="orders", events=3))
    assert line.split(" ", 1)[1] == "WARNING paused orders (destination=orders, events=3)"
    assert log.TextFormatter().format(record("plain")).endswith("WARNING plain")


@pytest.fixture
def untouched_logging() -> Iterator[None]:
    """configure() is for processes; this one gets its handlers and levels back."""
    root = logging.getLogger()
    handlers, levels = (
        root.handlers[:],
        {name: logging.getLogger(name).level for name in ("", "outbox", "relays", "pika")},
    )
    for handler in handlers:
        root.removeHandler(handler)  # or configure would close them
    yield
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("untouched_logging")
@pytest.mark.parametrize(
    ("form", "terminal", "is_json"),
    [("auto", False, True), ("auto", True, False), ("json", True, True), ("text", False, False)],
)
def test_the_form_follows_the_setting_and_the_terminal(
    form: str, terminal: bool, is_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = io.StringIO()
    log.configure("info", form, Console(file=screen, force_terminal=terminal, force_interactive=terminal))
    logging.getLogger("relays.engine").info("hello [bold]")
    logging.getLogger("relays.engine").debug("too fine")
    logging.getLogger("pika.connection").error("noise")
    logging.getLogger("botocore").info("bodies")
    logging.getLogger("urllib3").warning("heard")
    lines = (screen.getvalue() if terminal else capsys.readouterr().err).splitlines()
    assert len(lines) == 2
    assert "hello [bold]" in lines[0]
    assert "heard" in lines[1]
    assert lines[0].startswith("{") is is_json


def test_the_progress_line_says_what_is_going_on() -> None:
    now = 100.0
    counters = Counters()
    line = ProgressLine(counters, clock=lambda: now)
    assert line.render().plain == "published 0 · 0/s · in flight 0 · retried 0 · dead 0"
    now += 2
    counters.published, counters.in_flight, counters.retried, counters.dead = 4000, 500, 3, 2
    assert line.render().plain == "published 4,000 · 2,000/s · in flight 500 · retried 3 · dead 2"
    for _ in range(10):  # the rate is that of the last seconds
        now += 1
        line.render()
    assert line.render().plain.startswith("published 4,000 · 0/s")


def test_progress_is_for_terminals_only() -> None:
    screen = io.StringIO()
    with progress(Counters(published=7), Console(file=screen, force_terminal=True, force_interactive=True)):
        pass
    assert "published 7" in screen.getvalue()
    quiet = io.StringIO()
    with progress(Counters(published=7), Console(file=quiet)):
        pass
    assert quiet.getvalue() == ""
