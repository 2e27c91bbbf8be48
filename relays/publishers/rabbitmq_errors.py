"""What an exception of pika means: refused for good, or away for now. Pure."""

import socket
import ssl
from typing import Any

from pika import exceptions as pika_errors
from pika.adapters.utils.connection_workflow import AMQPConnectorStackTimeout

from outbox.errors import BrokerRefused, PublisherError, Unavailable
from relays.publishers import Outcome, Paused, Rejected

__all__ = ["culprit_outcome", "innermost", "translate"]

URL = "OUTBOX_RABBITMQ_URL (--rabbitmq-url)"


def innermost(error: BaseException) -> BaseException:
    """The exception that pika's connection workflow has wrapped, possibly several times."""
    while True:
        candidates = [*getattr(error, "exceptions", ()), getattr(error, "exception", None), *error.args]
        inner = [candidate for candidate in candidates if isinstance(candidate, BaseException)]
        if not inner:
            return error
        error = inner[-1]


def translate(error: BaseException, where: str) -> PublisherError:
    """The error to raise when a connection can't be made or was lost; `where` is host, port and vhost."""
    error = innermost(error)
    match error:
        case pika_errors.ProbableAuthenticationError():
            return BrokerRefused(f"RabbitMQ at {where} refused user or password: check {URL}")
        case pika_errors.ProbableAccessDeniedError():
            return BrokerRefused(
                f"RabbitMQ at {where} has no such vhost or does not let this user in: check {URL} (the default is %2F)"
            )
        case ssl.SSLError():
            reason = error.reason or error
            return BrokerRefused(f"no TLS connection to RabbitMQ at {where} ({reason}): check {URL}")
        case socket.gaierror():
            return Unavailable(f"the host name of RabbitMQ at {where} is unknown ({error.strerror}): check {URL}")
        case ConnectionRefusedError():
            return Unavailable(f"no server listens for RabbitMQ at {where}: start it, or check {URL}")
        case pika_errors.IncompatibleProtocolError():
            return Unavailable(f"what answers at {where} does not speak AMQP 0-9-1: check the port in {URL}")
        case pika_errors.AMQPHeartbeatTimeout():
            return Unavailable(f"RabbitMQ at {where} has been silent for two heartbeats")
        case pika_errors.ConnectionClosedByBroker():
            return Unavailable(f"RabbitMQ at {where} closed the connection: {error.reply_code} {error.reply_text}")
        case TimeoutError() | AMQPConnectorStackTimeout():
            return Unavailable(f"RabbitMQ at {where} does not answer: check {URL}")
    return Unavailable(f"the connection to RabbitMQ at {where} failed: {_describe(error)}")


def culprit_outcome(reason: Any, destination: str) -> Outcome:
    """What becomes of the message for which the broker closed the channel.

    AMQP 0-9-1 and RabbitMQ: 404 no such exchange, 403 not allowed: the destination's fault; 406 (too large, a bad
    property) is the message's.
    """
    code = getattr(reason, "reply_code", None)
    text = f"{code} {getattr(reason, 'reply_text', reason)}"
    if code in (403, 404):
        return Paused(f"{text}: create {destination!r} or allow this user to publish to it, or change its --route")
    return Rejected(text)


def _describe(error: BaseException) -> str:
    text = str(error) or repr(error)
    return f"{type(error).__name__}: {text}" if type(error).__name__ not in text else text
