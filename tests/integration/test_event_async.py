"""The event class in an AsyncSession, over psycopg and over asyncpg."""

import asyncio
import copy
import datetime as dt
import pickle
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import MissingGreenlet, StatementError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outbox import InvalidEvent, OutboxEvent, make_event_class
from tests.support.inserts import INSERTS, TABLE, Insert

pytestmark = pytest.mark.anyio

BASE = {"topic": "orders", "type": "OrderPlaced"}
FUTURE = dt.datetime(2040, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))
PLAIN, JSON, BINARY = "text/plain", "application/json", "application/octet-stream"
FIELDS = [
    "id",
    "idempotency_key",
    "outbox",
    "key",
    "topic",
    "type",
    "payload",
    "content_type",
    "headers",
    "available_at",
]


class HostBase(DeclarativeBase):
    pass


class HostOrder(HostBase):
    """A model of the application's own, which goes by SQLAlchemy's usual rules."""

    __tablename__ = "async_host_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str]


def make(**fields: Any) -> OutboxEvent:
    return OutboxEvent(**{**BASE, **fields})


def read(event: OutboxEvent) -> dict[str, Any]:
    return {name: getattr(event, name) for name in FIELDS}


async def stored(session: AsyncSession, *columns: str) -> list[Any]:
    """What plain SQL sees, in the order of the ids."""
    result = await session.execute(sa.text(f"SELECT {', '.join(columns)} FROM outbox_event ORDER BY id"))
    rows = result.all()
    return [row[0] for row in rows] if len(columns) == 1 else [tuple(row) for row in rows]


def delete_all(engine: sa.Engine) -> None:
    """What a fast relay does."""
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM outbox_event")


@pytest.fixture(params=["psycopg", "asyncpg"])
async def async_engine(request: pytest.FixtureRequest, kept_engine: sa.Engine) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(kept_engine.url.set(drivername=f"postgresql+{request.param}"))
    yield engine
    await engine.dispose()


@pytest.fixture
async def session(async_engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(async_engine) as session:
        yield session


ways = pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS.keys())


# Every way to insert gives the same rows as without asyncio


@ways
async def test_payloads_are_encoded_alike(session: AsyncSession, insert: Insert) -> None:
    payloads: list[tuple[dict[str, Any], bytes, str]] = [
        ({"payload": {"at": FUTURE, "n": [1.5]}}, b'{"at":"2040-01-01T12:00:00+02:00","n":[1.5]}', JSON),
        ({"payload": None}, b"null", JSON),
        ({"payload": "text"}, b'"text"', JSON),
        ({"payload": b"\x00\xff"}, b"\x00\xff", BINARY),
        ({"payload": bytearray(b"\x01")}, b"\x01", BINARY),
        ({"payload": memoryview(b"\x02")}, b"\x02", BINARY),
        ({"payload": "text ä", "content_type": PLAIN}, "text ä".encode(), PLAIN),
        ({"payload": {"a": 1}, "content_type": PLAIN}, b'{"a":1}', PLAIN),
    ]
    await session.run_sync(insert, [{**BASE, **fields} for fields, _, _ in payloads])
    assert await stored(session, "payload", "content_type") == [(body, kind) for _, body, kind in payloads]


@ways
async def test_the_other_fields_and_the_defaults_are_stored_alike(session: AsyncSession, insert: Insert) -> None:
    fields = {
        "payload": 1,
        "key": "schlüssel",
        "headers": {"a": "x", "b": 2**63 - 1, "c": True},
        "outbox": "billing",
        "available_at": FUTURE,
        "idempotency_key": "k" * 128,
    }
    await session.run_sync(insert, [{**BASE, **fields}])
    await session.run_sync(insert, [{**BASE, "payload": 2}])
    columns = ["key", "convert_from(payload, 'UTF8')::int", "outbox", "available_at", "headers ->> 'b'"]
    assert await stored(session, *columns) == [
        ("schlüssel", 1, "billing", FUTURE, str(2**63 - 1)),
        (None, 2, "default", None, None),
    ]
    given, made = await stored(session, "idempotency_key")
    assert (given, uuid.UUID(made).version) == ("k" * 128, 7)


@ways
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"topic": ""}, "topic"),
        ({"payload": {1}}, "payload"),
        ({"available_at": FUTURE.replace(tzinfo=None)}, "available_at"),
    ],
)
async def test_a_wrong_value_is_refused_as_it_is_in_a_session(
    session: AsyncSession, insert: Insert, wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidEvent, match=rf"^{field}: "):
        await session.run_sync(insert, [{**BASE, "payload": 1, **wrong}])


async def test_a_thousand_added_events_keep_their_order_and_get_their_ids(session: AsyncSession) -> None:
    events = [make(payload=number, headers={"n": number} if number % 3 else None) for number in range(1000)]
    session.add_all(events)
    await session.commit()
    ids = [event.id for event in events]
    assert sorted(ids) == ids
    assert await stored(session, "id", "payload") == [(event.id, str(event.payload).encode()) for event in events]


async def test_statements_are_awaited_like_any(session: AsyncSession) -> None:
    event_id = await session.scalar(
        sa.insert(OutboxEvent).values(**BASE, payload="x", content_type=PLAIN).returning(OutboxEvent.id)
    )
    await session.execute(sa.insert(TABLE), [{**BASE, "payload": 1}, {**BASE, "payload": 2}])
    ids, payloads = zip(*await stored(session, "id", "payload"), strict=True)
    assert ids[0] == event_id
    assert payloads == (b"x", b"1", b"2")


