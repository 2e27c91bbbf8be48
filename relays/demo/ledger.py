"""Where the demo's consumer writes down what it received: an SQLite file, so that a message is acknowledged only once
it is kept, and so that others can read along."""

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from relays.demo.oracle import Sale

__all__ = ["Ledger"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS arrival (serial INTEGER PRIMARY KEY, idempotency_key TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS empty_look (serial INTEGER PRIMARY KEY);
"""


class Ledger:
    """Arrivals in order. Several processes may have it open; each object belongs to one thread."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        # Readers don't hold up the writer, and a commit survives the end of the process, which is all that can happen.
        self._connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; {SCHEMA}")

    def write(self, messages: Iterable[tuple[str, bytes]]) -> None:
        """Keep messages (idempotency key and body) in the order of their arrival; all of them or none."""
        with self._connection:
            self._connection.execute("BEGIN")
            self._connection.executemany("INSERT INTO arrival (idempotency_key, body) VALUES (?, ?)", messages)

    def write_empty(self) -> None:
        """Note that the queue was found empty."""
        self._connection.execute("INSERT INTO empty_look DEFAULT VALUES")

    def arrivals(self) -> int:
        """How many messages have arrived."""
        return self._count("arrival")

    def empty_looks(self) -> int:
        """How often the queue was found empty."""
        return self._count("empty_look")

    def sales(self) -> list[Sale]:
        """What the messages tell, in the order of their arrival."""
        rows = self._connection.execute("SELECT idempotency_key, body FROM arrival ORDER BY serial")
        return [_read(key, body) for key, body in rows]

    def close(self) -> None:
        self._connection.close()

    def _count(self, table: str) -> int:
        row = self._connection.execute(f"SELECT coalesce(max(serial), 0) FROM {table}").fetchone()  # noqa: S608 (ours)
        return int(row[0])


def _read(key: str, body: bytes) -> Sale:
    """A body that is not the shop's can't have been committed: it becomes a sale that nobody made."""
    try:
        content = json.loads(body)
        return Sale(key, str(content["customer"]), int(content["number"]))
    except (ValueError, KeyError, TypeError):
        return Sale(key, "", 0)
