"""The event class in a Session: every way to insert, rollbacks, changes, and what stays readable after the commit."""

import copy
import dataclasses
import datetime as dt
import decimal
import enum
import pickle
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pydantic
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, make_transient, mapped_column
from sqlalchemy.orm.exc import ObjectDeletedError, StaleDataError

from outbox import InvalidEvent, OutboxEvent
from tests.support.inserts import INSERTS, TABLE, Insert, Rows

BASE = {"topic": "orders", "type": "OrderPlaced"}
FUTURE = dt.datetime(2040, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Line:
    sku: str
    price: decimal.Decimal


class Order(pydantic.BaseModel):
    id: uuid.UUID
    lines: list[Line]


class HostBase(DeclarativeBase):
    pass


class HostOrder(HostBase):
    """A model of the application's own, which goes by SQLAlchemy's usual rules."""

    __tablename__ = "host_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str]


def make(**fields: Any) -> OutboxEvent:
    return OutboxEvent(**{**BASE, **fields})


def stored(session: Session, *columns: str) -> list[Any]:
    """What plain SQL sees, in the order of the ids."""
    rows = session.execute(sa.text(f"SELECT {', '.join(columns)} FROM outbox_event ORDER BY id")).all()
    return [row[0] for row in rows] if len(columns) == 1 else [tuple(row) for row in rows]


def delete_all(engine: sa.Engine) -> None:
    """What a fast relay does."""
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM outbox_event")


@contextmanager
def statements(engine: sa.Engine) -> Iterator[list[str]]:
    """The statements that are sent meanwhile."""
    sent: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    yield sent
    sa.event.remove(engine, "before_cursor_execute", note)


@pytest.fixture
def engine(kept_engine: sa.Engine) -> sa.Engine:
    return kept_engine


@pytest.fixture
def session(engine: sa.Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


ways = pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS.keys())


# Every way to insert gives the same rows

ID = uuid.UUID(int=7)
JSON, BINARY, PLAIN = "application/json", "application/octet-stream", "text/plain"

PAYLOADS: list[tuple[dict[str, Any], bytes, str]] = [
    ({"payload": {"a": [1, None, "ä"]}}, '{"a":[1,null,"ä"]}'.encode(), JSON),
    ({"payload": []}, b"[]", JSON),
    ({"payload": None}, b"null", JSON),
    ({"payload": "text"}, b'"text"', JSON),
    ({"payload": 1.5}, b"1.5", JSON),
    ({"payload": b"\x00\xff"}, b"\x00\xff", BINARY),
    ({"payload": bytearray(b"\x01")}, b"\x01", BINARY),
    ({"payload": memoryview(b"\x02")}, b"\x02", BINARY),
    ({"payload": Colour.RED}, b'"red"', JSON),
    ({"payload": Line("a", decimal.Decimal("1.50"))}, b'{"sku":"a","price":"1.50"}', JSON),
    (
        {"payload": [Order(id=ID, lines=[Line("a", decimal.Decimal("1.50"))])]},
        b'[{"id":"00000000-0000-0000-0000-000000000007","lines":[{"sku":"a","price":"1.50"}]}]',
        JSON,
    ),
    ({"payload": {"at": FUTURE}}, b'{"at":"2040-01-01T12:00:00+02:00"}', JSON),
    ({"payload": "text ä", "content_type": PLAIN}, "text ä".encode(), PLAIN),
    ({"payload": "", "content_type": "text/csv"}, b"", "text/csv"),
    ({"payload": "<a/>", "content_type": "application/xml"}, b'"<a/>"', "application/xml"),
    ({"payload": b"<a/>", "content_type": "application/xml"}, b"<a/>", "application/xml"),
    ({"payload": {"a": 1}, "content_type": PLAIN}, b'{"a":1}', PLAIN),
    ({"payload": None, "content_type": PLAIN}, b"null", PLAIN),
]


@ways
def test_payloads_are_encoded_alike(session: Session, insert: Insert) -> None:
    insert(session, [{**BASE, **fields} for fields, _, _ in PAYLOADS])
    assert stored(session, "payload", "content_type") == [(body, kind) for _, body, kind in PAYLOADS]


@ways
def test_the_other_fields_are_stored_alike(session: Session, insert: Insert) -> None:
    fields = {
        **BASE,
        "payload": 1,
        "key": "schlüssel",
        "headers": {"a": "x", "b": 2**63 - 1, "c": True},
        "outbox": "billing",
        "available_at": FUTURE,
        "content_type": JSON,
        "idempotency_key": "k" * 128,
    }
    insert(session, [fields])
    columns = ["topic", "type", "key", "headers", "outbox", "available_at", "idempotency_key"]
    assert stored(session, *columns) == [tuple(fields[name] for name in columns)]


@ways
def test_the_defaults_are_the_same_and_each_row_has_its_own_idempotency_key(session: Session, insert: Insert) -> None:
    insert(session, [{**BASE, "payload": number} for number in range(5)])
    rows = stored(session, "key", "headers", "outbox", "available_at", "attempts", "crashes", "resends")
    assert rows == [(None, None, "default", None, 0, 0, 0)] * 5
    keys = stored(session, "idempotency_key")
    assert len(set(keys)) == 5
    assert all(uuid.UUID(key).version == 7 for key in keys)


@ways
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"topic": ""}, "topic"),
        ({"type": "x" * 256}, "type"),
        ({"key": "a\0"}, "key"),
        ({"outbox": "x" * 64}, "outbox"),
        ({"content_type": ""}, "content_type"),
        ({"payload": {1}}, "payload"),
        ({"payload": "\ud800", "content_type": PLAIN}, "payload"),
        ({"headers": {"a": 1.5}}, "headers"),
        ({"available_at": FUTURE.replace(tzinfo=None)}, "available_at"),
        ({"idempotency_key": "k" * 129}, "idempotency_key"),
    ],
)
def test_a_wrong_value_is_refused_before_the_database_sees_it(
    session: Session, insert: Insert, wrong: dict[str, Any], field: str
) -> None:
    with statements(session.get_bind()) as sent, pytest.raises(InvalidEvent, match=rf"^{field}\b.*: "):  # type: ignore[arg-type]  # the session has an engine
        insert(session, [{**BASE, "payload": 1, **wrong}])
    assert not [statement for statement in sent if "INSERT" in statement]


