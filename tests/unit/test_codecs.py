"""What the values of an event become, and which of them are refused."""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import string
import uuid
from collections.abc import Callable
from typing import Any

import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outbox import InvalidEvent, codecs

NO_SURROGATES = st.characters(exclude_categories=["Cs"])
TEXT = st.text(NO_SURROGATES)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
DOCUMENTS = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=30)


class Colour(enum.Enum):
    RED = "red"
    BOTH = ("red", "blue")


class Size(enum.IntEnum):
    LARGE = 3


class Status(enum.StrEnum):
    OPEN = "open"


@dataclasses.dataclass
class Line:
    sku: str
    price: decimal.Decimal
    colour: Colour = Colour.RED


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    id: uuid.UUID
    lines: list[Line]


class Address(pydantic.BaseModel):
    city: str
    since: dt.date


class Customer(pydantic.BaseModel):
    id: uuid.UUID
    address: Address
    credit: decimal.Decimal
    status: Status = Status.OPEN


ID = uuid.UUID(int=7)
WHEN = dt.datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30)))


def customer() -> Customer:
    return Customer(id=ID, address=Address(city="Köln", since=dt.date(2020, 2, 29)), credit=decimal.Decimal("1.50"))


CUSTOMER = {"id": str(ID), "address": {"city": "Köln", "since": "2020-02-29"}, "credit": "1.50", "status": "open"}


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidEvent) as caught:
        call()
    return str(caught.value)


# Payloads


@given(DOCUMENTS)
@example({"\0": "\0"})
@example([10**4000, -(2**64), 5e-324, -0.0])
def test_what_json_can_hold_comes_back_as_it_was(document: Any) -> None:
    encoded = codecs.encode_payload(document)
    assert json.loads(encoded) == document
    assert codecs.encode_payload(json.loads(encoded)) == encoded


@pytest.mark.parametrize(
    ("payload", "document"),
    [
        ({"when": WHEN}, {"when": "2030-01-02T03:04:05.000006+05:30"}),
        ({"when": dt.datetime(2030, 1, 2)}, {"when": "2030-01-02T00:00:00"}),  # noqa: DTZ001 (a local time is data too)
        ([dt.date(2030, 1, 2), dt.time(3, 4)], ["2030-01-02", "03:04:00"]),
        (ID, str(ID)),
        ({"price": decimal.Decimal("0.10")}, {"price": "0.10"}),
        (decimal.Decimal("-1E+30"), "-1E+30"),
        ([Colour.RED, Size.LARGE, Status.OPEN], ["red", 3, "open"]),
        (Colour.BOTH, ["red", "blue"]),
        ({Status.OPEN: 1}, {"open": 1}),
        ((1, (2,)), [1, [2]]),
        (
            {7: "int", None: "None", True: "bool", 0.5: "float"},
            {"7": "int", "null": "None", "true": "bool", "0.5": "float"},
        ),
        (Line("a", decimal.Decimal("2.5")), {"sku": "a", "price": "2.5", "colour": "red"}),
        (
            Order(ID, [Line("a", decimal.Decimal(1))]),
            {"id": str(ID), "lines": [{"sku": "a", "price": "1", "colour": "red"}]},
        ),
        (customer(), CUSTOMER),
        ({"customers": [customer()]}, {"customers": [CUSTOMER]}),
        (None, None),
        ("text", "text"),
    ],
)
def test_python_values_become_json(payload: object, document: object) -> None:
    assert json.loads(codecs.encode_payload(payload)) == document


def test_a_dataclass_with_a_model_in_it_and_a_model_with_a_dataclass_in_it() -> None:
    @dataclasses.dataclass
    class Outer:
        customer: Customer

    class Basket(pydantic.BaseModel):
        line: Line

    assert json.loads(codecs.encode_payload(Outer(customer()))) == {"customer": CUSTOMER}
    basket = {"line": {"sku": "a", "price": "1", "colour": "red"}}
    assert json.loads(codecs.encode_payload(Basket(line=Line("a", decimal.Decimal(1))))) == basket


def test_json_is_compact_utf8() -> None:
    assert codecs.encode_payload({"a": ["ä", 1]}) == '{"a":["ä",1]}'.encode()


@given(st.binary())
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("content_type", [None, "text/plain", "application/json"])
def test_bytes_stay_untouched(kind: Callable[[bytes], Any], content_type: str | None, raw: bytes) -> None:
    encoded = codecs.encode_payload(kind(raw), content_type)
    assert type(encoded) is bytes
    assert encoded == raw


def test_a_memoryview_with_gaps_is_stored_as_what_it_shows() -> None:
    assert codecs.encode_payload(memoryview(b"abcdef")[::2]) == b"ace"


@given(TEXT)
@pytest.mark.parametrize("content_type", ["text/plain", "TEXT/HTML; charset=utf-8"])
def test_a_str_of_a_text_type_is_stored_as_it_is(content_type: str, text: str) -> None:
    assert codecs.encode_payload(text, content_type) == text.encode()


