"""A broker that stops, is killed or goes into alarm while a relay runs: no event lost, none charged."""

import logging
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from relays.publishers import Options, Publisher
from relays.publishers.rabbitmq import RabbitMQPublisher, RabbitMQSettings
from relays.routing import Routes
from tests.support.consume import first_occurrences, from_rabbitmq
from tests.support.rabbitmq import PrivateRabbitMQ, connect
from tests.support.relay import add_events, eventually, relay, running

pytestmark = [pytest.mark.rabbitmq, pytest.mark.slow]


@pytest.fixture(scope="module")
def broker() -> Iterator[PrivateRabbitMQ]:
    with PrivateRabbitMQ() as broker:
        yield broker


@pytest.fixture
def publisher(broker: PrivateRabbitMQ) -> Publisher:
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.queue_delete("events")
        channel.queue_declare("events", durable=True)
    broker.keep_declared()
    settings = RabbitMQSettings(url=SecretStr(broker.url), confirm_timeout=2)
    return RabbitMQPublisher(settings, Options(routes=Routes(["t=events"])))


def untouched(engine: sa.Engine) -> bool:
    query = "SELECT coalesce(sum(attempts), 0) = 0 AND count(*) FILTER (WHERE held IS NOT NULL) = 0 FROM outbox_event"
    with engine.connect() as connection:
        return bool(connection.execute(sa.text(query)).scalar_one())


def left(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(sa.text("SELECT count(*) FROM outbox_event")).scalar_one())


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_restart(end: str, broker: PrivateRabbitMQ, publisher: Publisher, engine: sa.Engine, outbox_url: str) -> None:
    with running(relay(outbox_url, publisher, target="rabbitmq", batch_size=50)):
        add_events(engine, 500, key="before")
        getattr(broker, end)()  # while it publishes
        add_events(engine, 500, key="meanwhile")
        broker.start()
        eventually(lambda: left(engine) == 0, timeout=60)
    per_key = first_occurrences(from_rabbitmq(broker.url, "events"))
    assert per_key == {"before": list(range(500)), "meanwhile": list(range(500))}
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM outbox_dead_letter")).scalar_one() == 0


def test_an_idle_relay_outlives_a_restart(
    broker: PrivateRabbitMQ, publisher: Publisher, engine: sa.Engine, outbox_url: str
) -> None:
    with running(relay(outbox_url, publisher, target="rabbitmq")):
        add_events(engine, 1)
        eventually(lambda: left(engine) == 0)
        broker.restart()
        add_events(engine, 10, key="k")
        eventually(lambda: left(engine) == 0)
    assert len(from_rabbitmq(broker.url, "events")) == 11


def test_an_alarm_is_named_and_charges_nobody(
    broker: PrivateRabbitMQ,
    publisher: Publisher,
    engine: sa.Engine,
    outbox_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with running(relay(outbox_url, publisher, target="rabbitmq")):
        add_events(engine, 5, key="k")
        eventually(lambda: left(engine) == 0)
        broker.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
        add_events(engine, 20, key="k")
        eventually(lambda: "blocked by a broker alarm" in caplog.text)
        assert untouched(engine)
        broker.ctl("set_vm_memory_high_watermark", "0.4")
        eventually(lambda: left(engine) == 0, timeout=60)
    assert first_occurrences(from_rabbitmq(broker.url, "events"))["k"] == [*range(5), *range(20)]


def test_a_stop_under_an_alarm_keeps_the_grace_period(
    broker: PrivateRabbitMQ, publisher: Publisher, engine: sa.Engine, outbox_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        with running(relay(outbox_url, publisher, target="rabbitmq", grace=3.0)):
            add_events(engine, 1)
            eventually(lambda: left(engine) == 0)
            broker.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
            add_events(engine, 20, key="k")
            eventually(lambda: "blocked by a broker alarm" in caplog.text)
            started = time.monotonic()
        assert time.monotonic() - started < 3.5
    finally:
        broker.ctl("set_vm_memory_high_watermark", "0.4")
    assert untouched(engine)
    with engine.connect() as connection:
        leases = connection.execute(sa.text("SELECT count(*) FROM outbox_lane WHERE lease_token IS NOT NULL"))
        assert leases.scalar_one() == 0