@ways
def test_ids_follow_the_order_in_which_events_are_given(session: Session, insert: Insert) -> None:
    """Order per key is the order of the ids, so no batching may shuffle them."""
    insert(session, [{**BASE, "payload": number, "key": "k"} for number in range(60)])
    assert stored(session, "payload") == [str(number).encode() for number in range(60)]


def test_a_thousand_added_events_keep_their_order_and_get_their_ids(session: Session) -> None:
    events = [make(payload=number, headers={"n": number} if number % 3 else None) for number in range(1000)]
    session.add_all(events)
    session.commit()
    ids = [event.id for event in events]
    assert sorted(ids) == ids
    assert stored(session, "id", "payload") == [(event.id, str(event.payload).encode()) for event in events]


def test_rows_of_a_values_list_may_leave_to_the_default_what_the_first_one_gives(session: Session) -> None:
    rows = [
        {**BASE, "payload": "one", "content_type": PLAIN},
        {**BASE, "payload": "two"},
        {**BASE, "payload": b"three"},
    ]
    session.execute(sa.insert(TABLE).values(rows))
    assert stored(session, "payload", "content_type") == [(b"one", PLAIN), (b'"two"', JSON), (b"three", BINARY)]


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def storable(document: object) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in str(document))


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=st.lists(DOCUMENTS.filter(lambda document: storable(document)), min_size=1, max_size=5))
def test_any_json_document_comes_back_equal(session: Session, documents: list[Any]) -> None:
    events = [make(payload=document) for document in documents]
    session.add_all(events)
    session.flush()
    as_json = session.execute(
        sa.text("SELECT convert_from(payload, 'UTF8') FROM outbox_event WHERE id = ANY(:ids) ORDER BY id"),
        {"ids": [event.id for event in events]},
    ).scalars()
    assert [pydantic.TypeAdapter(Any).validate_json(text) for text in as_json] == documents
    session.rollback()


# SQL expressions, and what Core asks for


def test_an_insert_from_a_select_makes_a_key_for_each_row(session: Session) -> None:
    source = sa.select(sa.literal("orders"), sa.literal("Copied"), sa.func.convert_to("1", "UTF8")).select_from(
        sa.func.generate_series(1, 3)
    )
    columns = ["topic", "type", "payload"]
    session.execute(sa.insert(TABLE).from_select(columns, source, include_defaults=False))
    assert len(set(stored(session, "idempotency_key"))) == 3
    assert stored(session, "outbox", "content_type") == [("default", JSON)] * 3


