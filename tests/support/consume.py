"""What a consumer finds at the broker, in the order of arrival."""

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from tests.support import rabbitmq

__all__ = ["Received", "first_occurrences", "from_rabbitmq", "from_sqs"]


@dataclass(frozen=True)
class Received:
    idempotency_key: str
    key: str | None
    payload: Any


def from_rabbitmq(url: str, queue: str) -> list[Received]:
    """Empty the queue."""
    connection = rabbitmq.connect(url)
    channel = connection.channel()
    received = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            break
        received.append(Received(properties.message_id, properties.headers.get("outbox-key"), json.loads(body)))
    connection.close()
    return received


def from_sqs(client: Any, url: str) -> list[Received]:
    """Empty the queue."""
    received = []
    while messages := client.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], WaitTimeSeconds=0
    ).get("Messages"):
        for message in messages:
            values = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
            received.append(Received(values["idempotency-key"], values.get("outbox-key"), json.loads(message["Body"])))
        entries = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(messages)]
        client.delete_message_batch(QueueUrl=url, Entries=entries)
    return received


def first_occurrences(received: list[Received]) -> dict[str, list[Any]]:
    """The payloads of each ordering key, without what came again."""
    seen: set[str] = set()
    per_key: dict[str, list[Any]] = defaultdict(list)
    for message in received:
        if message.idempotency_key not in seen and message.key is not None:
            per_key[message.key].append(message.payload)
        seen.add(message.idempotency_key)
    return per_key
