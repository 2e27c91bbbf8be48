"""Added events stay readable after the commit, when a relay may already have deleted their rows.

A session expires what it holds at each commit and reloads it at the next access: that would raise ObjectDeletedError,
or MissingGreenlet under asyncio. So what a flush has stored is put back as soon as it is expired.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapper, Session, object_session
from sqlalchemy.orm.attributes import set_committed_value

__all__ = ["stay_readable"]

ROW = "_row"


@dataclass(slots=True)
class _Row:
    """What is known of an added event's row; no values: nothing for certain, so SQLAlchemy's own reloading applies."""

    values: dict[str, Any]
    changed: bool = False
    committed: bool = False

    def end_transaction(self, session: Session) -> None:
        """Tell a commit from a rollback, which looks the same from here, and forget what the latter has undone.

        A rollback of the insert itself is never seen: it makes the event transient and expires nothing.
        """
        is_first_commit = not self.committed and session.expire_on_commit and not session.in_nested_transaction()
        if self.changed and not is_first_commit:
            self.values = {}
        self.committed = self.committed or not session.in_nested_transaction()
        self.changed = False


def stay_readable(event_class: type) -> None:
    """Have the instances that a session inserts keep their attributes when they expire."""
    mapper: Mapper[Any] = sa.inspect(event_class)
    names = [attribute.key for attribute in mapper.column_attrs]

    def known(event: object) -> dict[str, Any]:
        values = event.__dict__
        return {name: values[name] for name in names if name in values}

    def inserted(_mapper: object, _connection: object, event: object) -> None:
        event.__dict__[ROW] = _Row(known(event))

    def updated(_mapper: object, _connection: object, event: object) -> None:
        if row := event.__dict__.get(ROW):
            row.values, row.changed = known(event), True

    def refreshed(event: object, _context: object, _attributes: object) -> None:
        row = event.__dict__.get(ROW)
        if row and not row.committed:
            row.values = known(event)

    def expired(event: object, attributes: list[str] | None) -> None:
        row = event.__dict__.get(ROW)
        if not row:
            return
        session = object_session(event)
        if attributes is None and session is not None and not session.is_active:
            row.end_transaction(session)
        for name in row.values if attributes is None else row.values.keys() & attributes:
            set_committed_value(event, name, row.values[name])

    sa.event.listen(event_class, "after_insert", inserted)
    sa.event.listen(event_class, "after_update", updated)
    sa.event.listen(event_class, "refresh", refreshed)
    sa.event.listen(event_class, "expire", expired)
