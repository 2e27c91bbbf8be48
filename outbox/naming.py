"""Names of the tables in the database."""

import re
from dataclasses import dataclass

from outbox.errors import ConfigurationError

__all__ = ["Naming"]


@dataclass(frozen=True, slots=True)
class Naming:
    """Where the tables live: a schema (None: the search path) and a prefix of their names.

    Raises ConfigurationError for names that would need quoting or leave no room within PostgreSQL's 63 bytes.
    """

    schema: str | None = None
    prefix: str = "outbox_"

    def __post_init__(self) -> None:
        for setting, value, pattern in (
            ("schema", self.schema, r"[a-z_][a-z0-9_]{0,62}"),
            ("prefix", self.prefix, r"[a-z_][a-z0-9_]{0,31}"),
        ):
            if value is not None and not re.fullmatch(pattern, value):
                raise ConfigurationError(f"{setting}: {value!r:.80} is not of the form {pattern}")

    def table(self, name: str) -> str:
        """The name of one of our tables, with its schema, as SQL."""
        return f"{self.schema}.{self.prefix}{name}" if self.schema else f"{self.prefix}{name}"
