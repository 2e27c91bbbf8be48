"""What RabbitMQ can't take is refused alone, before the broker would close the connection for it."""

import datetime as dt

import pika
from pydantic import SecretStr

from relays.publishers import Confirmed, Message, Options, Rejected
from relays.publishers.rabbitmq import RabbitMQPublisher, RabbitMQSettings
from relays.routing import Routes
from tests.support.consume import from_rabbitmq
from tests.support.rabbitmq import connect


class Never:
    def expired(self) -> bool:
        return False


def message(queue: str, key: str, headers: dict[str, str | int | bool] | None = None) -> Message:
    return Message(key, None, queue, "T", b"1", "application/json", headers, dt.datetime.now(dt.UTC), 0)


def opened(amqp_url: str) -> RabbitMQPublisher:
    publisher = RabbitMQPublisher(RabbitMQSettings(url=SecretStr(amqp_url)), Options())
    publisher.open()
    return publisher


def test_headers_that_do_not_fit_a_frame(amqp_url: str, queue: str) -> None:
    publisher = opened(amqp_url)
    outcomes = publisher.publish(
        [
            message(queue, "first"),
            message(queue, "text", {"x": "y" * 200_000}),
            message(queue, "numbers", {f"header-{n}": n for n in range(10_000)}),
            message(queue, "last", {"x": "y" * 100_000}),
        ],
        Never(),
    )
    publisher.close(5)
    assert [type(outcome) for outcome in outcomes] == [Confirmed, Rejected, Rejected, Confirmed]
    assert [one.idempotency_key for one in from_rabbitmq(amqp_url, queue)] == ["first", "last"]


def test_the_one_for_which_the_channel_closes_is_found(amqp_url: str, queue: str) -> None:
    """The broker does not say which of those in flight it means."""
    exchange = f"{queue}-gone"
    with connect(amqp_url) as connection:
        connection.channel().exchange_declare(exchange)
    options = Options(routes=Routes([f"lost={exchange}:x"]))
    publisher = RabbitMQPublisher(RabbitMQSettings(url=SecretStr(amqp_url)), options)
    publisher.open()
    with connect(amqp_url) as connection:
        connection.channel().exchange_delete(exchange)
    messages = [message(queue if n != 50 else "lost", f"m{n}") for n in range(100)]
    outcomes = publisher.publish(messages, Never())
    publisher.close(5)
    assert [n for n, outcome in enumerate(outcomes) if outcome != Confirmed()] == [50]
    assert "404" in getattr(outcomes[50], "reason", "")
    assert {one.idempotency_key for one in from_rabbitmq(amqp_url, queue)} == {f"m{n}" for n in range(100) if n != 50}


def test_a_queue_that_is_full_holds_the_event_back(amqp_url: str, queue: str) -> None:
    name = f"{queue}-full"
    with connect(amqp_url) as connection:
        channel = connection.channel()
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.confirm_delivery()
        channel.basic_publish("", name, b"here first", pika.BasicProperties(delivery_mode=2))
    publisher = opened(amqp_url)
    outcomes = publisher.publish([message(name, "full"), message(queue, "fine")], Never())
    publisher.close(5)
    with connect(amqp_url) as connection:
        connection.channel().queue_delete(name)
    assert [type(outcome).__name__ for outcome in outcomes] == ["Retry", "Confirmed"]
