"""The event as a mapped class: what applications add to their sessions."""

import datetime as dt
from collections.abc import Mapping
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, registry
from sqlalchemy.orm.attributes import flag_modified, instance_state

from outbox import codecs
from outbox.errors import InvalidEvent
from outbox.identifiers import uuid7
from outbox.naming import Naming
from outbox.readable import stay_readable
from outbox.tables import build_tables

__all__ = ["EventBase", "OutboxEvent", "make_event_class"]

# The relay's own columns: producers need no right to read them, and nothing here ever loads them.
UNMAPPED = ["attempts", "crashes", "resends", "created_at", "lane", "held", "last_error"]


class EventBase:
    """An event: a message to be, committed with the rows it tells about.

    Parameters (keyword only):
        topic: where it goes: routing key, queue name or whatever the relay's routes match. 1 to 255 bytes.
        type: what happened, for the consumer (`OrderPlaced`). 1 to 255 bytes.
        payload: dict, list, dataclass, pydantic model, None, str, int, float or bool become JSON (a str stays as
            it is, in UTF-8, when `content_type` is text/*); bytes are sent untouched.
        key: the ordering key: events of one key are published in the order of their insertion. 1 to 255 bytes.
            None: no order, most parallelism.
        headers: extra names for the message, with str, int (64 bit) or bool values.
        outbox: the named queue within the table that a relay drains. 1 to 63 bytes.
        available_at: not before this time (with a time zone); it blocks no other event meanwhile.
        delay: the same, from now by this machine's clock, as seconds or a timedelta. Constructor only: statements and
            bulk inserts know `available_at`, and SQLAlchemy drops or refuses names that are no columns.
        content_type: default application/json, for bytes application/octet-stream.
        idempotency_key: what consumers recognise duplicates by: 1 to 128 ASCII letters, digits and punctuation, which
            is the rule for an SQS deduplication id. Default: a new UUIDv7.

    Raises InvalidEvent, naming the field, before anything is stored.

    After the commit every attribute stays readable without a query, although a relay may have removed the row.
    A flushed event can be changed within its transaction; once committed it may be on its way, and a change to a row
    that is gone raises SQLAlchemy's StaleDataError.
    """

    __table__: ClassVar[sa.Table]

    id: Mapped[int]
    idempotency_key: Mapped[str]
    outbox: Mapped[str]
    topic: Mapped[str]
    type: Mapped[str]
    key: Mapped[str | None]
    payload: Mapped[Any]
    content_type: Mapped[str]
    headers: Mapped[dict[str, codecs.HeaderValue] | None]
    available_at: Mapped[dt.datetime | None]

    def __init__(
        self,
        *,
        topic: str,
        type: str,  # noqa: A002 (the field's name on the wire and in the table)
        payload: Any = None,
        key: str | None = None,
        headers: Mapping[str, codecs.HeaderValue] | None = None,
        outbox: str = "default",
        available_at: dt.datetime | None = None,
        delay: float | dt.timedelta | None = None,
        content_type: str | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        self.topic = codecs.check_text("topic", topic, codecs.LIMITS["topic"])
        self.type = codecs.check_text("type", type, codecs.LIMITS["type"])
        self.outbox = codecs.check_text("outbox", outbox, codecs.LIMITS["outbox"])
        self.key = None if key is None else codecs.check_text("key", key, codecs.LIMITS["key"])
        self.headers = None if headers is None else codecs.check_headers(headers)
        self.available_at = _available_at(available_at, delay)
        content_type = codecs.default_content_type(payload) if content_type is None else content_type
        self.content_type = codecs.check_text("content_type", content_type, codecs.LIMITS["content_type"])
        codecs.encode_payload(payload, content_type)  # refused here, where the traceback shows who made it
        self.payload = payload
        self.idempotency_key = uuid7() if idempotency_key is None else codecs.check_idempotency_key(idempotency_key)

    def __repr__(self) -> str:
        values = self.__dict__  # never a query: this is what log lines and debuggers show
        names = ", ".join(f"{name}={values.get(name)!r}" for name in ("topic", "type", "key", "idempotency_key"))
        return f"{type(self).__name__}({names})"


def _available_at(available_at: dt.datetime | None, delay: float | dt.timedelta | None) -> dt.datetime | None:
    if delay is None:
        return None if available_at is None else codecs.check_available_at(available_at)
    if available_at is not None:
        raise InvalidEvent("delay: give either delay or available_at, not both")
    try:
        span = delay if isinstance(delay, dt.timedelta) else dt.timedelta(seconds=delay)
        when = dt.datetime.now(dt.UTC) + span
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidEvent(f"delay: expected seconds or a timedelta, got {delay!r:.80} ({error})") from error
    if span < dt.timedelta(0):
        raise InvalidEvent(f"delay: can't be negative, got {delay!r}")
    return when if span else None


def make_event_class(
    metadata: sa.MetaData | None = None, *, schema: str | None = None, prefix: str = "outbox_"
) -> type[EventBase]:
    """A mapped event class for tables of another schema or prefix, or whose tables belong to a host's own metadata.

    With `metadata=Base.metadata` the host's `create_all()` makes the outbox tables too, complete. Alembic's
    autogenerate can't write the trigger: keep `outbox.migrations.include_object`, and let `outbox.migrations.upgrade`
    make the tables there.
    Raises ConfigurationError for a schema or prefix that would need quoting.
    """
    metadata = sa.MetaData() if metadata is None else metadata
    table = build_tables(metadata, Naming(schema, prefix)).event
    event_class = type("OutboxEvent", (EventBase,), {"__doc__": EventBase.__doc__})
    _map(event_class, table)
    return event_class


def _map(event_class: type[EventBase], table: sa.Table) -> None:
    # eager_defaults would fetch what only a SELECT privilege on more than the id could return.
    registry(metadata=table.metadata).map_imperatively(
        event_class, table, eager_defaults=False, exclude_properties=UNMAPPED
    )
    sa.event.listen(event_class, "before_insert", _forget_id)
    sa.event.listen(event_class, "before_update", _encode_again)
    stay_readable(event_class)


def _forget_id(_mapper: object, _connection: object, event: EventBase) -> None:
    # Left from an earlier flush that was rolled back; the database alone gives ids.
    event.__dict__.pop("id", None)


def _encode_again(_mapper: object, _connection: object, event: EventBase) -> None:
    # The payload's column type can't see the content type. In an INSERT a column default helps it, in an UPDATE we do.
    values = event.__dict__
    if "payload" in values and instance_state(event).attrs.content_type.history.has_changes():
        flag_modified(event, "payload")
    if isinstance(values.get("payload"), str) and codecs.is_text(values.get("content_type")):
        event.payload = codecs.encode_payload(values["payload"], values["content_type"])


class OutboxEvent(EventBase):
    __doc__ = EventBase.__doc__


_map(OutboxEvent, build_tables(sa.MetaData()).event)
