"""The CHECKs: writers that bypass the class (SQL in a trigger, COPY, another language) meet the same rules.

Rules of the class without a CHECK, and why:
- NUL and lone surrogates in text and headers: PostgreSQL's own text and jsonb refuse them (tested here).
- A time without a zone: timestamptz has no such value; SQL writes one in the zone of its session.
- Payload that is no JSON: the table holds bytes of any content type.
- Header names above 255 bytes that have up to 255 characters: jsonpath counts characters, and such an event
  fails at the broker.
- Floats in headers: jsonb has one kind of number, and 1.0 there is the integer 1.
"""

import contextlib
import decimal
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg import errors

from outbox import InvalidEvent, codecs

BASE = {"topic": "'t'", "type": "'T'", "payload": r"'\x7b7d'"}


@pytest.fixture
def connection(kept_engine: sa.Engine) -> Iterator[sa.Connection]:
    with kept_engine.connect() as connection:
        yield connection


def insert(connection: sa.Connection, **columns: str | None) -> None:
    """Insert a row whose values are SQL; None leaves a column out."""
    values = {name: value for name, value in {**BASE, **columns}.items() if value is not None}
    statement = f"INSERT INTO outbox_event ({', '.join(values)}) VALUES ({', '.join(values.values())})"
    with connection.begin_nested():
        connection.exec_driver_sql(statement)


VIOLATIONS = {
    "topic": [{"topic": "''"}, {"topic": "repeat('x', 256)"}, {"topic": "repeat('ä', 128)"}],
    "type": [{"type": "''"}, {"type": "repeat('x', 256)"}],
    "key": [{"key": "''"}, {"key": "repeat('x', 256)"}],
    "outbox": [{"outbox": "''"}, {"outbox": "repeat('x', 64)"}, {"outbox": "repeat('ä', 32)"}],
    "content_type": [{"content_type": "''"}, {"content_type": "repeat('x', 256)"}],
    "idempotency_key": [
        {"idempotency_key": value}
        for value in ("''", "repeat('k', 129)", "'a b'", "'ä'", r"E'a\n'", r"E'\n'", r"E'a\x7f'", "'a' || chr(160)")
    ],
    "headers": [
        {"headers": f"'{value}'"}
        for value in (
            "[]",
            "1",
            '"a"',
            "null",
            '{"a": null}',
            '{"a": 1.5}',
            '{"a": []}',
            '{"a": {}}',
            '{"b": 1, "a": [1]}',
            '{"a": 9223372036854775808}',
            '{"a": -9223372036854775809}',
        )
    ],
    "header_names": [
        {"headers": """'{"": 1}'"""},
        {"headers": """'{"outbox-key": 1}'"""},
        {"headers": """'{"ok": 1, "Outbox-X": 1}'"""},
        {"headers": """'{"Idempotency-Key": "x"}'"""},
        {"headers": "jsonb_build_object(repeat('x', 256), 1)"},
        {"headers": r"""jsonb_build_object(E'\n' || repeat('x', 255), 1)"""},
    ],
    "held": [{"held": "'because'"}, {"held": "''"}],
    "parked": [{"available_at": "'infinity'"}],
    "created_at": [{"created_at": "'infinity'"}, {"created_at": "'-infinity'"}, {"created_at": "'10000-01-01'"}],
    "counters": [{"attempts": "-1"}, {"crashes": "-1"}, {"resends": "-1"}],
}
CASES = [(check, columns) for check, cases in VIOLATIONS.items() for columns in cases]


@pytest.mark.parametrize(("check", "columns"), CASES, ids=str)
def test_sql_meets_the_check(connection: sa.Connection, check: str, columns: dict[str, str]) -> None:
    with pytest.raises(sa.exc.IntegrityError) as caught:
        insert(connection, **columns)
    assert isinstance(caught.value.orig, errors.CheckViolation)
    assert caught.value.orig.diag.constraint_name == f"outbox_event_{check}_check"


def test_every_check_of_the_table_is_violated_here(connection: sa.Connection) -> None:
    names = connection.scalars(
        sa.text("SELECT conname FROM pg_constraint WHERE conrelid = 'outbox_event'::regclass AND contype = 'c'")
    )
    assert set(names) == {f"outbox_event_{check}_check" for check in VIOLATIONS}


@pytest.mark.parametrize(
    "columns",
    [
        {"topic": "repeat('x', 255)", "type": "repeat('x', 255)", "key": "repeat('x', 255)"},
        {"outbox": "repeat('x', 63)", "content_type": "repeat('x', 255)"},
        {"idempotency_key": "repeat('k', 128)"},
        {"idempotency_key": r"'!~\"'"},
        {"headers": """'{"a": 9223372036854775807, "b": -9223372036854775808, "c": true, "d": ""}'"""},
        {"headers": "jsonb_build_object(repeat('x', 255), 1)"},
        {"headers": """'{"outbox": 1, "idempotency": 1, "x-outbox-key": 1}'"""},
        {"headers": "'{}'"},
        {"available_at": "'-infinity'"},
        {"available_at": "'infinity'", "held": "'blocked'"},
        {"payload": "''"},
    ],
)
def test_the_limits_themselves_are_allowed(connection: sa.Connection, columns: dict[str, str]) -> None:
    insert(connection, **columns)


