"""The application's side of the outbox: `session.add(OutboxEvent(...))` commits an event with what it tells about."""

from outbox.errors import (
    BrokerRefused,
    ConfigurationError,
    DatabaseError,
    DatabaseRefused,
    DatabaseUnreachable,
    InvalidEvent,
    MissingExtra,
    OutboxError,
    PublisherError,
    SchemaError,
    Unavailable,
)
from outbox.event import EventBase, OutboxEvent, make_event_class
from outbox.identifiers import uuid7

__all__ = [
    "BrokerRefused",
    "ConfigurationError",
    "DatabaseError",
    "DatabaseRefused",
    "DatabaseUnreachable",
    "EventBase",
    "InvalidEvent",
    "MissingExtra",
    "OutboxError",
    "OutboxEvent",
    "PublisherError",
    "SchemaError",
    "Unavailable",
    "make_event_class",
    "uuid7",
]
