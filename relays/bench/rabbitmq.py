"""RabbitMQ as the benchmark uses it: durable queues behind the default exchange."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pika
from pika.exceptions import AMQPError
from pydantic import SecretStr

from relays.publishers import Message, Options, wire_headers
from relays.publishers.rabbitmq import RabbitMQPublisher, RabbitMQSettings
from relays.publishers.rabbitmq_errors import translate
from relays.sources import load

__all__ = ["RabbitMQBroker", "open_rabbitmq"]

UNUSED_FOR = 3_600_000
"""Milliseconds after which RabbitMQ removes the queues that a killed benchmark has left."""

CLOSING = 5.0
"""Seconds to disconnect."""


class Settings(RabbitMQSettings):
    """Without a URL: RabbitMQ's own defaults."""

    url: SecretStr = SecretStr("amqp://guest:guest@localhost:5672/%2F")


class RabbitMQBroker:
    """See `relays.bench.brokers.Broker`."""

    def __init__(self, url: str, connection: pika.BlockingConnection, name: str) -> None:
        self.queue, self._other = name, f"{name}-one-by-one"
        # The default exchange, whatever the user's relays publish to.
        self.flags = {"rabbitmq_url": url, "rabbitmq_exchange": ""}
        self._channel = connection.channel()
        self._channel.confirm_delivery()

    def make(self) -> None:
        for queue in (self.queue, self._other):
            self._channel.queue_declare(queue, durable=True, arguments={"x-expires": UNUSED_FOR})

    def remove(self) -> None:
        for queue in (self.queue, self._other):
            self._channel.queue_delete(queue)

    def send_one_by_one(self, messages: Sequence[Message]) -> float:
        started = time.monotonic()
        for message in messages:
            properties = pika.BasicProperties(
                content_type=message.content_type,
                delivery_mode=pika.DeliveryMode.Persistent.value,
                headers=wire_headers(message),
                message_id=message.idempotency_key,
                timestamp=int(message.created_at.timestamp()),
                type=message.type,
            )
            self._channel.basic_publish("", self._other, message.payload, properties, mandatory=True)
        return time.monotonic() - started

    def take(self, expected: int) -> Counter[str]:  # noqa: ARG002 (this broker knows what it has)
        arrived: Counter[str] = Counter()
        ready = self._channel.queue_declare(self.queue, passive=True).method.message_count
        for _, properties, _ in self._channel.consume(self.queue, auto_ack=True) if ready else ():
            arrived[properties.message_id] += 1
            if arrived.total() == ready:
                break
        self._channel.cancel()
        self._channel.queue_purge(self._other)
        return arrived


@contextmanager
def open_rabbitmq(flags: Mapping[str, object], config: Path | None, name: str) -> Iterator[RabbitMQBroker]:
    """A broker with two queues, which are removed in the end.

    Raises ConfigurationError for settings that are wrong, PublisherError when the broker refuses us or goes away.
    """
    settings = load(Settings, {**flags, "rabbitmq_exchange": ""}, config, "rabbitmq")
    publisher = RabbitMQPublisher(settings, Options())  # it says best why a connection can't be made
    publisher.open()
    publisher.close(CLOSING)
    url = settings.url.get_secret_value()
    parameters = pika.URLParameters(url)
    parameters.heartbeat = 0  # nobody answers them while the relay works
    try:
        with pika.BlockingConnection(parameters) as connection:
            broker = RabbitMQBroker(url, connection, name)
            try:
                broker.make()
                yield broker
            finally:
                broker.remove()
    except AMQPError as error:
        raise translate(error, f"{parameters.host}:{parameters.port}") from error