def test_an_insert_from_a_select_with_one_key_for_all_rows_is_refused(session: Session) -> None:
    source = sa.select(sa.literal("orders"), sa.literal("Copied"), sa.func.convert_to("1", "UTF8"))
    with pytest.raises(InvalidEvent, match="include_defaults=False"):
        session.execute(sa.insert(TABLE).from_select(["topic", "type", "payload"], source))


def test_a_payload_may_be_an_sql_expression(session: Session) -> None:
    payload = sa.func.convert_to("made by the database", "UTF8")
    session.execute(sa.insert(TABLE).values(**BASE, payload=payload, content_type=PLAIN))
    assert stored(session, "payload", "content_type") == [(b"made by the database", PLAIN)]


def test_a_values_list_without_content_types_goes_by_each_payload(session: Session) -> None:
    session.execute(sa.insert(TABLE).values([{**BASE, "payload": payload} for payload in (b"one", "two", b"three")]))
    assert stored(session, "payload", "content_type") == [(b"one", BINARY), (b'"two"', JSON), (b"three", BINARY)]


def test_what_a_list_leaves_to_the_default_goes_by_its_own_row_beside_sql_expressions(session: Session) -> None:
    made = sa.func.convert_to("x", "UTF8")
    rows = [{**BASE, "payload": made}, {**BASE, "payload": b"y"}, {**BASE, "payload": made}]
    session.execute(sa.insert(TABLE).values(rows))
    assert stored(session, "payload", "content_type") == [(b"x", JSON), (b"y", BINARY), (b"x", JSON)]


@pytest.mark.parametrize(
    "rows",
    [
        [{"payload": sa.func.convert_to("x", "UTF8"), "content_type": PLAIN}, {"payload": "y", "content_type": PLAIN}],
        [{"payload": "y", "content_type": sa.func.lower("TEXT/PLAIN")}],
    ],
    ids=["payload", "content_type"],
)
def test_a_str_whose_content_type_is_not_known_for_certain_is_refused(session: Session, rows: Rows) -> None:
    with pytest.raises(InvalidEvent, match=r"^payload: give bytes, not str"):
        session.execute(sa.insert(TABLE).values([{**BASE, **row} for row in rows]))


@pytest.mark.parametrize("field", ["content_type", "outbox", "idempotency_key", "topic", "type"])
def test_none_in_a_core_insert_is_refused_by_name(session: Session, field: str) -> None:
    with pytest.raises(InvalidEvent, match=f"^{field}: expected "):
        session.execute(sa.insert(TABLE), {**BASE, "payload": 1, field: None})


def test_none_in_an_orm_insert_means_the_default_as_anywhere_in_sqlalchemy(session: Session) -> None:
    session.execute(sa.insert(OutboxEvent), [{**BASE, "payload": b"1", "content_type": None, "outbox": None}])
    assert stored(session, "outbox", "content_type") == [("default", BINARY)]


def test_a_field_that_only_the_constructor_knows_is_refused_by_core(session: Session) -> None:
    with pytest.raises(sa.exc.CompileError, match="delay"):
        session.execute(sa.insert(TABLE).values({**BASE, "payload": 1, "delay": 5}))


def test_the_database_alone_gives_ids(session: Session) -> None:
    with pytest.raises(sa.exc.ProgrammingError, match="GENERATED ALWAYS"):
        session.execute(sa.insert(TABLE), {**BASE, "payload": 1, "id": 99})


@pytest.mark.parametrize(
    ("fields", "condition", "found"),
    [
        ({"headers": {"source": "shop"}}, OutboxEvent.headers["source"].astext == "shop", 1),
        ({}, OutboxEvent.headers.is_(None), 1),
        ({"idempotency_key": "order-7"}, OutboxEvent.idempotency_key.like("order-%"), 1),
        ({}, OutboxEvent.idempotency_key == "no such key", 0),
        ({}, OutboxEvent.topic.in_(["", "orders"]), 1),
        ({}, OutboxEvent.key.is_distinct_from(""), 1),
        ({"available_at": FUTURE}, OutboxEvent.available_at - sa.func.now() > dt.timedelta(days=1), 1),
    ],
)
def test_events_can_be_searched_by_any_condition(
    session: Session, fields: dict[str, Any], condition: sa.ColumnElement[bool], found: int
) -> None:
    session.add(make(**fields))
    assert len(session.scalars(sa.select(OutboxEvent).where(condition)).all()) == found


