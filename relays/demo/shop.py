"""The demo's application: a shop whose orders and events are committed together, or not at all."""

import itertools
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox import OutboxEvent
from relays.demo.oracle import Sale

__all__ = ["TOPIC", "Shop"]

TOPIC = "orders"
CUSTOMERS = 50
CHECKOUTS = 4
"""Threads that take orders."""

ORDERS_PER_SECOND = 100
"""Slow enough for the consumer to keep the queue shallow: moto has more to do the more messages it holds."""

EVERY_ABANDONED, EVERY_GIFT = 10, 7
"""One order in so many is broken off before the commit; has a savepoint rolled back on its way."""


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "shop_customer"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    orders: Mapped[int] = mapped_column(default=0)


class Order(Base):
    __tablename__ = "shop_order"
    __table_args__ = (sa.UniqueConstraint("customer_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(sa.ForeignKey(Customer.id))
    number: Mapped[int]
    event_key: Mapped[str] = mapped_column(unique=True)


class Shop:
    """Takes orders from several threads. The tables are its own; of the outbox it knows the event class only."""

    def __init__(self, engine: sa.Engine, orders: int) -> None:
        self.committed = self.rolled_back = 0
        self._engine, self._orders = engine, orders
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._turns = itertools.count()
        self._checkouts = ThreadPoolExecutor(CHECKOUTS, thread_name_prefix="checkout")
        self._running: list[Future[None]] = []

    def open(self) -> None:
        """Make the tables and the customers, and start to take orders."""
        Base.metadata.create_all(self._engine)
        with Session(self._engine) as session, session.begin():
            session.add_all(Customer(name=f"customer-{number:02}") for number in range(1, CUSTOMERS + 1))
        self._started = time.monotonic()
        self._running = [self._checkouts.submit(self._take_orders) for _ in range(CHECKOUTS)]

    @property
    def is_open(self) -> bool:
        """Whether orders are still to come. Raises what a checkout has failed with."""
        done = [checkout for checkout in self._running if checkout.done()]
        for checkout in done:
            checkout.result()
        return len(done) < len(self._running)

    def close(self) -> None:
        """Take no further orders."""
        self._stop.set()
        self._checkouts.shutdown()

    def sales(self) -> list[Sale]:
        """The orders that were committed, as the database has them."""
        query = sa.select(Order.event_key, Customer.name, Order.number).join(Customer)
        with Session(self._engine) as session:
            return [Sale(*row) for row in session.execute(query)]

    def _take_orders(self) -> None:
        while (turn := next(self._turns)) < self._orders:
            due = self._started + turn / ORDERS_PER_SECOND
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            if turn % EVERY_ABANDONED == 0:
                self._abandon_order(turn)
            self._take_order(turn)

    def _take_order(self, turn: int) -> None:
        with Session(self._engine) as session, session.begin():
            customer = _place_order(session, turn)
            if turn % EVERY_GIFT == 0:
                _offer_gift(session, customer)
        with self._lock:
            self.committed += 1

    def _abandon_order(self, turn: int) -> None:
        with Session(self._engine) as session:
            _place_order(session, turn)
            session.flush()
            session.rollback()
        with self._lock:
            self.rolled_back += 1


def _place_order(session: Session, turn: int) -> Customer:
    """Add an order and its event to the session's transaction.

    The lock on the customer is what makes the order of the commits that of the events: whoever wants the next number
    waits for the commit of the one before.
    """
    customer = session.get_one(Customer, turn % CUSTOMERS + 1, with_for_update=True)
    customer.orders += 1
    event = OutboxEvent(
        topic=TOPIC,
        type="OrderPlaced",
        key=customer.name,
        payload={"customer": customer.name, "number": customer.orders},
    )
    session.add_all([Order(customer_id=customer.id, number=customer.orders, event_key=event.idempotency_key), event])
    return customer


def _offer_gift(session: Session, customer: Customer) -> None:
    """Nobody wants it: the savepoint takes the event back, the order stays."""
    with session.begin_nested() as savepoint:
        payload = {"customer": customer.name, "number": 0}
        session.add(OutboxEvent(topic=TOPIC, type="GiftAdded", key=customer.name, payload=payload))
        session.flush()
        savepoint.rollback()
