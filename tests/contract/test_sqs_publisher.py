"""The SQS publisher keeps the contract with moto's server, on standard and on FIFO queues."""

import base64
import json
import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from relays.publishers import Confirmed, Options, Publisher
from relays.publishers.sqs import SQSSettings, plugin
from tests.contract.proxy import Proxy
from tests.contract.publisher_contract import NEVER, Harness, PublisherContract, Received, message

RELAYS_OWN = {"idempotency-key", "outbox-type", "outbox-key", "outbox-created-at", "content-type", "outbox-encoding"}


class SQSHarness(Harness):
    def __init__(self, client: Any, proxy: Proxy, *, fifo: bool) -> None:
        self._client = client
        self._proxy = proxy
        suffix = f"-{secrets.token_hex(6)}" + (".fifo" if fifo else "")
        self.topic, self.other_topic, self.missing_topic = f"first{suffix}", f"second{suffix}", f"missing{suffix}"
        attributes = {"FifoQueue": "true"} if fifo else {}
        self.urls = [
            client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
            for name in (self.topic, self.other_topic)
        ]

    def publisher(self, options: Options) -> Publisher:
        return plugin.make(SQSSettings(), options)

    def drain(self) -> list[Received]:
        return [_received(each) for url in self.urls for each in self.raw(url)]

    def raw(self, url: str) -> list[dict[str, Any]]:
        arrived = []
        while True:
            answer = self._client.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
            )
            if not answer.get("Messages"):
                return arrived
            for each in answer["Messages"]:
                self._client.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
            arrived += answer["Messages"]

    def cut(self) -> None:
        self._proxy.cut()

    def restore(self) -> None:
        self._proxy.restore()

    def header(self, value: str | int | bool) -> Any:
        # A boolean that fits an attribute arrives as text.
        return str(value).lower() if isinstance(value, bool) else value


def _received(raw: dict[str, Any]) -> Received:
    """Read a message as a consumer would, by what relays/publishers/sqs_packing.py says."""
    values = {
        name: int(attribute["StringValue"]) if attribute["DataType"] == "Number" else attribute["StringValue"]
        for name, attribute in raw["MessageAttributes"].items()
    }
    values |= json.loads(values.pop("outbox-headers", "{}"))
    body = raw["Body"].encode()
    return Received(
        body=base64.b64decode(body) if values.get("outbox-encoding") == "base64" else body,
        idempotency_key=values["idempotency-key"],
        type=values["outbox-type"],
        key=values.get("outbox-key"),
        content_type=values["content-type"],
        created_at=values["outbox-created-at"],
        headers={name: value for name, value in values.items() if name not in RELAYS_OWN},
    )


@pytest.fixture
def proxy(moto_url: str, aws: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Between the publisher, whose boto3 finds it in the environment, and moto; the client `aws` goes past it."""
    address = urlsplit(moto_url)
    assert address.hostname is not None
    assert address.port is not None
    with Proxy(address.hostname, address.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", f"http://127.0.0.1:{proxy.port}")
        yield proxy


class TestStandardQueue(PublisherContract):
    @pytest.fixture
    def harness(self, aws: Any, proxy: Proxy) -> SQSHarness:
        return SQSHarness(aws, proxy, fifo=False)

    def test_a_queue_may_be_named_by_its_url(self, harness: SQSHarness) -> None:
        publisher = plugin.make(SQSSettings(queue=harness.urls[1]), Options())
        publisher.open()
        sent = message("any topic at all")
        assert publisher.publish([sent], NEVER) == [Confirmed()]
        publisher.close(5)
        assert [
            each["MessageAttributes"]["idempotency-key"]["StringValue"] for each in harness.raw(harness.urls[1])
        ] == [sent.idempotency_key]


class TestFifoQueue(PublisherContract):
    @pytest.fixture
    def harness(self, aws: Any, proxy: Proxy) -> SQSHarness:
        return SQSHarness(aws, proxy, fifo=True)

    def test_group_and_deduplication_id(self, harness: SQSHarness, publisher: Publisher) -> None:
        messages = [message(harness.topic, key="k"), message(harness.topic), message(harness.topic, key="r", resends=2)]
        assert publisher.publish(messages, NEVER) == [Confirmed()] * 3
        attributes = [each["Attributes"] for each in harness.raw(harness.urls[0])]
        assert sorted((each["MessageGroupId"], each["MessageDeduplicationId"]) for each in attributes) == sorted(
            [
                ("k", messages[0].idempotency_key),
                (messages[1].idempotency_key, messages[1].idempotency_key),
                ("r", f"{messages[2].idempotency_key}:2"),
            ]
        )

    def test_a_message_sent_twice_arrives_once(self, harness: SQSHarness, publisher: Publisher) -> None:
        sent = message(harness.topic, key="k")
        assert publisher.publish([sent], NEVER) == publisher.publish([sent], NEVER) == [Confirmed()]
        assert len(harness.received(1)) == 1

    def test_equal_bodies_all_arrive(self, harness: SQSHarness, publisher: Publisher) -> None:
        messages = [message(harness.topic, key="k", payload=b"same") for _ in range(3)]
        assert publisher.publish(messages, NEVER) == [Confirmed()] * 3
        assert len(harness.received(3)) == 3
