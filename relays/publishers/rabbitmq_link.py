"""One connection to RabbitMQ, from connecting to its end, on a thread of its own.

Worker threads hand in whole batches with one thread-safe callback each; everything else happens on the I/O thread, so
that heartbeats are answered while the database works, and nothing here needs a lock.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pika
from pika import frame
from pika.adapters.select_connection import SelectConnection
from pika.channel import Channel

from outbox.errors import BrokerRefused, PublisherError, Unavailable
from relays.publishers import Confirmed, Deadline, Deferred, Interrupted, Outcome, Paused, Rejected, Retry
from relays.publishers.rabbitmq_errors import culprit_outcome, translate
from relays.schedule import KeyedSchedule

__all__ = ["Batch", "Envelope", "Link"]

logger = logging.getLogger(__name__)

TICK = 0.5
"""Seconds between two looks at the age of unconfirmed messages."""

FRAME_OVERHEAD = 8
"""Bytes of a frame that are not payload (AMQP 0-9-1, section 4.2.3): type, channel, size and end."""


class Envelope(NamedTuple):
    """A message as it goes on the wire."""

    key: str | None
    exchange: str
    routing_key: str
    body: bytes
    properties: pika.BasicProperties

    @property
    def destination(self) -> str:
        return f"{self.exchange}:{self.routing_key}" if self.exchange else self.routing_key


class Batch:
    """What one call of `publish` sends, and what became of it. Owned by the I/O thread until `done` is set."""

    def __init__(
        self, envelopes: Sequence[Envelope], deadline: Deadline, key_window: int, *, unroutable_pauses: bool
    ) -> None:
        self.envelopes, self.deadline, self.unroutable_pauses = envelopes, deadline, unroutable_pauses
        self.schedule = KeyedSchedule([envelope.key for envelope in envelopes], key_window)
        self.outcomes: list[Outcome] = [Deferred()] * len(envelopes)
        self.error: PublisherError | None = None
        self.done = threading.Event()

    def report(self, position: int, outcome: Outcome) -> None:
        """Record it; those behind it in its key go on or stay Deferred."""
        self.outcomes[position] = outcome
        if isinstance(outcome, Confirmed):
            self.schedule.confirmed(position)
        else:
            self.schedule.failed(position)
        self.finish_if_done()

    def abandon(self) -> None:
        """Send nothing more of it; what is in flight still gets its outcome."""
        self.schedule.abandon()
        self.finish_if_done()

    def finish_if_done(self) -> None:
        if self.schedule.done:
            self.done.set()

    def fail(self, error: PublisherError) -> None:
        """The broker is away: what is in flight stays Deferred."""
        if not self.done.is_set():
            self.error = error
            self.done.set()


class InFlight(NamedTuple):
    batch: Batch
    position: int
    sent_at: float

    @property
    def envelope(self) -> Envelope:
        return self.batch.envelopes[self.position]


class JoiningConnection(SelectConnection):  # type: ignore[misc] # pika ships no types
    """Writes what one turn of publishing sends at once, where pika would make three system calls of each message."""

    _joined: list[bytes] | None = None

    @contextmanager
    def joining(self) -> Iterator[None]:
        self._joined = []
        try:
            yield
        finally:
            joined, self._joined = self._joined, None
            if joined:
                super()._output_marshaled_frames([b"".join(joined)])

    def _output_marshaled_frames(self, marshaled_frames: Sequence[bytes]) -> None:
        if self._joined is None:
            super()._output_marshaled_frames(marshaled_frames)
        else:
            self._joined += marshaled_frames


class Link:
    """Connects, opens a channel in confirm mode, verifies exchanges, publishes batches; once dead, dead for good.

    Parameters:
        window: how many messages may be unconfirmed at once.
        confirm_timeout: seconds after which a missing confirm means that the broker is away.
        exchanges: have to exist.
    """

    def __init__(
        self, parameters: pika.ConnectionParameters, window: int, confirm_timeout: float, exchanges: Sequence[str]
    ) -> None:
        self._parameters, self._window, self._confirm_timeout = parameters, window, confirm_timeout
        self._where = f"{parameters.host}:{parameters.port}, vhost {parameters.virtual_host!r}"
        self._to_verify = deque(exchanges)
        self._connection: JoiningConnection | None = None
        self._channel: Channel | None = None
        self._batches: deque[Batch] = deque()
        self._in_flight: dict[int, InFlight] = {}
        self._returned: dict[int, str] = {}
        self._suspects: deque[InFlight] = deque()
        self._isolating = False
        self._last_tag = 0
        self._blocked: str | None = None
        self._error: PublisherError | None = None
        self._ready = threading.Event()
        self._dead = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rabbitmq", daemon=True)

    # What other threads call.

    @property
    def alive(self) -> bool:
        return self._ready.is_set() and not self._dead.is_set()

    def start(self, timeout: float) -> None:
        """Connect; raise BrokerRefused or Unavailable if that does not work within `timeout` seconds."""
        self._thread.start()
        if not self._ready.wait(timeout):
            self.close(timeout=1.0)
            raise Unavailable(f"RabbitMQ at {self._where} does not answer within {timeout:.0f} s")
        if self._error is not None:
            raise self._error

    def check_blocked(self) -> None:
        """Raise Unavailable while the broker blocks publishers."""
        if self._blocked is not None:
            raise Unavailable(self._blocked)

    def publish(self, batch: Batch) -> None:
        """Send the batch and wait for its outcomes. Raises Interrupted when the broker goes away meanwhile."""
        connection = self._connection
        if connection is None or not self.alive:
            raise Interrupted(str(self._error or self._gone()))
        try:
            connection.ioloop.add_callback_threadsafe(partial(self._accept, batch))
        except Exception as error:  # whatever a dying loop raises, the link is gone
            raise Interrupted(str(self._gone())) from error
        while not batch.done.wait(TICK):
            if self._dead.is_set():
                batch.fail(self._error or self._gone())
        if batch.error is not None:
            raise Interrupted(str(batch.error), batch.outcomes) from batch.error

    def close(self, timeout: float) -> None:
        """End it within `timeout` seconds; what is unconfirmed stays so."""
        connection = self._connection
        if connection is not None and not self._dead.is_set():
            try:
                connection.ioloop.add_callback_threadsafe(self._shut_down)
            except Exception as error:  # noqa: BLE001 (a loop that is gone has nothing left to close)
                logger.debug("the I/O loop is gone already: %s", error)
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _gone(self) -> Unavailable:
        return Unavailable(f"the connection to RabbitMQ at {self._where} is closed")

    # The life of the connection, on the I/O thread.

    def _run(self) -> None:
        try:
            self._connection = JoiningConnection(
                self._parameters,
                on_open_callback=self._on_open,
                on_open_error_callback=lambda _, error: self._die(error),
                on_close_callback=lambda _, error: self._die(error),
            )
            self._connection.ioloop.start()
        except Exception as error:
            logger.debug("the I/O thread ends", exc_info=True)
            self._die(error)
        finally:
            self._die(self._gone())

    def _on_open(self, connection: SelectConnection) -> None:
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        connection.ioloop.call_later(TICK, self._tick)
        self._verify_next()

    def _verify_next(self) -> None:
        """Ask for each exchange on a channel of its own: the broker closes the one that asks for a missing one."""
        if self._to_verify:
            self._open_channel(partial(self._verify, exchange=self._to_verify.popleft()))
        else:
            self._open_channel(self._use)

    def _open_channel(self, then: Any) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.channel(on_open_callback=then)

    def _verify(self, channel: Channel, exchange: str) -> None:
        def closed(_: Channel, reason: Exception) -> None:
            code = getattr(reason, "reply_code", None)
            if code == 404:
                self._die(
                    BrokerRefused(
                        f"exchange {exchange!r} does not exist in RabbitMQ at {self._where}: declare it, or change "
                        "OUTBOX_RABBITMQ_EXCHANGE (--rabbitmq-exchange) or the --route that names it"
                    )
                )
            elif self._connection is not None and self._connection.is_open:
                # Verified, or 403: before RabbitMQ 4.3.1 asking takes a permission that publishing does not.
                self._verify_next()

        channel.add_on_close_callback(closed)
        channel.exchange_declare(exchange, passive=True, callback=lambda _: channel.close())

    def _use(self, channel: Channel) -> None:
        """Publish on this channel, which is put into confirm mode first."""

        def confirming(_: Any) -> None:
            self._channel, self._last_tag = channel, 0
            self._ready.set()
            self._pump()

        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=confirming)

    def _on_channel_closed(self, _: Channel, reason: Exception) -> None:
        """The broker closes the channel for the sake of one message and does not say which."""
        self._channel = None
        if self._connection is None or not self._connection.is_open:
            return
        in_flight = list(self._in_flight.values())
        self._in_flight.clear()
        self._returned.clear()
        if len(in_flight) == 1:
            suspect = in_flight[0]
            suspect.batch.report(suspect.position, culprit_outcome(reason, suspect.envelope.destination))
        else:
            # Each once more and alone. What had arrived already arrives twice, what is guilty stands alone.
            logger.info("RabbitMQ closed the channel (%s): one of %d messages is why", reason, len(in_flight))
            self._suspects.extend(in_flight)
            self._isolating = True
        self._open_channel(self._use)

    def _on_blocked(self, _: SelectConnection, method: frame.Method) -> None:
        """An alarm: the broker reads nothing more of what we send. What is in flight may still be confirmed."""
        self._blocked = f"RabbitMQ at {self._where} is blocked by a broker alarm: {method.method.reason}"
        for batch in list(self._batches):
            batch.error = Unavailable(self._blocked)
            batch.abandon()
        while self._suspects:
            suspect = self._suspects.popleft()
            suspect.batch.report(suspect.position, Deferred())
        self._forget_finished()

    def _on_unblocked(self, *_: Any) -> None:
        self._blocked = None
        self._pump()

    def _tick(self) -> None:
        if self._connection is None or not self._connection.is_open:
            return
        self._connection.ioloop.call_later(TICK, self._tick)
        oldest = next(iter(self._in_flight.values()), None)
        if oldest is None or time.monotonic() - oldest.sent_at < self._confirm_timeout:
            return
        if self._blocked is not None:
            # No second connection: under an alarm it would only hold a second copy of the same messages.
            self._give_up(Unavailable(self._blocked))
        else:
            self._die(Unavailable(f"no confirm from RabbitMQ at {self._where} for {self._confirm_timeout:.0f} s"))

    def _shut_down(self) -> None:
        self._die(Unavailable("the publisher was closed"))

    def _die(self, error: BaseException) -> None:
        """The end of this link: tell everyone who waits, whatever state it is in. Only the first reason counts."""
        if self._dead.is_set():
            return
        self._error = error if isinstance(error, PublisherError) else translate(error, self._where)
        self._dead.set()
        self._give_up(self._error)
        self._ready.set()
        connection = self._connection
        if connection is None:
            return
        if connection.is_open:
            connection.close()
        # A graceful close may never be answered: one round of the loop to write it, then the end.
        connection.ioloop.call_later(0.2, connection.ioloop.stop)

    def _give_up(self, error: PublisherError) -> None:
        self._in_flight.clear()
        self._returned.clear()
        self._suspects.clear()
        for batch in self._batches:
            batch.fail(error)
        self._batches.clear()

    # Publishing, on the I/O thread.

    def _accept(self, batch: Batch) -> None:
        if self._dead.is_set() or self._blocked is not None:
            batch.fail(self._error or Unavailable(self._blocked or "closed"))
            return
        self._batches.append(batch)
        self._pump()

    def _pump(self) -> None:
        """Send what may be sent now."""
        if self._connection is None or self._channel is None or not self._channel.is_open or self._blocked is not None:
            return
        with self._connection.joining():
            self._fill_window()
        self._forget_finished()

    def _fill_window(self) -> None:
        if self._isolating:
            self._send_suspect()
            if self._in_flight:
                return
            self._isolating = False
        while len(self._in_flight) < self._window:
            if not self._send_next():
                break

    def _send_suspect(self) -> None:
        while self._suspects and not self._in_flight:
            suspect = self._suspects.popleft()
            if suspect.batch.deadline.expired():
                suspect.batch.report(suspect.position, Deferred())
            else:
                self._send(suspect.batch, suspect.position)

    def _send_next(self) -> bool:
        """Send one message of the first batch that has one; batches take turns. False when there is nothing."""
        for _ in range(len(self._batches)):
            batch = self._batches[0]
            self._batches.rotate(-1)
            if batch.deadline.expired():
                batch.abandon()
            elif (position := batch.schedule.take()) is not None:
                self._send(batch, position)
                return True
        return False

    def _send(self, batch: Batch, position: int) -> None:
        envelope, channel = batch.envelopes[position], self._channel
        if channel is None:
            return
        try:
            self._check_size(envelope)
            channel.basic_publish(envelope.exchange, envelope.routing_key, envelope.body, envelope.properties, True)
        except Exception as error:  # noqa: BLE001 (pika raises many kinds for what it can't encode; nothing is sent)
            batch.report(position, Rejected(f"can't be encoded for AMQP: {type(error).__name__}: {error}"))
            return
        self._last_tag += 1
        self._in_flight[self._last_tag] = InFlight(batch, position, time.monotonic())

    def _check_size(self, envelope: Envelope) -> None:
        """Properties and headers have to fit one frame: the broker would close the whole connection (501)."""
        headers = envelope.properties.headers
        limit = self._connection.params.frame_max - FRAME_OVERHEAD if self._connection is not None else 0
        rough = sum(len(name) + 4 + (len(value) if isinstance(value, str) else 2) for name, value in headers.items())
        if rough * 4 < limit - 4096:  # a character takes up to 4 bytes, the rest of the header far less than 4096
            return
        size = len(frame.Header(1, len(envelope.body), envelope.properties).marshal()) - FRAME_OVERHEAD
        if size > limit:
            raise ValueError(f"headers and properties have {size} bytes, a frame takes {limit}")

    def _on_return(self, _: Channel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:  # noqa: ARG002
        """Unroutable. RabbitMQ returns a message before it acks it, so its tag is still in flight."""
        for tag, sent in self._in_flight.items():
            envelope = sent.envelope
            if (
                tag not in self._returned
                and envelope.properties.message_id == properties.message_id
                and (envelope.exchange, envelope.routing_key) == (method.exchange, method.routing_key)
            ):
                self._returned[tag] = f"{method.reply_code} {method.reply_text}"
                return

    def _on_confirm(self, method_frame: frame.Method) -> None:
        method = method_frame.method
        acked = isinstance(method, pika.spec.Basic.Ack)
        for tag in list(self._tags(method.delivery_tag, multiple=method.multiple)):
            sent = self._in_flight.pop(tag, None)
            returned = self._returned.pop(tag, None)
            if sent is None:
                continue  # given up before
            if not acked:
                outcome: Outcome = Retry("RabbitMQ refused to take it (nack): the queue may be full")
            elif returned is not None:
                outcome = self._unroutable(sent, returned)
            else:
                outcome = Confirmed()
            sent.batch.report(sent.position, outcome)
        self._pump()

    def _tags(self, tag: int, *, multiple: bool) -> Iterator[int]:
        """The delivery tags a confirm speaks of: with `multiple` all that are in flight up to it, oldest first."""
        if not multiple:
            yield tag
            return
        for other in self._in_flight:
            if other > tag:
                return
            yield other

    def _unroutable(self, sent: InFlight, returned: str) -> Outcome:
        envelope = sent.envelope
        where = f"exchange {envelope.exchange!r}" if envelope.exchange else "the default exchange"
        reason = (
            f"{returned}: no queue gets routing key {envelope.routing_key!r} from {where}: declare or bind one, or "
            "change OUTBOX_RABBITMQ_EXCHANGE (--rabbitmq-exchange) or --route"
        )
        return Paused(reason) if sent.batch.unroutable_pauses else Rejected(reason)

    def _forget_finished(self) -> None:
        self._batches = deque(batch for batch in self._batches if not batch.done.is_set())