@pytest.mark.parametrize(
    "column", ["topic", "type", "payload", "outbox", "idempotency_key", "content_type", "created_at", "attempts"]
)
def test_null_is_refused(connection: sa.Connection, column: str) -> None:
    with pytest.raises(sa.exc.IntegrityError) as caught:
        insert(connection, **{column: "NULL"})
    assert isinstance(caught.value.orig, errors.NotNullViolation)


@pytest.mark.parametrize("column", ["topic", "type", "payload"])
def test_what_has_no_default_must_be_given(connection: sa.Connection, column: str) -> None:
    with pytest.raises(sa.exc.IntegrityError, match=column):
        insert(connection, **{column: None})


@pytest.mark.parametrize("column", ["id", "lane"])
def test_what_the_database_computes_is_not_to_be_given(connection: sa.Connection, column: str) -> None:
    with pytest.raises(sa.exc.ProgrammingError) as caught:
        insert(connection, **{column: "1"})
    assert isinstance(caught.value.orig, errors.GeneratedAlways)


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"topic": r"E'a\000'"}, errors.CharacterNotInRepertoire),
        ({"topic": r"U&'\D800'"}, errors.SyntaxError),
        ({"key": r"E'\xed\xa0\x80'"}, errors.CharacterNotInRepertoire),
        ({"headers": r"""'{"a": "\u0000"}'"""}, errors.UntranslatableCharacter),
        ({"headers": r"""'{"a": "\ud800"}'"""}, errors.InvalidTextRepresentation),
    ],
)
def test_the_types_themselves_refuse_nul_and_surrogates(
    connection: sa.Connection, columns: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(sa.exc.DBAPIError) as caught:
        insert(connection, **columns)
    assert isinstance(caught.value.orig, error)


def test_sql_alone_makes_a_complete_event(connection: sa.Connection) -> None:
    insert(connection)
    insert(connection)
    rows = connection.execute(
        sa.text("SELECT outbox, content_type, key, headers, available_at, attempts FROM outbox_event")
    ).all()
    assert [tuple(row) for row in rows] == [("default", "application/json", None, None, None, 0)] * 2
    keys = connection.scalars(sa.text("SELECT idempotency_key FROM outbox_event")).all()
    assert len(set(keys)) == 2
    assert all(codecs.check_idempotency_key(key) for key in keys)


def test_copy_meets_the_checks_too(connection: sa.Connection) -> None:
    driver = connection.connection.driver_connection
    assert driver is not None
    statement = "COPY outbox_event (topic, type, payload) FROM STDIN"
    with driver.cursor() as cursor, pytest.raises(errors.CheckViolation), cursor.copy(statement) as copy:
        copy.write_row(("", "T", b"{}"))


# The class and the CHECKs agree

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=70)
NAMES = (
    ANY_TEXT
    | st.sampled_from(["outbox-", "OUTBOX-x", "Idempotency-Key", "idempotency-", "x" * 255, "x" * 256, "ä" * 128])
    | st.text(st.sampled_from("k~! é"), max_size=140)
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e30, 1e30) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(ANY_TEXT, inner, max_size=2),
    max_leaves=3,
)
properties = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def passes_class(check: Any, *arguments: object) -> bool:
    try:
        check(*arguments)
    except InvalidEvent:
        return False
    return True


def passes_checks(connection: sa.Connection, **columns: str) -> bool:
    values = {**{name: sa.text(value) for name, value in BASE.items()}, **columns}
    table = sa.table("outbox_event", *(sa.column(name) for name in values))
    statement = sa.insert(table).values(values)
    with contextlib.suppress(sa.exc.IntegrityError), connection.begin_nested():
        connection.execute(statement)
        return True
    return False


@properties
@given(value=NAMES, field=st.sampled_from(sorted(codecs.LIMITS)))
def test_a_name_passes_both_or_none(connection: sa.Connection, field: str, value: str) -> None:
    expected = passes_class(codecs.check_text, field, value, codecs.LIMITS[field])
    assert passes_checks(connection, **{field: value}) is expected


@properties
@given(value=NAMES)
@example(value="a\n")
@example(value="k" * 128)
@example(value="k" * 129)
def test_an_idempotency_key_passes_both_or_none(connection: sa.Connection, value: str) -> None:
    assert passes_checks(connection, idempotency_key=value) is passes_class(codecs.check_idempotency_key, value)


@properties
@given(headers=st.dictionaries(NAMES, JSON_VALUES, max_size=3) | JSON_VALUES)
@example(headers={"a": 2**63 - 1})
@example(headers={"a": 2**63})
@example(headers={"a": 2.0**63})
@example(headers={"a": -(2.0**63)})
@example(headers={"a": 1.0})
@example(headers={"ä" * 255: 1})
def test_headers_pass_both_or_none_but_for_the_two_named_differences(connection: sa.Connection, headers: Any) -> None:
    def as_jsonb_has_it(value: object) -> object:
        exactly = decimal.Decimal(repr(value)) if isinstance(value, float) else None
        return int(exactly) if exactly is not None and exactly == int(exactly) else value

    def as_jsonpath_counts(name: str) -> str:
        return re.sub(r"[^\x00-\x7f]", "x", name) if len(name) <= 255 else name

    seen = headers
    if isinstance(headers, dict):
        seen = {as_jsonpath_counts(name): as_jsonb_has_it(value) for name, value in headers.items()}
        if len(seen) < len(headers):
            return
    literal = sa.cast(sa.literal(json.dumps(headers)), sa.dialects.postgresql.JSONB)
    assert passes_checks(connection, headers=literal) is passes_class(codecs.check_headers, seen)  # type: ignore[arg-type]  # an SQL expression