@pytest.mark.parametrize("infinity", ["infinity", "-infinity"])
def test_events_that_the_relay_has_put_aside_can_be_read(session: Session, infinity: str) -> None:
    session.add(make(payload=1))
    session.flush()
    session.execute(sa.text(f"UPDATE outbox_event SET held = 'blocked', available_at = '{infinity}'"))
    session.commit()
    session.expunge_all()
    event = session.scalars(sa.select(OutboxEvent)).one()
    assert (event.topic, event.payload, event.available_at) == ("orders", b"1", None)


# What is sent


def test_the_insert_fetches_the_id_alone_and_reading_afterwards_asks_nothing(
    engine: sa.Engine, session: Session
) -> None:
    event = make(payload={"a": 1})
    session.add(event)
    with statements(engine) as sent:
        session.commit()
        _ = [getattr(event, name) for name in ("id", "topic", "payload", "available_at")]
    (insert,) = sent
    assert insert.endswith("RETURNING outbox_event.id")
    assert session.in_transaction() is False


@pytest.mark.parametrize("name", ["attempts", "crashes", "resends", "created_at", "lane", "held", "last_error"])
def test_the_relays_own_columns_are_no_attributes(name: str) -> None:
    assert not hasattr(OutboxEvent, name)


# Rollbacks


def test_a_rolled_back_event_was_never_there(session: Session) -> None:
    session.add(make())
    session.flush()
    session.rollback()
    assert stored(session, "id") == []


def test_a_savepoint_takes_its_event_with_it_and_leaves_the_others(session: Session) -> None:
    session.add(make(payload="before"))
    with session.begin_nested() as savepoint:
        session.add(make(payload="within"))
        session.flush()
        savepoint.rollback()
    session.add(make(payload="after"))
    session.commit()
    assert stored(session, "payload") == [b'"before"', b'"after"']


@pytest.mark.parametrize("nested", [False, True])
def test_a_rolled_back_event_can_be_added_again(engine: sa.Engine, session: Session, nested: bool) -> None:
    event = make(payload=1)
    transaction = session.begin_nested() if nested else session
    session.add(event)
    session.flush()
    first_id = event.id
    transaction.rollback()
    event.payload = 2
    session.add(event)
    session.commit()
    delete_all(engine)
    assert event.id > first_id
    assert event.payload == 2


def test_an_expunged_event_can_be_added_to_another_session(engine: sa.Engine, session: Session) -> None:
    event = make()
    session.add(event)
    session.expunge(event)
    session.commit()
    assert stored(session, "id") == []
    with Session(engine) as other:
        other.add(event)
        other.commit()
    assert stored(session, "idempotency_key") == [event.idempotency_key]


def test_a_stored_event_made_transient_is_stored_again_under_a_new_id(session: Session) -> None:
    event = make()
    session.add(event)
    session.commit()
    first_id = event.id
    make_transient(event)
    session.add(event)
    session.commit()
    assert stored(session, "id") == [first_id, event.id]
    assert len(set(stored(session, "idempotency_key"))) == 1


# Readable after the commit


FIELDS = [
    "id",
    "idempotency_key",
    "outbox",
    "key",
    "topic",
    "type",
    "payload",
    "content_type",
    "headers",
    "available_at",
]


def read(event: OutboxEvent) -> dict[str, Any]:
    return {name: getattr(event, name) for name in FIELDS}


def add_one(session: Session, **fields: Any) -> OutboxEvent:
    event = make(**fields)
    session.add(event)
    session.flush()
    return event


def test_a_model_of_the_applications_own_shows_what_would_happen(engine: sa.Engine, session: Session) -> None:
    HostBase.metadata.create_all(engine)
    order = HostOrder(note="x")
    session.add(order)
    session.commit()
    with engine.begin() as connection:
        connection.execute(sa.delete(HostOrder))
    with pytest.raises(ObjectDeletedError):
        _ = order.note


def test_every_attribute_stays_readable_when_the_row_is_gone(engine: sa.Engine, session: Session) -> None:
    event = make(payload={"a": 1}, key="k", headers={"h": True}, available_at=FUTURE, outbox="billing")
    given = {name: getattr(event, name) for name in FIELDS if name != "id"}
    session.add(event)
    session.commit()
    delete_all(engine)
    assert {**given, "id": event.id} == read(event)
    assert event.id > 0


