"""What the types of the public API promise. Not run: mypy checks it, and that each marked mistake is an error."""

import datetime as dt
from typing import Any, assert_type

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Session

from outbox import EventBase, InvalidEvent, OutboxError, OutboxEvent, make_event_class, uuid7


class Base(DeclarativeBase):
    pass


def attributes_of_an_event(event: OutboxEvent) -> None:
    assert_type(event.id, int)
    assert_type(event.idempotency_key, str)
    assert_type(event.outbox, str)
    assert_type(event.topic, str)
    assert_type(event.type, str)
    assert_type(event.key, str | None)
    assert_type(event.payload, Any)
    assert_type(event.content_type, str)
    assert_type(event.headers, dict[str, str | int | bool] | None)
    assert_type(event.available_at, dt.datetime | None)


def attributes_of_the_class() -> None:
    assert_type(OutboxEvent.topic, InstrumentedAttribute[str])
    assert_type(OutboxEvent.id, InstrumentedAttribute[int])
    assert_type(OutboxEvent.__table__, sa.Table)


def construction(payload: object) -> None:
    OutboxEvent(topic="t", type="T")
    OutboxEvent(
        topic="t",
        type="T",
        payload=payload,
        key="k",
        headers={"a": 1, "b": "x", "c": True},
        outbox="billing",
        available_at=dt.datetime.now(dt.UTC),
        content_type="text/plain",
        idempotency_key=uuid7(),
    )
    OutboxEvent(topic="t", type="T", delay=1)
    OutboxEvent(topic="t", type="T", delay=0.5)
    OutboxEvent(topic="t", type="T", delay=dt.timedelta(minutes=1))
    OutboxEvent(topic="t", type="T", key=None, headers=None, delay=None, available_at=None, content_type=None)


def mistakes(event: OutboxEvent) -> None:
    OutboxEvent("t", "T")  # type: ignore[call-arg]  # by name only
    OutboxEvent(topic="t")  # type: ignore[call-arg]  # no type
    OutboxEvent(topic=1, type="T")  # type: ignore[arg-type]  # topic is a str
    OutboxEvent(topic="t", type="T", key=7)  # type: ignore[arg-type]  # key is a str
    OutboxEvent(topic="t", type="T", headers={"a": 1.5})  # type: ignore[dict-item]  # no floats
    OutboxEvent(topic="t", type="T", available_at="now")  # type: ignore[arg-type]  # a datetime
    OutboxEvent(topic="t", type="T", delay="5")  # type: ignore[arg-type]  # seconds or a timedelta
    OutboxEvent(topic="t", type="T", id=1)  # type: ignore[call-arg]  # the database gives ids
    event.topic = None  # type: ignore[assignment]  # never NULL
    event.key = None
    _ = event.attempts  # type: ignore[attr-defined]  # the relay's own
    make_event_class(Base)  # type: ignore[arg-type]  # the metadata, not the class
    make_event_class(Base.metadata, "schema")  # type: ignore[call-arg]  # by name only


def factory() -> None:
    event_class = make_event_class(Base.metadata, schema="app", prefix="x_")
    assert_type(event_class, type[EventBase])
    event = event_class(topic="t", type="T", payload={"a": 1})
    assert_type(event, EventBase)
    assert_type(event.headers, dict[str, str | int | bool] | None)
    assert_type(make_event_class(), type[EventBase])
    anything: EventBase = OutboxEvent(topic="t", type="T")
    assert_type(anything.topic, str)


def sessions(session: Session) -> None:
    session.add(OutboxEvent(topic="t", type="T"))
    session.add_all([OutboxEvent(topic="t", type="T")])
    session.execute(sa.insert(OutboxEvent), [{"topic": "t", "type": "T", "payload": None}])
    assert_type(session.get(OutboxEvent, 1), OutboxEvent | None)
    assert_type(session.scalars(sa.select(OutboxEvent).where(OutboxEvent.key == "k")).one(), OutboxEvent)


async def async_sessions(session: AsyncSession) -> None:
    session.add(OutboxEvent(topic="t", type="T"))
    assert_type((await session.scalars(sa.select(OutboxEvent))).one(), OutboxEvent)
    assert_type(await session.get(OutboxEvent, 1), OutboxEvent | None)


def exceptions() -> None:
    try:
        OutboxEvent(topic="", type="T")
    except InvalidEvent as error:
        as_value: ValueError = error
        as_ours: OutboxError = error
        print(as_value, as_ours)


assert_type(uuid7(), str)
