import datetime as dt

from relays.publishers import Message, wire_headers

CREATED = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone(dt.timedelta(hours=1)))


def message(**fields: object) -> Message:
    values = ("id-1", "k", "orders", "OrderPlaced", b"{}", "application/json", None, CREATED, 0)
    return Message(*values)._replace(**fields)


def test_the_names_on_the_wire() -> None:
    assert wire_headers(message(headers={"tenant": "a", "retries": 3, "urgent": True})) == {
        "idempotency-key": "id-1",
        "outbox-type": "OrderPlaced",
        "outbox-key": "k",
        "outbox-created-at": "2026-01-02T02:04:05+00:00",
        "tenant": "a",
        "retries": 3,
        "urgent": True,
    }


def test_an_event_without_key_has_no_key_header() -> None:
    assert "outbox-key" not in wire_headers(message(key=None))


def test_what_sql_can_write_past_the_event_class() -> None:
    headers = wire_headers(message(headers={"idempotency-key": "forged", "outbox-type": "x", "n": 1.0}))
    assert (headers["idempotency-key"], headers["outbox-type"]) == ("id-1", "OrderPlaced")
    assert type(headers["n"]) is int