@pytest.mark.parametrize(
    "later",
    [
        lambda session, _: session.commit(),
        lambda session, _: session.rollback(),
        lambda session, event: session.expire(event),
        lambda session, event: session.expire(event, ["topic", "payload"]),
        lambda session, _: session.expire_all(),
        lambda session, _: session.close(),
        lambda session, event: session.expunge(event),
        lambda session, event: (session.execute(sa.text("SELECT 1")), session.rollback(), session.commit()),
    ],
    ids=["commit", "rollback", "expire", "expire some", "expire all", "close", "expunge", "rollback, commit"],
)
def test_they_stay_readable_whatever_the_session_does_next(engine: sa.Engine, session: Session, later: Any) -> None:
    event = add_one(session, payload={"a": 1})
    session.commit()
    delete_all(engine)
    before = read(event)
    later(session, event)
    assert read(event) == before


def test_a_failed_refresh_says_so_and_leaves_them_readable(engine: sa.Engine, session: Session) -> None:
    event = add_one(session, payload={"a": 1})
    session.commit()
    delete_all(engine)
    before = read(event)
    with pytest.raises(sa.exc.InvalidRequestError, match="Could not refresh"):
        session.refresh(event)
    assert read(event) == before


def test_a_refresh_shows_the_row_and_the_commit_after_it_keeps_what_it_showed(
    engine: sa.Engine, session: Session
) -> None:
    event = add_one(session, payload={"a": 1})
    session.execute(sa.text("UPDATE outbox_event SET topic = 'moved'"))
    session.refresh(event)
    assert (event.topic, event.payload) == ("moved", b'{"a":1}')
    session.commit()
    delete_all(engine)
    assert (event.topic, event.payload) == ("moved", b'{"a":1}')


def test_an_update_by_statement_is_seen_after_the_commit(engine: sa.Engine, session: Session) -> None:
    event = add_one(session)
    session.execute(sa.update(OutboxEvent).where(OutboxEvent.topic == "orders").values(topic="moved"))
    session.commit()
    delete_all(engine)
    assert event.topic == "moved"


def test_expiring_one_attribute_leaves_changes_of_the_others_alone(session: Session) -> None:
    event = add_one(session)
    with session.no_autoflush:
        event.type = "Changed"
        session.expire(event, ["topic"])
        assert (event.topic, event.type) == ("orders", "Changed")
    session.commit()
    assert stored(session, "type") == ["Changed"]


def test_events_that_were_queried_are_reloaded_like_any_object(engine: sa.Engine, session: Session) -> None:
    add_one(session)
    session.commit()
    session.expunge_all()
    event = session.scalars(sa.select(OutboxEvent)).one()
    session.commit()
    session.connection().exec_driver_sql("UPDATE outbox_event SET topic = 'moved'")
    assert event.topic == "moved"


def test_a_committed_event_is_found_by_its_id_as_long_as_the_session_knows_it(
    engine: sa.Engine, session: Session
) -> None:
    event = add_one(session)
    session.commit()
    delete_all(engine)
    assert session.get(OutboxEvent, event.id) is event


# Changes after the flush


def test_a_flushed_event_can_be_changed_in_its_transaction(engine: sa.Engine, session: Session) -> None:
    """As applications do: the order has its id only after a flush, and the event shall carry it."""
    event = add_one(session, payload={})
    event.key, event.payload, event.headers = "order-7", {"id": 7}, {"a": 1}
    session.commit()
    assert stored(session, "key", "payload", "headers") == [("order-7", b'{"id":7}', {"a": 1})]
    delete_all(engine)
    assert (event.key, event.payload, event.headers) == ("order-7", {"id": 7}, {"a": 1})


def test_a_wrong_change_is_refused_at_the_flush(session: Session) -> None:
    event = add_one(session)
    event.topic = ""
    with pytest.raises(InvalidEvent, match=r"^topic: "):
        session.flush()


