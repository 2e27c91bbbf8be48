"""RabbitMQ: persistent, mandatory messages on one connection, publisher confirms pipelined over a window."""

import logging
import ssl
import threading
from collections.abc import Sequence
from functools import lru_cache

import pika
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from outbox.errors import ConfigurationError, PublisherError, Unavailable
from relays.publishers import Deadline, Interrupted, Message, Options, Outcome, Plugin, wire_headers
from relays.publishers.rabbitmq_link import Batch, Envelope, Link

__all__ = ["RabbitMQPublisher", "RabbitMQSettings", "plugin"]

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT = 5.0
"""Seconds for the TCP connection; twice that for the whole handshake."""

KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
"""Notice a peer that vanished within some 25 s (seconds, seconds, probes, milliseconds)."""


class RabbitMQSettings(BaseSettings):
    """The settings of `--target rabbitmq`."""

    model_config = SettingsConfigDict(env_prefix="OUTBOX_RABBITMQ_")

    url: SecretStr
    """amqp://user:password@host:5672/vhost, or amqps://; the default vhost is written %2F."""
    exchange: str = Field(default="", max_length=255)
    """Where topics go that no route matches; default: the default exchange, whose routing keys are queue names."""
    window: int = Field(default=1000, ge=1, le=100_000)
    """How many messages may wait for their confirm at once."""
    confirm_timeout: float = Field(default=30.0, gt=0)
    """Seconds after which a confirm that has not come counts as an outage."""
    heartbeat: int = Field(default=30, ge=1, le=600)
    """Seconds; a broker that is silent for about twice as long is away."""


class RabbitMQPublisher:
    """Publishes with one connection on a thread of its own, shared by all workers; reconnects when it is needed."""

    def __init__(self, settings: RabbitMQSettings, options: Options) -> None:
        self._settings, self._options = settings, options
        self._parameters = _parameters(settings)
        self._link: Link | None = None
        self._connecting = threading.Lock()
        self._closed = False
        # Topics repeat: resolving each once keeps routes off the hot path.
        self._address = lru_cache(maxsize=4096)(self._resolve)

    def open(self) -> None:
        with self._connecting:
            self._check_not_closed()
            if self._link is not None and self._link.alive:
                self._link.check_blocked()
                return
            link = Link(self._parameters, self._settings.window, self._settings.confirm_timeout, self._exchanges())
            link.start(timeout=4 * CONNECT_TIMEOUT)
            self._link = link
            try:
                self._check_not_closed()  # meanwhile, when there was no link to close yet
            except Unavailable:
                link.close(timeout=1.0)
                raise

    def destination(self, topic: str) -> str:
        exchange, routing_key = self._address(topic)
        return f"{exchange}:{routing_key}" if exchange else routing_key

    def publish(self, messages: Sequence[Message], deadline: Deadline) -> Sequence[Outcome]:
        if not messages:
            return []
        batch = Batch(
            [self._envelope(message) for message in messages],
            deadline,
            self._options.key_window,
            unroutable_pauses=self._options.on_unroutable == "pause",
        )
        self._connected().publish(batch)
        return batch.outcomes

    def close(self, timeout: float) -> None:
        # Without the lock: whoever is connecting just now may be long about it.
        self._closed = True
        if self._link is not None:
            self._link.close(timeout)

    def _check_not_closed(self) -> None:
        if self._closed:
            raise Unavailable("the publisher is closed")

    def _connected(self) -> Link:
        """The link; a new one if the last was lost, so that an idle relay does not fail its first event."""
        link = self._link
        if link is not None and link.alive:
            return link
        try:
            self.open()
        except PublisherError as error:
            raise Interrupted(str(error)) from error
        if self._link is None:
            raise Interrupted("not connected to RabbitMQ")
        return self._link

    def _resolve(self, topic: str) -> tuple[str, str]:
        """Exchange and routing key of a topic. A route is 'routing.key', 'exchange:routing.key' or 'exchange:'."""
        route = self._options.routes.resolve(topic)
        if route is None:
            return self._settings.exchange, topic
        exchange, colon, routing_key = route.partition(":")
        return (exchange, routing_key or topic) if colon else (self._settings.exchange, route)

    def _exchanges(self) -> list[str]:
        """The exchanges that the settings name. The default exchange can't be asked for: it is always there."""
        routed = [route.partition(":")[0] for route in self._options.routes.destinations if ":" in route]
        return sorted({self._settings.exchange, *routed} - {""})

    def _envelope(self, message: Message) -> Envelope:
        exchange, routing_key = self._address(message.topic)
        properties = pika.BasicProperties(
            content_type=message.content_type,
            delivery_mode=pika.DeliveryMode.Persistent.value,
            headers=wire_headers(message),
            message_id=message.idempotency_key,
            timestamp=int(message.created_at.timestamp()),
            type=message.type,
        )
        return Envelope(message.key, exchange, routing_key, message.payload, properties)


def _parameters(settings: RabbitMQSettings) -> pika.ConnectionParameters:
    """Raises ConfigurationError, without the URL and its password, for what pika would misunderstand."""
    url = settings.url.get_secret_value()
    hint = "OUTBOX_RABBITMQ_URL (--rabbitmq-url): expected amqp://user:password@host:5672/vhost"
    if not url.startswith(("amqp://", "amqps://")):
        raise ConfigurationError(f"{hint}, this does not start with amqp:// or amqps://")
    if url.partition("://")[2].partition("?")[0].count("/") > 1:
        raise ConfigurationError(f"{hint}; a slash within the vhost has to be written %2F")
    try:
        parameters = pika.URLParameters(url)
    except (ValueError, TypeError, ssl.SSLError, OSError) as error:
        # Of pika's own text only the type is safe: the rest may quote the URL.
        raise ConfigurationError(f"{hint} ({type(error).__name__} while reading it)") from None
    parameters.heartbeat = settings.heartbeat
    parameters.connection_attempts = 1
    parameters.socket_timeout = CONNECT_TIMEOUT
    parameters.stack_timeout = 2 * CONNECT_TIMEOUT
    parameters.tcp_options = KEEPALIVE
    parameters.client_properties = {"connection_name": "outbox-relay", "product": "outbox-relay"}
    return parameters


plugin = Plugin(settings=RabbitMQSettings, make=RabbitMQPublisher)
