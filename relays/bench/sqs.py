"""SQS as the benchmark uses it: standard or FIFO queues, where boto3 finds SQS.

Beside what a relay needs, the credentials need sqs:CreateQueue, sqs:DeleteQueue, sqs:ReceiveMessage and
sqs:DeleteMessage.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from outbox.errors import BrokerRefused, Unavailable
from relays.publishers import Message
from relays.publishers.sqs_answers import Kind, classify
from relays.publishers.sqs_packing import make_entry

__all__ = ["SQSBroker", "open_sqs"]

LOOKS = 3
"""How often a queue has to be found empty while something is missing: a look at SQS may see only a part of it."""


class SQSBroker:
    """See `relays.bench.brokers.Broker`."""

    def __init__(self, client: Any, name: str, *, fifo: bool) -> None:
        self._client, self._fifo = client, fifo
        suffix = ".fifo" if fifo else ""
        self.queue, self._other = f"{name}{suffix}", f"{name}-one-by-one{suffix}"
        self.flags = {"sqs_queue": self.queue}
        self._urls: dict[str, str] = {}

    def make(self) -> None:
        attributes = {"FifoQueue": "true"} if self._fifo else {}
        for queue in (self.queue, self._other):
            self._urls[queue] = self._client.create_queue(QueueName=queue, Attributes=attributes)["QueueUrl"]

    def remove(self) -> None:
        for url in self._urls.values():
            self._client.delete_queue(QueueUrl=url)

    def send_one_by_one(self, messages: Sequence[Message]) -> float:
        entries = [make_entry(0, message, fifo=self._fifo).parameters for message in messages]
        started = time.monotonic()
        for entry in entries:
            del entry["Id"]
            self._client.send_message(QueueUrl=self._urls[self._other], **entry)
        return time.monotonic() - started

    def take(self, expected: int) -> Counter[str]:
        arrived: Counter[str] = Counter()
        empty = 0
        while empty < (1 if len(arrived) >= expected else LOOKS):
            found = self._receive(self._urls[self.queue])
            arrived.update(found)
            empty = 0 if found else empty + 1
        return arrived

    def _receive(self, url: str) -> list[str]:
        name = "idempotency-key"
        answer = self._client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1, MessageAttributeNames=[name]
        )
        messages = answer.get("Messages", [])
        if messages:
            entries = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(messages)]
            self._client.delete_message_batch(QueueUrl=url, Entries=entries)
        return [message["MessageAttributes"][name]["StringValue"] for message in messages]


@contextmanager
def open_sqs(name: str, *, fifo: bool) -> Iterator[SQSBroker]:
    """A broker with two queues, which are removed in the end. Raises PublisherError for whatever SQS objects to."""
    try:
        session = boto3.session.Session()
        region = session.region_name or os.environ.get("AWS_REGION")  # boto3 does not read that one, the relay does
        broker = SQSBroker(session.client("sqs", region_name=region), name, fifo=fifo)
        try:
            broker.make()
            yield broker
        finally:
            broker.remove()
    except (BotoCoreError, ClientError) as error:
        fault = classify(error)
        raise (Unavailable if fault.kind is Kind.AWAY else BrokerRefused)(f"SQS: {fault.reason}") from fault.cause
