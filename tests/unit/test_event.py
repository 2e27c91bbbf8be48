"""The event class without a database: construction, refusals, copies, the tables it brings along."""

import copy
import datetime as dt
import decimal
import math
import pickle
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import outbox
from outbox import ConfigurationError, EventBase, InvalidEvent, OutboxEvent, codecs, make_event_class, tables

FUTURE = dt.datetime(2040, 1, 1, tzinfo=dt.UTC)


def make(**fields: Any) -> OutboxEvent:
    return OutboxEvent(**{"topic": "orders", "type": "OrderPlaced", **fields})


# Construction


def test_all_fields_are_what_was_given() -> None:
    given = {
        "topic": "orders.placed",
        "type": "OrderPlaced",
        "payload": {"id": 7},
        "key": "order-7",
        "headers": {"source": "shop", "retry": True, "shard": 3},
        "outbox": "billing",
        "available_at": FUTURE,
        "content_type": "application/vnd.shop+json",
        "idempotency_key": "order-7/placed",
    }
    event = OutboxEvent(**given)  # type: ignore[arg-type]  # one dict for all fields
    assert {name: getattr(event, name) for name in given} == given


def test_the_defaults() -> None:
    event = make()
    assert (event.payload, event.key, event.headers, event.available_at) == (None, None, None, None)
    assert (event.outbox, event.content_type) == ("default", "application/json")
    assert uuid.UUID(event.idempotency_key).version == 7


def test_every_event_has_an_idempotency_key_of_its_own_from_the_start() -> None:
    assert len({make().idempotency_key for _ in range(100)}) == 100


@pytest.mark.parametrize("payload", [b"x", bytearray(b"x"), memoryview(b"x")])
def test_bytes_are_no_json_by_default(payload: object) -> None:
    assert make(payload=payload).content_type == "application/octet-stream"
    assert make(payload=payload, content_type="application/json").content_type == "application/json"


def test_fields_are_given_by_name_only_and_no_others_are_known() -> None:
    with pytest.raises(TypeError, match="positional"):
        OutboxEvent("orders", "OrderPlaced")  # type: ignore[call-arg]  # that is the point
    with pytest.raises(TypeError, match="unexpected keyword argument 'id'"):
        make(id=1)


@pytest.mark.parametrize("length", [1, 128])
def test_idempotency_keys_of_up_to_128_characters(length: int) -> None:
    assert make(idempotency_key="k" * length).idempotency_key == "k" * length


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"topic": ""}, "topic: must have 1 to 255 bytes in UTF-8, this has 0"),
        ({"topic": "x" * 256}, "topic: must have 1 to 255 bytes in UTF-8, this has 256"),
        ({"topic": None}, "topic: expected str, got NoneType"),
        ({"topic": "a\0"}, "topic: the NUL character can't be stored"),
        ({"type": ""}, "type: must have 1 to 255 bytes in UTF-8, this has 0"),
        ({"type": "ä" * 128}, "type: must have 1 to 255 bytes in UTF-8, this has 256"),
        ({"type": int}, "type: expected str, got type"),
        ({"key": ""}, "key: must have 1 to 255 bytes in UTF-8, this has 0"),
        ({"key": "x" * 256}, "key: must have 1 to 255 bytes in UTF-8, this has 256"),
        ({"key": 7}, "key: expected str, got int"),
        ({"key": uuid.UUID(int=1)}, "key: expected str, got UUID"),
        ({"outbox": ""}, "outbox: must have 1 to 63 bytes in UTF-8, this has 0"),
        ({"outbox": "x" * 64}, "outbox: must have 1 to 63 bytes in UTF-8, this has 64"),
        ({"outbox": None}, "outbox: expected str, got NoneType"),
        ({"content_type": ""}, "content_type: must have 1 to 255 bytes in UTF-8, this has 0"),
        ({"content_type": "x" * 256}, "content_type: must have 1 to 255 bytes in UTF-8, this has 256"),
        ({"headers": {"a": 0.5}}, "headers['a']: expected str, int or bool, got float"),
        ({"headers": {"outbox-type": "x"}}, "headers: 'outbox-type' belongs to the relay"),
        ({"idempotency_key": "k" * 129}, "idempotency_key: expected a str of 1 to 128 ASCII letters"),
        ({"idempotency_key": "with space"}, "idempotency_key: expected a str of 1 to 128 ASCII letters"),
        ({"idempotency_key": ""}, "idempotency_key: expected a str of 1 to 128 ASCII letters"),
        ({"idempotency_key": uuid.UUID(int=1)}, "idempotency_key: expected a str of 1 to 128 ASCII letters"),
        ({"payload": math.nan}, "payload: can't be written as JSON: "),
        ({"payload": {1, 2}}, "payload: can't be written as JSON: set is none of dict, list"),
        ({"payload": "\ud800"}, "payload: holds U+D800"),
        ({"payload": "\ud800", "content_type": "text/plain"}, "payload: holds U+D800"),
        ({"available_at": dt.datetime(2040, 1, 1)}, "available_at: 2040-01-01T00:00:00 has no time zone"),  # noqa: DTZ001
        ({"available_at": "tomorrow"}, "available_at: expected a datetime, got str"),
        ({"available_at": FUTURE, "delay": 1}, "delay: give either delay or available_at, not both"),
        ({"delay": -1}, "delay: can't be negative, got -1"),
        ({"delay": dt.timedelta(microseconds=-1)}, "delay: can't be negative"),
        ({"delay": math.nan}, "delay: expected seconds or a timedelta, got nan"),
        ({"delay": math.inf}, "delay: expected seconds or a timedelta, got inf"),
        ({"delay": 1e12}, "delay: expected seconds or a timedelta, got 1000000000000.0"),
        ({"delay": "5"}, "delay: expected seconds or a timedelta, got '5'"),
        ({"delay": decimal.Decimal(5)}, "delay: expected seconds or a timedelta, got Decimal('5')"),
    ],
)
def test_a_wrong_value_is_refused_at_construction_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        make(**fields)
    assert str(caught.value).startswith(message)


