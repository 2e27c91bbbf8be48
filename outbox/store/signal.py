"""The other side of the wake-up trigger: its lock, its channel, and the statements of a relay that sleeps.

The trigger notifies while its shared try-lock fails: while somebody holds the lock exclusively or queues for it.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from outbox.errors import SchemaError
from outbox.naming import Naming

__all__ = ["Signal"]

SQL = {
    # As the trigger computes them: the table's oid below a constant.
    "find": """
        SELECT (1869968482::bigint << 32) | c.oid::bigint AS lock, 'outbox_' || c.oid AS channel,
               EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = 'outbox_wake_up'
                       AND t.tgenabled <> 'D') AS has_trigger
        FROM pg_class c WHERE c.oid = to_regclass(:event)""",
    "listen": "LISTEN {channel}",  # takes no parameters; the channel is 'outbox_' and digits
    "notify": "SELECT pg_notify(:channel, '')",
    "try_lock": "SELECT pg_try_advisory_lock(:lock)",
    "queue": "SELECT pg_advisory_lock({lock})",
    "in_queue": "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = :pid)",
    "wait_without_limit": "SELECT set_config('lock_timeout', '0', false), set_config('statement_timeout', '0', false)",
    "unlock": "SELECT pg_advisory_unlock_all()",
}


@dataclass(frozen=True, slots=True)
class Signal:
    """The wake-up signal of one event table."""

    lock: int
    """The advisory lock that sleepers hold or queue for."""
    channel: str
    has_trigger: bool
    """Whether anybody notifies."""

    @classmethod
    def find(cls, connection: sa.Connection, naming: Naming) -> "Signal":
        with connection.begin():
            row = connection.execute(sa.text(SQL["find"]), {"event": naming.table("event")}).one_or_none()
            if row is None:
                raise SchemaError(f"{naming.table('event')} is gone: run `outbox-relay migrate`")
            return cls(row.lock, row.channel, row.has_trigger)

    def listen(self, connection: sa.Connection) -> None:
        with connection.begin():
            connection.execute(sa.text(SQL["listen"].format(channel=self.channel)))

    def notify(self, connection: sa.Connection) -> None:
        self._ask(connection, "notify", channel=self.channel)

    def try_lock(self, connection: sa.Connection) -> bool:
        """Take the lock for the session if nobody has it or queues for it."""
        return bool(self._ask(connection, "try_lock", lock=self.lock))

    @property
    def queue_statement(self) -> bytes:
        """What to send to wait for the lock; it answers when the lock is there."""
        return SQL["queue"].format(lock=self.lock).encode()

    def in_queue(self, connection: sa.Connection, pid: int) -> bool:
        """Whether that backend has the lock or queues for it."""
        return bool(self._ask(connection, "in_queue", pid=pid))

    def wait_without_limit(self, connection: sa.Connection) -> None:
        """Lift the session's own time limits. Only for a connection that no pooler shares."""
        self._ask(connection, "wait_without_limit")

    def unlock(self, connection: sa.Connection) -> None:
        """Give up every advisory lock of the session."""
        self._ask(connection, "unlock")

    @staticmethod
    def _ask(connection: sa.Connection, name: str, **parameters: Any) -> Any:
        with connection.begin():
            return connection.execute(sa.text(SQL[name]), parameters).scalar_one()
