"""Where a topic goes: rules of the form PATTERN=DESTINATION, the first match wins."""

import fnmatch
import re
from collections.abc import Iterable
from functools import lru_cache

from outbox.errors import ConfigurationError

__all__ = ["Routes"]


class Routes:
    """Rules that map topics to destinations.

    Parameters:
        rules: 'PATTERN=DESTINATION' each. PATTERN is a topic with the wildcards of a shell (`*`, `?`, `[...]`); what
            DESTINATION means is the publisher's affair.

    Raises ConfigurationError, quoting the rule, for one without pattern, `=` or destination.
    """

    def __init__(self, rules: Iterable[str] = ()) -> None:
        self._rules = [self._parse(rule) for rule in rules]
        self.resolve = lru_cache(maxsize=4096)(self._resolve)

    @property
    def destinations(self) -> list[str]:
        """Every destination that a rule names, in the order of the rules."""
        return [destination for _, destination in self._rules]

    def _resolve(self, topic: str) -> str | None:
        """The destination of the first rule that matches, or None."""
        return next((destination for pattern, destination in self._rules if pattern.fullmatch(topic)), None)

    @staticmethod
    def _parse(rule: str) -> tuple[re.Pattern[str], str]:
        pattern, _, destination = (part.strip() for part in rule.partition("="))
        if not pattern or not destination:
            raise ConfigurationError(f"--route (OUTBOX_ROUTE): {rule!r} is not of the form PATTERN=DESTINATION")
        return re.compile(fnmatch.translate(pattern)), destination