@given(
    st.integers(0, 10**9) | st.floats(1e-5, 10**9) | st.timedeltas(dt.timedelta(microseconds=1), dt.timedelta(10**4))
)
def test_a_delay_counts_from_now(delay: float | dt.timedelta) -> None:
    span = delay if isinstance(delay, dt.timedelta) else dt.timedelta(seconds=delay)
    before = dt.datetime.now(dt.UTC)
    event = make(delay=delay)
    if not span:
        assert event.available_at is None
        return
    assert event.available_at is not None
    assert before + span <= event.available_at <= dt.datetime.now(dt.UTC) + span


@pytest.mark.parametrize("delay", [None, 0, 0.0, dt.timedelta(0)])
def test_no_delay_leaves_the_event_fresh(delay: Any) -> None:
    """A fresh row (available_at NULL) is the cheap case: nothing has to wait for its time and be put in place."""
    assert make(delay=delay).available_at is None


# Looks and copies


def test_the_repr_says_what_it_is_and_leaves_the_payload_out() -> None:
    event = make(key="7", idempotency_key="k1", payload={"password": "secret"})
    assert repr(event) == "OutboxEvent(topic='orders', type='OrderPlaced', key='7', idempotency_key='k1')"


def test_the_repr_of_a_half_made_event_is_no_trap() -> None:
    assert repr(OutboxEvent.__new__(OutboxEvent)).startswith("OutboxEvent(topic=None")


def test_the_class_explains_itself() -> None:
    for field in ("topic", "payload", "idempotency_key", "delay"):
        assert f"{field}: " in (OutboxEvent.__doc__ or "")


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda event: pickle.loads(pickle.dumps(event))])
def test_a_new_event_can_be_duplicated(duplicate: Any) -> None:
    event = make(payload={"a": [1]}, headers={"b": 2}, key="k")
    other = duplicate(event)
    names = [attribute.key for attribute in sa.inspect(OutboxEvent).column_attrs if attribute.key != "id"]
    assert [getattr(other, name) for name in names] == [getattr(event, name) for name in names]
    assert other.payload is not event.payload
    assert sa.inspect(other) is not sa.inspect(event)


# Imports

FORBIDDEN = [
    "relays",
    "boto3",
    "botocore",
    "pika",
    "alembic",
    "typer",
    "rich",
    "pydantic",
    "pydantic_settings",
    "psycopg",
]


