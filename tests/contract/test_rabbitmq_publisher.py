"""The RabbitMQ publisher keeps the contract with a real broker."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pika
import pytest
from pydantic import SecretStr

from relays.publishers import Options, Publisher
from relays.publishers.rabbitmq import RabbitMQSettings, plugin
from tests.contract.proxy import Proxy
from tests.contract.publisher_contract import Harness, PublisherContract, Received
from tests.support.rabbitmq import connect, temporary_queue

RELAYS_OWN = {"idempotency-key", "outbox-type", "outbox-key", "outbox-created-at"}


class RabbitMQHarness(Harness):
    def __init__(self, url: str, proxied_url: str, proxy: Proxy, queues: list[str]) -> None:
        self._url, self._proxied_url, self._proxy = url, proxied_url, proxy
        self.topic, self.other_topic = queues
        self.missing_topic = f"outbox-test-missing-{secrets.token_hex(6)}"

    def publisher(self, options: Options) -> Publisher:
        return plugin.make(RabbitMQSettings(url=SecretStr(self._proxied_url)), options)

    def drain(self) -> list[Received]:
        with connect(self._url) as connection:
            channel = connection.channel()
            return [each for queue in (self.topic, self.other_topic) for each in _take_all(channel, queue)]

    def cut(self) -> None:
        self._proxy.cut()

    def restore(self) -> None:
        self._proxy.restore()


def _take_all(channel: Any, queue: str) -> Iterator[Received]:
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return
        headers = properties.headers
        assert properties.message_id == headers["idempotency-key"]
        assert properties.type == headers["outbox-type"]
        yield Received(
            body=body,
            idempotency_key=properties.message_id,
            type=properties.type,
            key=headers.get("outbox-key"),
            content_type=properties.content_type,
            created_at=headers["outbox-created-at"],
            headers={name: value for name, value in headers.items() if name not in RELAYS_OWN},
        )


class TestRabbitMQPublisher(PublisherContract):
    @pytest.fixture
    def harness(self, amqp_url: str) -> Iterator[RabbitMQHarness]:
        parameters = pika.URLParameters(amqp_url)
        with ExitStack() as stack:
            proxy = stack.enter_context(Proxy(parameters.host, parameters.port))
            queues = [stack.enter_context(temporary_queue(amqp_url)) for _ in range(2)]
            credentials, _, rest = amqp_url.rpartition("@")
            vhost = rest.partition("/")[2]
            proxied_url = f"{credentials}@127.0.0.1:{proxy.port}/{vhost}"
            yield RabbitMQHarness(amqp_url, proxied_url, proxy, queues)
