"""What the demo is judged by: what the shop committed against what the consumer received, and nothing else. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Sale", "Verdict", "judge"]


class Sale(NamedTuple):
    """One order, as the shop committed it or as a message tells about it."""

    idempotency_key: str
    customer: str
    number: int
    """Which order of this customer it is: 1, 2, 3 in the order of their commits."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many of what. A message whose key and content were not committed together is an invented one."""

    committed: int
    received_distinct: int
    duplicates: int
    lost: int
    invented: int
    order_violations: int
    """Messages that arrived for the first time after a later one of their customer's."""

    @property
    def good(self) -> bool:
        """Whether every promise was kept; duplicates are allowed, they can be recognised."""
        return not (self.lost or self.invented or self.order_violations)


def judge(committed: Iterable[Sale], received: Iterable[Sale]) -> Verdict:
    """Compare the orders in the database with the messages, which are in the order of their arrival."""
    expected, arrivals = set(committed), list(received)
    first_arrivals = dict.fromkeys(arrivals)
    latest: dict[str, int] = {}
    violations = 0
    for sale in first_arrivals:
        if sale not in expected:
            continue
        violations += sale.number < latest.get(sale.customer, 0)
        latest[sale.customer] = max(sale.number, latest.get(sale.customer, 0))
    return Verdict(
        committed=len(expected),
        received_distinct=len(first_arrivals),
        duplicates=len(arrivals) - len(first_arrivals),
        lost=len(expected - first_arrivals.keys()),
        invented=len(first_arrivals.keys() - expected),
        order_violations=violations,
    )