@pytest.mark.parametrize("content_type", [None, "application/json", "application/xml", "textual/plain"])
def test_a_str_of_any_other_type_is_a_json_string(content_type: str | None) -> None:
    assert codecs.encode_payload('say "hi"', content_type) == b'"say \\"hi\\""'


def test_only_a_str_is_text() -> None:
    assert codecs.encode_payload({"a": 1}, "text/plain") == b'{"a":1}'


@pytest.mark.parametrize(
    ("payload", "content_type"),
    [
        (b"", "application/octet-stream"),
        (bytearray(), "application/octet-stream"),
        (memoryview(b""), "application/octet-stream"),
        ("", "application/json"),
        (None, "application/json"),
        ({}, "application/json"),
    ],
)
def test_the_default_content_type_is_that_of_the_payload(payload: object, content_type: str) -> None:
    assert codecs.default_content_type(payload) == content_type


def deeply_nested(levels: int) -> list[Any]:
    document: list[Any] = []
    for _ in range(levels):
        document = [document]
    return document


def circular() -> list[Any]:
    document: list[Any] = []
    document.append(document)
    return document


class Odd:
    pass


class Raw(pydantic.BaseModel):
    data: bytes


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (math.nan, "JSON compliant"),
        ({"a": [math.inf]}, "JSON compliant"),
        ([-math.inf], "JSON compliant"),
        ({math.nan: 1}, "JSON compliant"),
        ({"price": decimal.Decimal("NaN")}, "Decimal NaN is not a number"),
        (decimal.Decimal("-Infinity"), "Decimal -Infinity is not a number"),
        ({1, 2}, "set is none of dict, list, str,"),
        ({"a": frozenset()}, "frozenset is none of"),
        ([Odd()], "Odd is none of"),
        (Odd, "type is none of"),
        (Line, "type is none of"),
        (Customer, "ModelMetaclass is none of"),
        (complex(1), "complex is none of"),
        (dt.timedelta(1), "timedelta is none of"),
        ({"a": b"bytes"}, "bytes is none of"),
        ({(1, 2): 3}, "keys must be str"),
        ({ID: 1}, "keys must be str"),
        ({Colour.RED: 1}, "keys must be str"),
        ([10**5000], "digits"),
        (deeply_nested(100_000), "recursion"),
        (circular(), "Circular reference"),
        (Raw(data=b"\xff"), "utf-8"),
        ("lone \ud800", r"U\+D800 at position"),
        ({"\udfff": 1}, r"U\+DFFF at position"),
    ],
)
def test_what_is_no_json_is_refused_with_the_reason(payload: object, reason: str) -> None:
    with pytest.raises(InvalidEvent, match=rf"^payload: .*{reason}"):
        codecs.encode_payload(payload)


def test_a_lone_surrogate_is_refused_in_text_too() -> None:
    message = refusal(lambda: codecs.encode_payload("ab\udc80", "text/plain"))
    assert message == "payload: holds U+DC80 at position 2, which UTF-8 can't encode (a lone surrogate)"


@given(st.recursive(SCALARS | st.just(math.nan), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)))
def test_a_nan_is_refused_wherever_it_is(document: Any) -> None:
    def has_nan(value: Any) -> bool:
        if isinstance(value, dict | list):
            return any(has_nan(item) for item in (value.values() if isinstance(value, dict) else value))
        return isinstance(value, float) and math.isnan(value)

    if has_nan(document):
        assert refusal(lambda: codecs.encode_payload(document)).startswith("payload: ")
    else:
        assert json.loads(codecs.encode_payload(document)) == document


# Names


@given(NAMES, st.integers(1, 60))
def test_a_name_passes_unchanged_exactly_when_its_bytes_fit(name: str, limit: int) -> None:
    if len(name.encode()) <= limit:
        assert codecs.check_text("topic", name, limit) == name
    else:
        message = refusal(lambda: codecs.check_text("topic", name, limit))
        assert message == f"topic: must have 1 to {limit} bytes in UTF-8, this has {len(name.encode())}"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "key: must have 1 to 255 bytes in UTF-8, this has 0"),
        ("ä" * 128, "key: must have 1 to 255 bytes in UTF-8, this has 256"),
        ("a\0b", "key: the NUL character can't be stored"),
        ("ä\0b", "key: the NUL character can't be stored"),
        ("a\ud800", "key: holds U+D800 at position 1, which UTF-8 can't encode (a lone surrogate)"),
        (7, "key: expected str, got int"),
        (None, "key: expected str, got NoneType"),
        (b"key", "key: expected str, got bytes"),
    ],
)
def test_a_wrong_name_is_refused_with_the_field_and_the_reason(value: object, message: str) -> None:
    assert refusal(lambda: codecs.check_text("key", value, 255)) == message


# Idempotency keys

SQS_CHARACTERS = string.ascii_letters + string.digits + string.punctuation


