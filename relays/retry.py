"""How long to wait before the next try: exponential, capped, with full jitter."""

import random
from dataclasses import dataclass, field

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from `shortest` to `longest` seconds.

    Full jitter: each wait is drawn evenly between 0 and its limit, so that those who failed together don't come
    back together.
    """

    shortest: float = 1.0
    longest: float = 300.0
    rng: random.Random = field(default_factory=random.Random)

    def limit(self, failures: int) -> float:
        """The longest wait after this many failures in a row (at least 1), in seconds."""
        # An exponent beyond 60 would only overflow: the cap was passed long before.
        return min(self.longest, self.shortest * 2.0 ** min(failures - 1, 60))

    def delay(self, failures: int) -> float:
        """The wait after this many failures in a row (at least 1), in seconds."""
        return self.rng.uniform(0.0, self.limit(failures))
