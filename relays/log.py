"""The log of a relay process: on stderr, text for people and JSON lines for machines.

The library logs through stdlib logging, with what a machine would look for in `extra`; only a process configures it.
"""

import datetime as dt
import json
import logging
import sys
from typing import Any

from rich.console import Console

__all__ = ["ConsoleHandler", "JsonFormatter", "TextFormatter", "configure"]

OURS = ("outbox", "relays")

NOISY = ("pika",)
"""What they log of a broken connection, the publisher says in one line."""

STANDARD = {*logging.makeLogRecord({}).__dict__, "message", "asctime"}
"""What every record has; the rest came by `extra`."""


def configure(level: str, form: str, console: Console) -> None:
    """Send the log to stderr. `form` is text, json or auto: text when `console` is a terminal.

    Other libraries are heard from WARNING on: below that some of them log message bodies.
    """
    text = console.is_terminal if form == "auto" else form == "text"
    handler = ConsoleHandler(console) if console.is_interactive else logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL)


class ConsoleHandler(logging.Handler):
    """Prints above a progress line that is shown on the same console."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._console.print(self.format(record), markup=False, highlight=False, emoji=False, soft_wrap=True)
        except Exception:  # noqa: BLE001 (a handler never lets its own failure out, says the logging module)
            self.handleError(record)


class TextFormatter(logging.Formatter):
    """`12:00:01 WARNING message (key=value)`, in local time."""

    def format(self, record: logging.LogRecord) -> str:
        time = dt.datetime.fromtimestamp(record.created).astimezone()
        extra = ", ".join(f"{name}={value}" for name, value in _extra(record).items())
        line = f"{time:%H:%M:%S} {record.levelname:7} {record.getMessage()}{extra and f' ({extra})'}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line, in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in STANDARD}
