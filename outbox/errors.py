"""Every exception that outbox-relay raises on purpose.

    OutboxError
    ├── InvalidEvent (also a ValueError)   an event that no broker could carry; nothing was stored
    ├── ConfigurationError                 a setting is missing, wrong or contradicts another one
    │   └── MissingExtra                   the setting needs a package that is not installed
    ├── SchemaError                        the outbox tables are missing or too old
    ├── DatabaseError
    │   ├── DatabaseRefused                the server answered and said no (password, database, privilege)
    │   └── DatabaseUnreachable            no answer: may be over in a moment
    └── PublisherError
        ├── BrokerRefused                  the broker answered and said no (credentials, vhost, missing destination)
        └── Unavailable                    no answer, throttled or blocked: may be over in a moment

Messages say what was wrong, where, and what to do next; they never contain a password.
"""

from sqlalchemy.exc import DontWrapMixin

__all__ = [
    "BrokerRefused",
    "ConfigurationError",
    "DatabaseError",
    "DatabaseRefused",
    "DatabaseUnreachable",
    "InvalidEvent",
    "MissingExtra",
    "OutboxError",
    "PublisherError",
    "SchemaError",
    "Unavailable",
]


class OutboxError(Exception):
    """The root: catch this to catch everything outbox-relay raises on purpose."""


class InvalidEvent(OutboxError, ValueError, DontWrapMixin):
    """A field of an event has a value that can't be stored or sent. The message names the field.

    SQLAlchemy passes it on as it is, where it wraps what other exceptions a column type raises in a StatementError.
    """


class ConfigurationError(OutboxError):
    """A setting is missing or wrong. The message names the setting to change."""


class MissingExtra(ConfigurationError):
    """A setting needs an optional package. The message names the extra to install."""


class SchemaError(OutboxError):
    """The outbox tables are missing or older than this version needs. The message holds the command to run."""


class DatabaseError(OutboxError):
    """The database failed; the driver's exception is the cause."""


class DatabaseRefused(DatabaseError):
    """The server answered and refused: waiting will not help."""


class DatabaseUnreachable(DatabaseError):
    """The server can't be reached or went away: worth another try."""


class PublisherError(OutboxError):
    """The broker failed as a whole; no event is charged for it."""


class BrokerRefused(PublisherError):
    """The broker answered and refused: a setting or a permission has to change."""


class Unavailable(PublisherError):
    """The broker can't be reached, is blocked or throttles: worth another try, nobody is charged."""