@given(st.text(st.sampled_from(SQS_CHARACTERS), min_size=1, max_size=128))
@example("x" * 128)
@example(SQS_CHARACTERS)
def test_what_sqs_takes_as_deduplication_id_is_an_idempotency_key(key: str) -> None:
    assert codecs.check_idempotency_key(key) == key


@given(st.text() | st.text(st.sampled_from(SQS_CHARACTERS + " \n\0é"), max_size=140) | st.none() | st.integers())
@example("x" * 129)
@example("")
@example("trailing\n")
def test_nothing_else_is(key: object) -> None:
    if isinstance(key, str) and 1 <= len(key) <= 128 and set(key) <= set(SQS_CHARACTERS):
        assert codecs.check_idempotency_key(key) == key
    else:
        assert refusal(lambda: codecs.check_idempotency_key(key)).startswith("idempotency_key: expected a str of 1 to")


def test_a_refused_idempotency_key_is_shown_in_part() -> None:
    assert len(refusal(lambda: codecs.check_idempotency_key("ü" * 100_000))) < 400


# Headers

HEADER_VALUES = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(exclude_categories=["Cs"], min_codepoint=1))
)


@given(st.dictionaries(NAMES.filter(lambda name: len(name.encode()) <= 255), HEADER_VALUES))
@example({"a": "", "b": -(2**63), "c": 2**63 - 1, "outbox": 1, "x" * 255: True})
def test_headers_pass_as_an_equal_dict_of_their_own(headers: dict[str, Any]) -> None:
    if any(name.lower().startswith(("outbox-", "idempotency-key")) for name in headers):
        return
    checked = codecs.check_headers(headers)
    assert checked == headers
    assert checked is not headers


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([("a", 1)], "headers: expected a mapping of names to str, int or bool, got list"),
        ("a=1", "headers: expected a mapping of names to str, int or bool, got str"),
        ({"": 1}, "headers, a name: must have 1 to 255 bytes in UTF-8, this has 0"),
        ({"x" * 256: 1}, "headers, a name: must have 1 to 255 bytes in UTF-8, this has 256"),
        ({1: "a"}, "headers, a name: expected str, got int"),
        ({"a\0": 1}, "headers, a name: the NUL character can't be stored"),
        ({"\ud800": 1}, "headers, a name: holds U+D800 at position 0, which UTF-8 can't encode (a lone surrogate)"),
        ({"outbox-key": 1}, "headers: 'outbox-key' belongs to the relay, as all from outbox- or idempotency-key"),
        ({"Outbox-Mine": 1}, "headers: 'Outbox-Mine' belongs to the relay, as all from outbox- or idempotency-key"),
        (
            {"IDEMPOTENCY-KEY": 1},
            "headers: 'IDEMPOTENCY-KEY' belongs to the relay, as all from outbox- or idempotency-key",
        ),
        ({"a": 1.0}, "headers['a']: expected str, int or bool, got float"),
        ({"a": None}, "headers['a']: expected str, int or bool, got NoneType"),
        ({"a": b"b"}, "headers['a']: expected str, int or bool, got bytes"),
        ({"a": ["b"]}, "headers['a']: expected str, int or bool, got list"),
        ({"a": decimal.Decimal(1)}, "headers['a']: expected str, int or bool, got Decimal"),
        ({"a": 2**63}, "headers['a']: integers must fit 64 bits, this has 64"),
        ({"a": -(2**63) - 1}, "headers['a']: integers must fit 64 bits, this has 64"),
        ({"ok": 1, "a": "\0"}, "headers['a']: the NUL character can't be stored"),
        ({"a": "\udc00"}, "headers['a']: holds U+DC00 at position 0, which UTF-8 can't encode (a lone surrogate)"),
    ],
)
def test_wrong_headers_are_refused_with_the_name_and_the_reason(headers: object, message: str) -> None:
    assert refusal(lambda: codecs.check_headers(headers)) == message


# Times


@given(st.datetimes(timezones=st.timezones() | st.just(dt.UTC)))
def test_a_time_with_its_zone_passes_unless_utc_has_no_such_year(when: dt.datetime) -> None:
    try:
        when.astimezone(dt.UTC)
    except OverflowError:
        assert "outside the years 1 to 9999" in refusal(lambda: codecs.check_available_at(when))
    else:
        assert codecs.check_available_at(when) is when


@given(st.datetimes())
def test_a_time_without_its_zone_is_refused(when: dt.datetime) -> None:
    message = refusal(lambda: codecs.check_available_at(when))
    assert message == f"available_at: {when.isoformat()} has no time zone; use datetime.now(timezone.utc)"


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ("2030-01-01T00:00:00Z", "available_at: expected a datetime, got str"),
        (dt.date(2030, 1, 1), "available_at: expected a datetime, got date"),
        (1893456000, "available_at: expected a datetime, got int"),
        (
            dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=1))),
            "available_at: 9999-12-31T23:59:59.999999-01:00 is outside the years 1 to 9999 in UTC",
        ),
    ],
)
def test_what_is_no_time_is_refused(when: object, message: str) -> None:
    assert refusal(lambda: codecs.check_available_at(when)) == message
