"""Amazon SQS: batched calls from a pool of threads, a result per message."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from queue import SimpleQueue

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from outbox.errors import ConfigurationError, Unavailable
from relays.publishers import Confirmed, Deadline, Deferred, Interrupted, Message, Options, Outcome, Plugin
from relays.publishers.sqs_answers import Fault, Kind, printable, read_answer
from relays.publishers.sqs_batch import Batch
from relays.publishers.sqs_connection import Connection, NotSent, is_queue, region_of
from relays.publishers.sqs_packing import Call, Queue

__all__ = ["SQSPublisher", "SQSSettings", "plugin"]

Answer = Mapping[int, Outcome] | Fault | None
Answers = SimpleQueue[tuple[Call, Future[Answer]]]


class SQSSettings(BaseSettings):
    """Where events go. Endpoint, region and credentials are those that boto3 finds (AWS_*, profiles, roles)."""

    model_config = SettingsConfigDict(env_prefix="OUTBOX_SQS_")

    queue: str | None = Field(
        None, min_length=1, description="Name or URL of the queue for topics without a route; default: the topic."
    )
    threads: int = Field(16, ge=1, le=64, description="Calls under way at once.")
    connect_timeout: float = Field(5.0, gt=0, description="Seconds, for one attempt of a call.")
    read_timeout: float = Field(15.0, gt=0, description="Seconds, for one attempt of a call.")


class SQSPublisher:
    """Sends to SQS by SendMessageBatch.

    A message goes to the queue of its topic's route, else to that of the settings, else to the queue that its topic
    names. In a FIFO queue its group is its key (its idempotency key, if it has none), its deduplication id the
    idempotency key.

    Parameters:
        settings: of this target.
        options: of the relay.

    Raises ConfigurationError for a destination that can't be the name or the URL of a queue.
    """

    def __init__(self, settings: SQSSettings, options: Options) -> None:
        self._settings = settings
        self._options = options
        self._known = dict.fromkeys(options.routes.destinations, "--route (OUTBOX_ROUTE)")
        if settings.queue is not None:
            self._known[settings.queue] = "--sqs-queue (OUTBOX_SQS_QUEUE)"
        for destination, setting in self._known.items():
            if not is_queue(destination):
                raise ConfigurationError(
                    f"{setting}: {printable(destination)!r} is neither the URL of a queue nor a possible name: 1 to 80 "
                    "letters, digits, hyphens and underscores, .fifo included"
                )
        self._opening = threading.Lock()
        self._closed = False
        self._connection: Connection | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._running: set[Future[Answer]] = set()

    def open(self) -> None:
        with self._opening:
            self._check_not_closed()
            if self._connection is not None and not self._connection.broken:
                return
            # A new session each time: credentials may have changed or expired.
            connection = Connection(
                region_of(self._settings.queue or ""),
                requests=self._settings.threads + self._options.concurrency,
                connect_timeout=self._settings.connect_timeout,
                read_timeout=self._settings.read_timeout,
            )
            connection.verify(self._known)
            self._check_not_closed()
            if self._connection is not None:
                self._connection.close()
            self._pool = self._pool or ThreadPoolExecutor(self._settings.threads, thread_name_prefix="sqs")
            self._connection = connection

    def destination(self, topic: str) -> str:
        return self._options.routes.resolve(topic) or self._settings.queue or topic

    def publish(self, messages: Sequence[Message], deadline: Deadline) -> Sequence[Outcome]:
        connection, pool = self._connection, self._pool
        if connection is None or pool is None:
            raise Unavailable("SQS: the publisher is not open")
        if deadline.expired():
            return [Deferred()] * len(messages)
        queues = self._queues(connection, [self.destination(message.topic) for message in messages])
        batch = Batch(
            messages, queues, self._options.key_window, unroutable_pauses=self._options.on_unroutable == "pause"
        )
        self._run(batch, partial(_send, connection, batch, deadline), pool)
        if batch.interruption is not None:
            connection.broken = True
            known = [outcome if isinstance(outcome, Confirmed) else Deferred() for outcome in batch.outcomes]
            raise Interrupted(f"SQS: {batch.interruption.reason}", known) from batch.interruption.cause
        return batch.outcomes

    def close(self, timeout: float) -> None:
        """Make no further call and wait for those under way: one that hangs ends by the timeouts of the settings."""
        self._closed = True
        connection, self._connection = self._connection, None
        pool, self._pool = self._pool, None
        if connection is None or pool is None:
            return
        connection.close()
        pool.shutdown(wait=False, cancel_futures=True)
        wait(list(self._running), timeout)

    def _check_not_closed(self) -> None:
        if self._closed:
            raise Unavailable("SQS: the publisher is closed")

    def _queues(self, connection: Connection, destinations: Sequence[str]) -> list[Queue | Fault]:
        found: dict[str, Queue | Fault] = {}
        for destination in dict.fromkeys(destinations):
            found[destination] = queue = connection.queue(destination)
            if isinstance(queue, Fault) and queue.kind in {Kind.AWAY, Kind.REFUSED}:
                connection.broken = True
                raise Interrupted(f"SQS: {queue.reason}", [Deferred()] * len(destinations)) from queue.cause
        return [found[destination] for destination in destinations]

    def _run(self, batch: Batch, send: Callable[[Call], Answer], pool: ThreadPoolExecutor) -> None:
        """Make the calls of a batch, each as soon as it may be made, until no more can be."""
        answers: Answers = SimpleQueue()
        under_way = 0
        while True:
            while under_way < self._settings.threads and (call := batch.next_call()):
                self._submit(pool, send, call, answers)
                under_way += 1
            if not under_way:
                return
            call, future = answers.get()
            under_way -= 1
            batch.settle(call, None if future.cancelled() else future.result())

    def _submit(self, pool: ThreadPoolExecutor, send: Callable[[Call], Answer], call: Call, answers: Answers) -> None:
        try:
            future = pool.submit(send, call)
        except RuntimeError:
            if not self._closed:
                raise
            future = Future()
            future.cancel()

        def report(done: Future[Answer]) -> None:
            self._running.discard(done)
            answers.put((call, done))

        self._running.add(future)
        future.add_done_callback(report)


def _send(connection: Connection, batch: Batch, deadline: Deadline, call: Call) -> Answer:
    """Make one call, unless the batch has been stopped while it waited for a thread."""
    if batch.stopped:
        return None
    try:
        response = connection.send(call, deadline)
    except NotSent:
        return None
    answer = response if isinstance(response, Fault) else read_answer(call, response)
    if not isinstance(answer, Fault):
        return answer
    fault = connection.scoped(answer, call.queue.region)
    if fault.kind in {Kind.AWAY, Kind.REFUSED}:
        batch.stopped = True  # here, so that none of its calls that wait for a thread is made meanwhile
    elif fault.kind in {Kind.MISSING, Kind.QUEUE}:
        connection.forget(call.queue.destination)
    return fault


plugin = Plugin(settings=SQSSettings, make=SQSPublisher)
