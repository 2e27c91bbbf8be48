"""The demo's queue, as its consumer sees it, on each broker."""

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

__all__ = ["Delivery", "Queue", "RabbitMQQueue", "SQSQueue", "open_queue"]


class Delivery(NamedTuple):
    """A message that was received and is not acknowledged yet."""

    idempotency_key: str
    body: bytes
    receipt: Any


class Queue(Protocol):
    """A queue that exists for as long as the `with` block lasts. One consumer, one batch at a time."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def receive(self) -> Sequence[Delivery]:
        """The next messages in the order the queue has them, without waiting; none only if there are none."""
        ...

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Have the queue forget what `receive` has returned last."""
        ...


class SQSQueue:
    """A FIFO queue, since only those promise order, at the endpoint that the environment names.

    What arrives twice within five minutes is dropped by SQS itself; moto does so only while it still has the first
    one, so that duplicates show here that SQS would hide. Within a FIFO queue a customer's next message is not
    delivered before the last one is deleted, which is done before the next call.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> Self:
        import boto3  # an extra: imported by who has chosen this target

        self._client: Any = boto3.session.Session().client("sqs")
        self._url = self._client.create_queue(QueueName=self._name, Attributes={"FifoQueue": "true"})["QueueUrl"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.delete_queue(QueueUrl=self._url)
        self._client.close()

    def receive(self) -> Sequence[Delivery]:
        answer = self._client.receive_message(
            QueueUrl=self._url, MaxNumberOfMessages=10, MessageAttributeNames=["idempotency-key"]
        )
        return [
            Delivery(
                message["MessageAttributes"]["idempotency-key"]["StringValue"],
                message["Body"].encode(),
                message["ReceiptHandle"],
            )
            for message in answer.get("Messages", [])
        ]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        entries = [{"Id": str(index), "ReceiptHandle": item.receipt} for index, item in enumerate(deliveries)]
        self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)


class RabbitMQQueue:
    """A durable queue on the broker that OUTBOX_RABBITMQ_URL names; it goes away by itself when nobody deletes it."""

    BATCH = 100
    UNUSED_FOR = 600_000
    """Milliseconds after which the broker removes what a killed demo has left."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> Self:
        import pika

        self._connection = pika.BlockingConnection(pika.URLParameters(os.environ["OUTBOX_RABBITMQ_URL"]))
        self._channel = self._connection.channel()
        self._channel.queue_declare(self._name, durable=True, arguments={"x-expires": self.UNUSED_FOR})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.queue_delete(self._name)
        self._connection.close()

    def receive(self) -> Sequence[Delivery]:
        deliveries: list[Delivery] = []
        while len(deliveries) < self.BATCH:
            method, properties, body = self._channel.basic_get(self._name)
            if method is None:
                break
            deliveries.append(Delivery(properties.message_id, body, method.delivery_tag))
        return deliveries

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._channel.basic_ack(deliveries[-1].receipt, multiple=True)


def open_queue(target: str, name: str) -> Queue:
    """The queue of that name on that broker, to be entered."""
    return SQSQueue(name) if target == "sqs" else RabbitMQQueue(name)