@pytest.mark.parametrize(
    ("first", "change", "body"),
    [
        ({"payload": "one", "content_type": PLAIN}, {"payload": "two"}, b"two"),
        ({"payload": "one", "content_type": PLAIN}, {"topic": "other"}, b"one"),
        ({"payload": "one"}, {"content_type": PLAIN}, b"one"),
        ({"payload": "one", "content_type": PLAIN}, {"content_type": JSON}, b'"one"'),
        ({"payload": {"a": 1}}, {"payload": "two", "content_type": PLAIN}, b"two"),
        ({"payload": {"a": 1}}, {"content_type": "application/vnd.a+json"}, b'{"a":1}'),
        ({"payload": b"\xff"}, {"content_type": "image/x"}, b"\xff"),
        ({"payload": "one"}, {"payload": None}, b"null"),
    ],
)
def test_a_change_keeps_payload_and_content_type_in_step(
    session: Session, first: dict[str, Any], change: dict[str, Any], body: bytes
) -> None:
    event = add_one(session, **first)
    for name, value in change.items():
        setattr(event, name, value)
    session.commit()
    assert stored(session, "payload", "content_type") == [(body, event.content_type)]


@pytest.mark.parametrize("expire_on_commit", [True, False])
def test_what_a_rolled_back_savepoint_has_changed_is_not_shown(engine: sa.Engine, expire_on_commit: bool) -> None:
    with Session(engine, expire_on_commit=expire_on_commit) as session:
        event = add_one(session, topic="first")
        with session.begin_nested() as savepoint:
            event.topic = "second"
            session.flush()
            savepoint.rollback()
        assert event.topic == "first"
        session.commit()
        delete_all(engine)
        assert event.topic == "first"


def test_what_a_released_savepoint_has_changed_is_shown(engine: sa.Engine, session: Session) -> None:
    event = add_one(session, topic="first")
    with session.begin_nested():
        event.topic = "second"
    session.commit()
    delete_all(engine)
    assert event.topic == "second"


@pytest.mark.parametrize("expire_on_commit", [True, False])
def test_what_a_later_transaction_has_changed_and_rolled_back_is_not_shown(
    engine: sa.Engine, expire_on_commit: bool
) -> None:
    with Session(engine, expire_on_commit=expire_on_commit) as session:
        event = add_one(session, topic="first")
        session.commit()
        event.topic = "second"
        session.flush()
        session.rollback()
        assert event.topic == "first"


def test_changing_an_event_that_a_relay_has_taken_is_an_error(engine: sa.Engine, session: Session) -> None:
    event = add_one(session)
    session.commit()
    delete_all(engine)
    event.topic = "too late"
    with pytest.raises(StaleDataError):
        session.commit()
    session.rollback()
    assert event.topic == "orders"


# Copies


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda event: pickle.loads(pickle.dumps(event))])
def test_a_committed_event_can_leave_its_session(engine: sa.Engine, session: Session, duplicate: Any) -> None:
    event = add_one(session, payload={"a": 1})
    session.commit()
    delete_all(engine)
    other = duplicate(event)
    assert read(other) == read(event)
    assert sa.inspect(other).detached


def test_merging_a_stored_event_inserts_nothing(engine: sa.Engine, session: Session) -> None:
    event = add_one(session, payload={"a": 1})
    session.commit()
    with Session(engine) as other:
        merged = other.merge(event)
        other.commit()
        assert merged.topic == "orders"
    assert stored(session, "id", "payload") == [(event.id, b'{"a":1}')]


def test_merging_an_event_that_a_relay_has_taken_adds_it_again_with_the_key_that_consumers_know(
    engine: sa.Engine, session: Session
) -> None:
    event = add_one(session)
    session.commit()
    delete_all(engine)
    with Session(engine) as other:
        other.merge(event)
        other.commit()
    assert stored(session, "idempotency_key") == [event.idempotency_key]


# Beside other things


def test_events_and_models_of_the_application_share_one_transaction(engine: sa.Engine, session: Session) -> None:
    HostBase.metadata.create_all(engine)
    session.add_all([HostOrder(note="kept"), make(payload=1)])
    session.commit()
    session.add_all([HostOrder(note="dropped"), make(payload=2)])
    session.flush()
    session.rollback()
    assert session.scalars(sa.select(HostOrder.note)).all() == ["kept"]
    assert stored(session, "payload") == [b"1"]


def test_a_delay_is_a_time_from_now_in_the_table(session: Session) -> None:
    add_one(session, delay=dt.timedelta(hours=1))
    (seconds,) = session.execute(sa.text("SELECT extract(epoch FROM available_at - now()) FROM outbox_event")).one()
    assert 3590 < seconds <= 3601
