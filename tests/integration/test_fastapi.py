"""A FastAPI application with an AsyncSession, while something as fast as the fastest relay deletes its events."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import httpx
import psycopg
import pytest
import sqlalchemy as sa
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outbox import OutboxEvent

pytestmark = pytest.mark.anyio

DEADLINE = 30.0


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class Relay(threading.Thread):
    """Deletes what is committed, and says which events those were."""

    def __init__(self, url: str) -> None:
        super().__init__(name="relay", daemon=True)
        self._url = url.replace("+psycopg", "")
        self._changed = threading.Condition()
        self._taken: list[tuple[int, str, bytes]] = []
        self._ended = False

    def run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._ended:
                rows = connection.execute("DELETE FROM outbox_event RETURNING id, idempotency_key, payload").fetchall()
                with self._changed:
                    self._taken += [(number, key, bytes(payload)) for number, key, payload in rows]
                    self._changed.notify_all()

    def taken(self) -> list[tuple[int, str, bytes]]:
        with self._changed:
            return list(self._taken)

    def wait_for(self, event_id: int) -> None:
        """Return once the row is gone: what is read afterwards can't come from the database."""
        with self._changed:
            gone = self._changed.wait_for(lambda: any(row[0] == event_id for row in self._taken), DEADLINE)
        assert gone, f"event {event_id} was not deleted within {DEADLINE} s"

    def end(self) -> None:
        self._ended = True
        self.join(DEADLINE)


class OrderIn(BaseModel):
    item: str


class EventOut(BaseModel):
    """Everything that an event knows of itself."""

    model_config = ConfigDict(from_attributes=True)
    id: int
    idempotency_key: str
    outbox: str
    topic: str
    type: str
    key: str | None
    payload: Any
    content_type: str
    headers: dict[str, str | int | bool] | None
    available_at: str | None


app = FastAPI()


async def get_session(request: Request) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(request.app.state.engine) as session:
        yield session


DatabaseSession = Annotated[AsyncSession, Depends(get_session)]


async def place(order: OrderIn, session: AsyncSession, request: Request) -> tuple[Order, OutboxEvent]:
    row = Order(item=order.item)
    session.add(row)
    await session.flush()
    event = OutboxEvent(
        topic="orders.placed",
        type="OrderPlaced",
        key=f"order-{row.id}",
        payload={"order": order, "id": row.id},
        headers={"source": "shop"},
    )
    session.add(event)
    if order.item == "forbidden":
        await session.flush()
        raise HTTPException(422, "no such item")
    await session.commit()
    await asyncio.to_thread(request.app.state.relay.wait_for, event.id)
    return row, event


@app.post("/orders", response_model=EventOut, status_code=201)
async def place_order(order: OrderIn, session: DatabaseSession, request: Request) -> OutboxEvent:
    _, event = await place(order, session, request)
    return event


@app.post("/orders/careless", status_code=201)
async def place_order_and_read_the_model(order: OrderIn, session: DatabaseSession, request: Request) -> dict[str, str]:
    row, _ = await place(order, session, request)
    return {"item": row.item}


@pytest.fixture
def relay(kept_url: str, kept_engine: sa.Engine) -> Iterator[Relay]:
    Base.metadata.create_all(kept_engine)
    relay = Relay(kept_url)
    relay.start()
    yield relay
    relay.end()
    Base.metadata.drop_all(kept_engine)


@pytest.fixture(params=["psycopg", "asyncpg"])
async def async_engine(request: pytest.FixtureRequest, kept_engine: sa.Engine) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(kept_engine.url.set(drivername=f"postgresql+{request.param}"))
    yield engine
    await engine.dispose()


@pytest.fixture
async def client(async_engine: AsyncEngine, relay: Relay) -> AsyncIterator[httpx.AsyncClient]:
    app.state.engine, app.state.relay = async_engine, relay
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=DEADLINE) as client:
        yield client


async def test_the_response_tells_of_events_that_are_already_gone(client: httpx.AsyncClient, relay: Relay) -> None:
    responses = await asyncio.gather(*(client.post("/orders", json={"item": f"tea {n}"}) for n in range(40)))
    assert {response.status_code for response in responses} == {201}
    told = [response.json() for response in responses]
    for number, event in enumerate(told):
        order = event["payload"]["id"]
        assert event == {
            "id": event["id"],
            "idempotency_key": event["idempotency_key"],
            "outbox": "default",
            "topic": "orders.placed",
            "type": "OrderPlaced",
            "key": f"order-{order}",
            "payload": {"order": {"item": f"tea {number}"}, "id": order},
            "content_type": "application/json",
            "headers": {"source": "shop"},
            "available_at": None,
        }
    taken = {(number, key) for number, key, _ in relay.taken()}
    assert {(event["id"], event["idempotency_key"]) for event in told} == taken
    assert len(taken) == 40


async def test_a_refused_request_commits_neither_order_nor_event(
    client: httpx.AsyncClient, relay: Relay, kept_engine: sa.Engine
) -> None:
    refused = await client.post("/orders", json={"item": "forbidden"})
    accepted = await client.post("/orders", json={"item": "tea"})
    assert (refused.status_code, accepted.status_code) == (422, 201)
    assert [key for _, key, _ in relay.taken()] == [accepted.json()["idempotency_key"]]
    with kept_engine.connect() as connection:
        assert connection.scalars(sa.select(Order.item)).all() == ["tea"]


async def test_a_model_of_the_application_can_not_be_read_there(client: httpx.AsyncClient) -> None:
    """Under the default expire_on_commit. Events are the exception, and that is what the tests above show."""
    assert (await client.post("/orders/careless", json={"item": "tea"})).status_code == 500
