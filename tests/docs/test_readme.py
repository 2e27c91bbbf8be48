"""The README, run as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox.naming import Naming
from outbox.store.statements import statement
from relays.exit_codes import ExitCode
from relays.publishers.rabbitmq import RabbitMQSettings
from relays.publishers.sqs import SQSSettings
from relays.settings import RelaySettings
from relays.sources import settings_of
from tests.docs.reading import ROOT, Block, Reader, blocks
from tests.support.rabbitmq import connect

README = ROOT / "README.md"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


class Broker:
    """Notes what is published; `away` makes it fail."""

    away = False

    def __init__(self) -> None:
        self.published: list[Any] = []

    def publish(self, topic: str, payload: object) -> None:
        if self.away:
            raise ConnectionError
        self.published.append(payload)


class FailingSession(Session):
    def commit(self) -> None:
        self.flush()
        self.rollback()
        raise OperationalError("COMMIT", {}, Exception("the connection is gone"))


def attempt(name: str) -> Any:
    (block,) = [block for block in blocks(README) if block.comment == f"attempt: {name}"]
    namespace: dict[str, Any] = {}
    exec(block.code, namespace)
    return namespace["place_order"]


def count(engine: sa.Engine, table: str) -> int:
    with engine.connect() as connection:
        return connection.scalar(sa.text(f"SELECT count(*) FROM {table}")) or 0


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def shop(engine: sa.Engine) -> sa.Engine:
    Base.metadata.create_all(engine)
    return engine


def test_publishing_after_the_commit_loses_events(shop: sa.Engine, broker: Broker) -> None:
    broker.away = True
    with Session(shop) as session, pytest.raises(ConnectionError):
        attempt("after")(session, broker, Order(item="tea"))
    assert (count(shop, "orders"), broker.published) == (1, [])


def test_publishing_before_the_commit_invents_events(shop: sa.Engine, broker: Broker) -> None:
    with FailingSession(shop) as session, pytest.raises(OperationalError):
        attempt("before")(session, broker, Order(item="tea"))
    assert (count(shop, "orders"), broker.published) == (0, [{"item": "tea"}])


@pytest.mark.parametrize("kind", [Session, FailingSession])
def test_the_outbox_has_both_or_neither(shop: sa.Engine, kind: type[Session]) -> None:
    with kind(shop) as session:
        try:
            attempt("outbox")(session, Order(item="tea"))
        except OperationalError:
            assert (count(shop, "orders"), count(shop, "outbox_event")) == (0, 0)
        else:
            assert (count(shop, "orders"), count(shop, "outbox_event")) == (1, 1)


@pytest.mark.slow
def test_the_quick_start(tmp_path: Path, database_url: str, amqp_url: str, queue: str) -> None:
    """Every block in turn: with fewer orders in the demo, and a queue of our own."""
    reader = Reader(
        tmp_path / "shop",
        database_url.replace("+psycopg", ""),
        {
            "amqp://guest:guest@localhost:5672/%2F": amqp_url,
            '"orders"': f'"{queue}"',  # topics and queues, not the table
            '__tablename__ = "' + queue: '__tablename__ = "orders',
            "outbox-relay demo": "outbox-relay demo --orders 40",
        },
    )
    assert reader.follow(README) >= 4
    with connect(amqp_url) as connection:
        method, properties, body = connection.channel().basic_get(queue, auto_ack=True)
    assert (properties.type, body, method.message_count) == ("OrderPlaced", b'{"id":1}', 0)


def test_the_application_is_about_20_lines() -> None:
    (block,) = [block for block in blocks(README) if block.comment == "file: shop.py"]
    assert len([line for line in block.code.splitlines() if line]) <= 22


def test_the_claim_is_the_one_that_runs() -> None:
    (block,) = [block for block in blocks(README) if block.role == "statement"]
    assert block.argument == "claim"
    assert block.code.split() == statement("claim", Naming()).text.split()


def table_below(comment: str) -> list[list[str]]:
    lines = README.read_text().partition(f"<!-- {comment} -->\n")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_exit_codes() -> None:
    assert table_below("exit codes") == [[f"{code:d}", code.meaning] for code in ExitCode]


def test_the_settings() -> None:
    known = {each.env: each for cls in (RelaySettings, RabbitMQSettings, SQSSettings) for each in settings_of(cls)}
    rows = table_below("settings")
    assert len(rows) > 10
    for flag, env, default, _ in rows:
        setting = known[env.strip("`")]
        assert flag.strip("`") == setting.flag
        if re.fullmatch(r"[\d.]+", default):
            assert float(default) == setting.info.default


def test_nothing_else_is_left_out() -> None:
    """What is not run says why."""
    left_out = [block for block in blocks(README) if block.role == "not run"]
    assert all(isinstance(block, Block) and block.argument for block in left_out)
    assert len(left_out) == 4
