"""Routes: the first rule whose pattern matches the whole topic decides."""

import pytest

from outbox.errors import ConfigurationError
from relays.routing import Routes


@pytest.mark.parametrize(
    ("topic", "destination"),
    [
        ("orders.placed", "placed"),
        ("orders.paid", "orders"),
        ("ORDERS.paid", None),
        ("old.orders.paid", None),
        ("user7", "users"),
        ("user77", None),
        ("log.a", "logs"),
        ("log.c", None),
        ("multi\nline.orders", "multi"),
    ],
)
def test_the_first_matching_rule_wins(topic: str, destination: str | None) -> None:
    routes = Routes(["orders.placed=placed", "orders.*=orders", "user?=users", "log.[ab]=logs", "multi*=multi"])
    assert routes.resolve(topic) == destination


def test_no_rules_match_nothing() -> None:
    assert Routes().resolve("orders") is None
    assert Routes().destinations == []


def test_destinations_are_in_the_order_of_the_rules() -> None:
    assert Routes(["b=2", " a = 1 ", "c=2"]).destinations == ["2", "1", "2"]


def test_a_destination_may_hold_an_equals_sign() -> None:
    assert Routes(["a=https://example.com/?x=y"]).resolve("a") == "https://example.com/?x=y"


@pytest.mark.parametrize("rule", ["", "orders", "=queue", "orders=", " = ", "orders= "])
def test_a_rule_without_pattern_or_destination_is_refused(rule: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--route \(OUTBOX_ROUTE\).*PATTERN=DESTINATION"):
        Routes([rule])
