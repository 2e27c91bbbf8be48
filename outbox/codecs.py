"""How the values of an event become what the table stores: payload encoding and the checks of each field.

The column types of `outbox.tables` call these functions at bind time, so that ORM, bulk and Core inserts get the
same treatment; the constructor of an event calls them earlier, where the traceback shows the culprit.
"""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

from outbox.errors import InvalidEvent

__all__ = [
    "LIMITS",
    "HeaderValue",
    "check_available_at",
    "check_headers",
    "check_idempotency_key",
    "check_text",
    "default_content_type",
    "encode_payload",
    "is_text",
]

HeaderValue = str | int | bool

JSON_CONTENT_TYPE = "application/json"
BINARY_CONTENT_TYPE = "application/octet-stream"

IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,128}", re.ASCII)
"""What SQS allows in MessageDeduplicationId: 1 to 128 ASCII letters, digits and punctuation, no space."""

LIMITS = {"outbox": 63, "key": 255, "topic": 255, "type": 255, "content_type": 255}
"""Of names, in bytes of UTF-8: 255 is what AMQP's short strings take, 63 is a name's length in PostgreSQL."""

RESERVED_HEADERS = ("outbox-", "idempotency-key")
"""Names the relay itself writes on the wire."""


def check_text(field: str, value: object, limit: int) -> str:
    """Return `value` if it is a str of 1 to `limit` UTF-8 bytes without NUL; raise InvalidEvent naming `field`."""
    if isinstance(value, str) and value.isascii() and 1 <= len(value) <= limit and "\0" not in value:
        return value  # nearly always: without encoding it
    if not isinstance(value, str):
        raise InvalidEvent(f"{field}: expected str, got {type(value).__name__}")
    size = len(_utf8(field, value))
    if not 1 <= size <= limit:
        raise InvalidEvent(f"{field}: must have 1 to {limit} bytes in UTF-8, this has {size}")
    if "\0" in value:
        raise InvalidEvent(f"{field}: the NUL character can't be stored")
    return value


def check_idempotency_key(value: object) -> str:
    """Return `value` if SQS would take it as a deduplication id, which is the strictest rule of all brokers."""
    if not isinstance(value, str) or not IDEMPOTENCY_KEY.fullmatch(value):
        raise InvalidEvent(
            "idempotency_key: expected a str of 1 to 128 ASCII letters, digits or punctuation (no space), "
            f"got {value!r:.200}"
        )
    return value


def check_headers(value: object) -> dict[str, HeaderValue]:
    """Return `value` as a dict if it maps names to str, int (64 bit) or bool values."""
    if not isinstance(value, Mapping):
        raise InvalidEvent(f"headers: expected a mapping of names to str, int or bool, got {type(value).__name__}")
    for name, item in value.items():
        if check_text("headers, a name", name, 255).lower().startswith(RESERVED_HEADERS):
            raise InvalidEvent(f"headers: {name!r} belongs to the relay, as all from {' or '.join(RESERVED_HEADERS)}")
        if isinstance(item, str):
            if not item.isascii() or "\0" in item:
                _check_header_text(f"headers[{name!r:.80}]", item)
        elif not isinstance(item, int):
            raise InvalidEvent(f"headers[{name!r:.80}]: expected str, int or bool, got {type(item).__name__}")
        elif not -(2**63) <= item < 2**63:
            raise InvalidEvent(f"headers[{name!r:.80}]: integers must fit 64 bits, this has {item.bit_length()}")
    return dict(value)


def check_available_at(value: object) -> dt.datetime:
    """Return `value` if it is a datetime that knows its UTC offset, within the years 1 to 9999 in UTC."""
    if not isinstance(value, dt.datetime):
        raise InvalidEvent(f"available_at: expected a datetime, got {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidEvent(f"available_at: {value.isoformat()} has no time zone; use datetime.now(timezone.utc)")
    try:
        value.astimezone(dt.UTC)
    except OverflowError as error:
        raise InvalidEvent(f"available_at: {value.isoformat()} is outside the years 1 to 9999 in UTC") from error
    return value


def is_text(content_type: object) -> bool:
    """Whether a str payload of this content type is stored as it is, and not as a JSON string."""
    return isinstance(content_type, str) and content_type.lower().startswith("text/")


def default_content_type(payload: object) -> str:
    """The content type of a payload whose writer gave none."""
    return BINARY_CONTENT_TYPE if isinstance(payload, bytes | bytearray | memoryview) else JSON_CONTENT_TYPE


def encode_payload(payload: object, content_type: str | None = None) -> bytes:
    """The bytes that are stored and sent: bytes untouched, str of a text/* type in UTF-8, the rest as JSON.

    JSON takes dict, list, tuple, str, int, float, bool, None, dataclass, pydantic model, datetime, date and time
    (ISO 8601), UUID and Decimal (as strings) and Enum (its value). Keys may also be int, float, bool or None and become
    strings. NaN and infinities are refused: they are not JSON.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    if isinstance(payload, str) and is_text(content_type):
        return _utf8("payload", payload)
    try:
        text = _JSON.encode(payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEvent(f"payload: can't be written as JSON: {error}") from error
    return _utf8("payload", text)


def _check_header_text(field: str, value: str) -> None:
    if "\0" in value:
        raise InvalidEvent(f"{field}: the NUL character can't be stored")
    _utf8(field, value)


def _jsonable(value: Any) -> object:
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, decimal.Decimal):
        return _finite(value)
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump") and not isinstance(value, type):  # pydantic, without importing it
        return value.model_dump(mode="json")
    raise TypeError(
        f"{type(value).__name__} is none of dict, list, str, int, float, bool, None, dataclass, pydantic "
        "model, datetime, date, time, UUID, Decimal, Enum"
    )


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_jsonable)


def _finite(value: decimal.Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"Decimal {value} is not a number JSON can carry")
    return str(value)


def _utf8(field: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        culprit = f"U+{ord(value[error.start]):04X} at position {error.start}"
        raise InvalidEvent(f"{field}: holds {culprit}, which UTF-8 can't encode (a lone surrogate)") from error
