"""What a process of ours says when it ends."""

from enum import IntEnum

from outbox.errors import BrokerRefused, ConfigurationError, DatabaseError, OutboxError, PublisherError, SchemaError

__all__ = ["ExitCode", "UsageError", "exit_code"]


class UsageError(OutboxError):
    """Options of the command line that can't stand together."""


class ExitCode(IntEnum):
    """Exit codes of `outbox-relay`; a signal that is not heeded gracefully adds 128 plus its number."""

    DONE = 0
    USAGE = 2
    CONFIGURATION = 3
    SCHEMA = 4
    DATABASE = 5
    BROKER_REFUSED = 6
    BROKER_UNREACHABLE = 7
    LEFT_BEHIND = 8
    INTERNAL = 70  # EX_SOFTWARE of BSD's sysexits.h

    @property
    def meaning(self) -> str:
        """One line for people."""
        return MEANINGS[self]


MEANINGS = {
    ExitCode.DONE: "done, or stopped as asked",
    ExitCode.USAGE: "wrong usage of the command line",
    ExitCode.CONFIGURATION: "a setting is missing or wrong, or needs an extra that is not installed",
    ExitCode.SCHEMA: "the outbox tables are missing or too old: run outbox-relay migrate",
    ExitCode.DATABASE: "the database refused us or could not be reached",
    ExitCode.BROKER_REFUSED: "the broker refused us: credentials, permissions, a missing queue or exchange",
    ExitCode.BROKER_UNREACHABLE: "the broker could not be reached",
    ExitCode.LEFT_BEHIND: "--drain left events that wait or are parked",
    ExitCode.INTERNAL: "a bug in outbox-relay",
}

# The first class that fits: subclasses stand before their parents.
CODES: list[tuple[type[BaseException], ExitCode]] = [
    (UsageError, ExitCode.USAGE),
    (ConfigurationError, ExitCode.CONFIGURATION),
    (SchemaError, ExitCode.SCHEMA),
    (DatabaseError, ExitCode.DATABASE),
    (BrokerRefused, ExitCode.BROKER_REFUSED),
    (PublisherError, ExitCode.BROKER_UNREACHABLE),
]


def exit_code(error: BaseException) -> ExitCode:
    """The code for an exception that ended the process."""
    return next((code for kind, code in CODES if isinstance(error, kind)), ExitCode.INTERNAL)
