"""How a message becomes an entry of SendMessageBatch, and how entries are packed into calls. Pure: no network.

What a consumer receives:
    body: the payload as it is, when it is UTF-8 text that SQS takes: at least one character, none but U+0009, U+000A,
        U+000D, U+0020 to U+D7FF, U+E000 to U+FFFD and U+10000 to U+10FFFF. Any other payload is sent as base64 and
        the attribute `outbox-encoding` says `base64`. An empty payload is a single line feed under that attribute:
        SQS refuses an empty body, and decoders of base64 skip line feeds.
    attributes: those that all brokers carry (`wire_headers`), `content-type`, then the event's own headers: str and
        bool (`true`, `false`) as String, int as Number.
    outbox-headers: one attribute with a JSON object of the headers that can't be attributes of their own: those
        beyond the tenth attribute, empty values, and names or values that SQS refuses.

The limits are those of the SQS API reference, SendMessageBatch and MessageAttributeValue.
"""

import base64
import hashlib
import json
import re
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from outbox.codecs import HeaderValue
from relays.publishers import Message, wire_headers

__all__ = ["MAX_BYTES", "Call", "Entry", "Packing", "Queue", "make_entry"]

MAX_BYTES = 1_048_576
"""What SQS takes at most in one message and in all messages of a call together; a queue may say less."""

MAX_ENTRIES = 10
MAX_ATTRIBUTES = 10

ENCODING = "outbox-encoding"
OVERFLOW = "outbox-headers"

REFUSED_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
ATTRIBUTE_NAME = re.compile(
    r"(?!aws\.|amazon\.|\.)(?!.*\.\.)[a-z0-9_.-]{1,256}(?<!\.)", re.ASCII | re.IGNORECASE | re.DOTALL
)
FIFO_ID = re.compile(r"[!-~]{1,128}")
"""MessageGroupId and MessageDeduplicationId: ASCII letters, digits and punctuation, no space."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue and what has to be known of it to send there."""

    destination: str
    """As topics, routes and settings name it: a name or a URL."""
    url: str
    region: str
    limit: int = MAX_BYTES
    """Bytes that a message, and all messages of a call together, may have."""

    @property
    def fifo(self) -> bool:
        """SQS fixes the suffix: every FIFO queue has it and no other queue can."""
        return self.url.endswith(".fifo")


@dataclass(frozen=True, slots=True)
class Entry:
    """One message in the form SendMessageBatch takes it."""

    position: int
    """Which message of the batch it is."""
    parameters: dict[str, Any]
    size: int
    """Bytes by SQS's count: the body and the names, types and values of the attributes, in UTF-8."""
    md5: str
    """Of the body: what SQS must answer as MD5OfMessageBody."""

    @property
    def id(self) -> str:
        """Its name within a call."""
        return str(self.position)


@dataclass(slots=True)
class Call:
    """The entries of one SendMessageBatch call, all for one queue."""

    queue: Queue
    entries: list[Entry] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    def fits(self, entry: Entry) -> bool:
        """Whether one more entry keeps the call within the limits. An empty call takes any: only SQS may refuse it."""
        if not self.entries:
            return True
        return len(self.entries) < MAX_ENTRIES and self.size + entry.size <= self.queue.limit


class Packing:
    """Entries on their way into calls, in the order they came. Not thread-safe."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()
        self._filling: dict[Queue, Call] = {}

    def add(self, queue: Queue, entry: Entry) -> None:
        """Put the entry into the queue's last call, or into a new one."""
        call = self._filling.get(queue)
        if call is None or not call.fits(entry):
            call = self._filling[queue] = Call(queue)
            self._calls.append(call)
        call.entries.append(entry)

    def split(self, call: Call) -> None:
        """Take a call of at least two entries back as two, which go next."""
        middle = len(call.entries) // 2
        for half in (call.entries[middle:], call.entries[:middle]):
            self._calls.appendleft(Call(call.queue, half))

    def take(self) -> Call | None:
        """The next call to make; None when there is none."""
        if not self._calls:
            return None
        call = self._calls.popleft()
        if self._filling.get(call.queue) is call:
            del self._filling[call.queue]
        return call


def make_entry(position: int, message: Message, *, fifo: bool) -> Entry:
    """Write the message as an entry; its position in the batch becomes the Id. Never fails, whatever the message."""
    body, encoding = _body(message.payload)
    attributes = _attributes(message, encoding)
    parameters = {"Id": str(position), "MessageBody": body, "MessageAttributes": attributes}
    if fifo:
        parameters["MessageGroupId"] = _fifo_id(message.key or message.idempotency_key)
        parameters["MessageDeduplicationId"] = _deduplication_id(message)
    encoded = body.encode()
    size = len(encoded) + sum(
        len(name.encode()) + len(attribute["DataType"].encode()) + len(attribute["StringValue"].encode())
        for name, attribute in attributes.items()
    )
    return Entry(position, parameters, size, hashlib.md5(encoded, usedforsecurity=False).hexdigest())


def _body(payload: bytes) -> tuple[str, dict[str, HeaderValue]]:
    """The body, and the attribute that says how it is encoded."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        pass
    else:
        if text and not REFUSED_CHARACTER.search(text):
            return text, {}
    return base64.b64encode(payload).decode() or "\n", {ENCODING: "base64"}


def _attributes(message: Message, encoding: dict[str, HeaderValue]) -> dict[str, dict[str, str]]:
    ours = wire_headers(message._replace(headers=None)) | {"content-type": message.content_type} | encoding
    own = message.headers or {}
    names_taken = {*ours, ENCODING, OVERFLOW}
    values = ours | {name: value for name, value in own.items() if name not in names_taken}
    attributes = {name: attribute for name, value in values.items() if (attribute := _attribute(name, value))}
    left_out = {name: value for name, value in own.items() if name in names_taken}
    if len(attributes) == len(values) <= MAX_ATTRIBUTES and not left_out:
        return attributes
    attributes = dict(islice(attributes.items(), MAX_ATTRIBUTES - 1))
    left_out |= {name: value for name, value in values.items() if name not in attributes}
    attributes[OVERFLOW] = {"DataType": "String", "StringValue": json.dumps(left_out, separators=(",", ":"))}
    return attributes


def _attribute(name: str, value: HeaderValue) -> dict[str, str] | None:
    """The value of an attribute; None when SQS would refuse its name or its value."""
    if not ATTRIBUTE_NAME.fullmatch(name):
        return None
    if isinstance(value, bool):
        return {"DataType": "String", "StringValue": "true" if value else "false"}
    if isinstance(value, int):
        return {"DataType": "Number", "StringValue": str(value)}
    # Rows written by plain SQL may hold other JSON values.
    if not isinstance(value, str) or not value or REFUSED_CHARACTER.search(value):
        return None
    return {"DataType": "String", "StringValue": value}


def _deduplication_id(message: Message) -> str:
    """The idempotency key; with the number of the replay, which the queue must not take for a duplicate."""
    if message.resends:
        return _fifo_id(f"{message.idempotency_key}:{message.resends}")
    return _fifo_id(message.idempotency_key)


def _fifo_id(text: str) -> str:
    """`text` where SQS takes it as an id, else its SHA-256."""
    return text if FIFO_ID.fullmatch(text) else hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