def test_adding_events_needs_sqlalchemy_and_nothing_else() -> None:
    program = f"""
import sys
sys.modules.update(dict.fromkeys({FORBIDDEN!r}))  # importing any of them is now an ImportError
import outbox
print(outbox.OutboxEvent(topic="t", type="T", payload={{"a": 1}}).topic)
"""
    where = Path(outbox.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=where, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("t\n", "")


# Other tables


class HostBase(DeclarativeBase):
    metadata = sa.MetaData(
        naming_convention={
            "ix": "host_ix_%(constraint_name)s",
            "uq": "host_uq_%(table_name)s",
            "ck": "host_ck_%(constraint_name)s",
            "fk": "host_fk_%(table_name)s",
            "pk": "host_pk_%(table_name)s",
        }
    )


class HostModel(HostBase):
    __tablename__ = "host_model"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_a_host_may_have_the_tables_in_its_own_metadata() -> None:
    host_event = make_event_class(HostBase.metadata, prefix="mine_")
    assert issubclass(host_event, EventBase)
    assert host_event.__table__.metadata is HostBase.metadata
    mine = {"mine_event", "mine_lane", "mine_pause", "mine_dead_letter"}
    assert set(HostBase.metadata.tables) >= {"host_model", *mine}
    assert host_event.__doc__ == OutboxEvent.__doc__


def test_the_schema_of_a_hosts_metadata_is_that_of_the_tables() -> None:
    metadata = sa.MetaData(schema="app")
    assert make_event_class(metadata).__table__.schema == "app"
    assert make_event_class(metadata, schema="events").__table__.schema == "events"
    assert set(metadata.tables) >= {"app.outbox_event", "app.outbox_lane", "events.outbox_event", "events.outbox_lane"}


def test_two_event_classes_in_one_process_know_nothing_of_each_other() -> None:
    first, second = make_event_class(prefix="first_"), make_event_class(schema="two", prefix="second_")
    assert [table.fullname for table in (first.__table__, second.__table__)] == ["first_event", "two.second_event"]
    assert first.__table__.metadata is not second.__table__.metadata
    event = first(topic="t", type="T")
    assert isinstance(event, EventBase)
    assert not isinstance(event, second | OutboxEvent)


@pytest.mark.parametrize(
    ("names", "setting"),
    [({"schema": "No"}, "schema"), ({"prefix": 'x"; --'}, "prefix"), ({"prefix": "x" * 33}, "prefix")],
)
def test_names_that_would_need_quoting_are_refused(names: dict[str, str], setting: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{setting}: "):
        make_event_class(**names)  # type: ignore[arg-type]  # one dict for both


# Column types


def bind(column: sa.Column[Any], value: object) -> object:
    process = column.type.dialect_impl(postgresql.dialect()).bind_processor(postgresql.dialect())
    return process(value) if process else value


@pytest.mark.parametrize("name", ["topic", "type", "outbox", "content_type", "idempotency_key"])
def test_a_column_that_is_not_null_refuses_none_by_name(name: str) -> None:
    with pytest.raises(InvalidEvent, match=f"^{name}: expected "):
        bind(OutboxEvent.__table__.c[name], None)


@pytest.mark.parametrize("name", ["key", "headers", "available_at"])
def test_a_column_that_may_be_null_takes_none(name: str) -> None:
    assert bind(OutboxEvent.__table__.c[name], None) is None


def test_our_columns_keep_statements_cacheable() -> None:
    event = OutboxEvent.__table__
    assert sa.select(*event.c).where(event.c.topic == "x")._generate_cache_key() is not None


def test_a_values_list_is_gone_through_once_and_not_once_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a look at all rows for each row a list of 1,000 would cost a million of them."""
    looks: list[object] = []

    def counting(content_type: object) -> bool:
        looks.append(content_type)
        return False

    class Context:
        def __init__(self, statement: sa.Insert) -> None:
            self.compiled = statement.compile(dialect=postgresql.dialect())
            self.current_parameters = dict(self.compiled.params)

    rows = [{"topic": "t", "type": "T", "payload": "x", "content_type": "text/plain"} for _ in range(50)]
    context = Context(sa.insert(OutboxEvent.__table__).values(rows))
    monkeypatch.setattr(codecs, "is_text", counting)
    for name in [name for name in context.current_parameters if name.startswith("attempts")]:
        context.current_parameters[name] = tables._attempts_default(context)
    assert len(looks) == 50