@pytest.mark.parametrize("infinity", ["infinity", "-infinity"])
async def test_events_that_the_relay_has_put_aside_can_be_read(session: AsyncSession, infinity: str) -> None:
    session.add(make(payload=1))
    await session.flush()
    await session.execute(sa.text(f"UPDATE outbox_event SET held = 'blocked', available_at = '{infinity}'"))
    await session.commit()
    session.expunge_all()
    event = (await session.scalars(sa.select(OutboxEvent))).one()
    assert (event.topic, event.payload, event.available_at) == ("orders", b"1", None)


# Readable after the commit


async def test_a_model_of_the_applications_own_shows_what_would_happen(
    async_engine: AsyncEngine, session: AsyncSession
) -> None:
    async with async_engine.begin() as connection:
        await connection.run_sync(HostBase.metadata.create_all)
    order = HostOrder(note="x")
    session.add(order)
    await session.commit()
    # SQLAlchemy 2.1 wraps it in a StatementError with some drivers.
    with pytest.raises((MissingGreenlet, StatementError), match="greenlet_spawn has not been called"):
        _ = order.note


async def test_every_attribute_stays_readable_when_the_row_is_gone(
    kept_engine: sa.Engine, session: AsyncSession
) -> None:
    event = make(payload={"a": 1}, key="k", headers={"h": True}, available_at=FUTURE, outbox="billing")
    given = {name: getattr(event, name) for name in FIELDS if name != "id"}
    session.add(event)
    await session.commit()
    delete_all(kept_engine)
    assert read(event) == {**given, "id": event.id}
    assert event.id > 0


@pytest.mark.parametrize("later", ["commit", "rollback", "close"])
async def test_they_stay_readable_whatever_the_session_does_next(
    kept_engine: sa.Engine, session: AsyncSession, later: str
) -> None:
    event = make(payload={"a": 1})
    session.add(event)
    await session.commit()
    delete_all(kept_engine)
    before = read(event)
    await session.execute(sa.text("SELECT 1"))
    await getattr(session, later)()
    session.expire_all()
    assert read(event) == before
    assert read(copy.deepcopy(event)) == before
    assert read(pickle.loads(pickle.dumps(event))) == before


async def test_a_refresh_between_flush_and_commit(kept_engine: sa.Engine, session: AsyncSession) -> None:
    event = make(payload={"a": 1})
    session.add(event)
    await session.flush()
    await session.refresh(event)
    await session.commit()
    delete_all(kept_engine)
    assert (event.topic, event.payload) == ("orders", b'{"a":1}')
    with pytest.raises(sa.exc.InvalidRequestError, match="Could not refresh"):
        await session.refresh(event)
    assert event.topic == "orders"


async def test_a_change_between_flush_and_commit(kept_engine: sa.Engine, session: AsyncSession) -> None:
    event = make(payload={}, content_type=PLAIN)
    session.add(event)
    await session.flush()
    event.key, event.payload = "order-7", "seven"
    await session.commit()
    assert await stored(session, "key", "payload") == [("order-7", b"seven")]
    delete_all(kept_engine)
    assert event.key == "order-7"


# Rollbacks


async def test_rollbacks_take_their_events_with_them(session: AsyncSession) -> None:
    session.add(make(payload="before"))
    savepoint = await session.begin_nested()
    session.add(make(payload="within"))
    await session.flush()
    await savepoint.rollback()
    await session.commit()
    session.add(make(payload="after"))
    await session.flush()
    await session.rollback()
    assert await stored(session, "payload") == [b'"before"']


async def test_what_a_rolled_back_savepoint_has_changed_is_not_shown(session: AsyncSession) -> None:
    event = make(topic="first")
    session.add(event)
    await session.flush()
    savepoint = await session.begin_nested()
    event.topic = "second"
    await session.flush()
    await savepoint.rollback()
    await session.refresh(event)
    await session.commit()
    assert event.topic == "first"


async def test_a_rolled_back_event_can_be_added_again(kept_engine: sa.Engine, session: AsyncSession) -> None:
    event = make(payload=1)
    session.add(event)
    await session.flush()
    first_id = event.id
    await session.rollback()
    session.add(event)
    await session.commit()
    delete_all(kept_engine)
    assert event.id > first_id


# Many at once, and other tables


async def test_sessions_add_events_at_the_same_time(async_engine: AsyncEngine, session: AsyncSession) -> None:
    async def add(number: int) -> OutboxEvent:
        async with AsyncSession(async_engine) as one:
            one.add(event := make(payload=number))
            await one.commit()
            return event

    events = await asyncio.gather(*(add(number) for number in range(20)))
    expected = sorted((event.id, str(event.payload).encode()) for event in events)
    assert await stored(session, "id", "payload") == expected


async def test_a_host_makes_the_tables_with_its_own(async_engine: AsyncEngine) -> None:
    metadata = sa.MetaData()
    event_class = make_event_class(metadata, prefix="async_")
    async with async_engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    async with AsyncSession(async_engine) as session:
        session.add(event_class(topic="t", type="T"))
        await session.commit()
    async with async_engine.begin() as connection:
        triggers = await connection.scalar(
            sa.text(
                "SELECT count(*) FROM pg_trigger WHERE tgrelid = CAST('async_event' AS regclass) AND tgenabled = 'A'"
            )
        )
        await connection.run_sync(metadata.drop_all)
        functions = await connection.scalar(
            sa.text("SELECT count(*) FROM pg_proc WHERE proname = 'async_event_wake_up'")
        )
    assert (triggers, functions) == (1, 0)
