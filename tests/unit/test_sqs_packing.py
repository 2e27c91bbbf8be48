"""How messages become entries and calls of SendMessageBatch: nothing here needs a server."""

import base64
import datetime as dt
import hashlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relays.publishers import Message
from relays.publishers.sqs_packing import MAX_BYTES, Call, Entry, Packing, Queue, make_entry

QUEUE = Queue("orders", "https://sqs.eu-central-1.amazonaws.com/1/orders", "eu-central-1")
WIRE = ["idempotency-key", "outbox-type", "outbox-created-at", "content-type"]


def message(**values: Any) -> Message:
    fields: dict[str, Any] = {
        "idempotency_key": "id-1",
        "key": None,
        "topic": "orders",
        "type": "OrderPlaced",
        "payload": b"{}",
        "content_type": "application/json",
        "headers": None,
        "created_at": dt.datetime(2026, 3, 1, 12, 30, tzinfo=dt.UTC),
        "resends": 0,
    }
    return Message(**(fields | values))


def attributes(**values: Any) -> dict[str, Any]:
    return make_entry(0, message(**values), fifo=False).parameters["MessageAttributes"]


def overflow(**values: Any) -> dict[str, Any]:
    return json.loads(attributes(**values)["outbox-headers"]["StringValue"])


def entry(position: int, size: int) -> Entry:
    return Entry(position, {}, size, "")


def calls(packing: Packing) -> list[list[int]]:
    taken = []
    while call := packing.take():
        taken.append([each.position for each in call.entries])
    return taken


class TestBody:
    @pytest.mark.parametrize("payload", ["{}", "täxt", "\t\n\r", "\ud7ff\ue000\ufffd\U00010000\U0010ffff"])
    def test_text_that_sqs_takes_is_sent_as_it_is(self, payload: str) -> None:
        made = make_entry(7, message(payload=payload.encode()), fifo=False)
        assert made.parameters["Id"] == made.id == "7"
        assert made.parameters["MessageBody"] == payload
        assert "outbox-encoding" not in made.parameters["MessageAttributes"]
        assert made.md5 == hashlib.md5(payload.encode()).hexdigest()

    @pytest.mark.parametrize(
        "payload", [b"\xff", b"\x00", b"a\x1fb", "\ufffe".encode(), "\uffff".encode(), b"\xed\xa0\x80"]
    )
    def test_what_sqs_refuses_is_sent_as_base64(self, payload: bytes) -> None:
        made = make_entry(0, message(payload=payload), fifo=False)
        assert base64.b64decode(made.parameters["MessageBody"], validate=True) == payload
        encoding = made.parameters["MessageAttributes"]["outbox-encoding"]
        assert encoding == {"DataType": "String", "StringValue": "base64"}
        assert made.md5 == hashlib.md5(made.parameters["MessageBody"].encode()).hexdigest()

    def test_an_empty_payload_has_a_body_that_decodes_to_nothing(self) -> None:
        made = make_entry(0, message(payload=b""), fifo=False)
        assert made.parameters["MessageBody"] == "\n"
        assert base64.b64decode("\n") == b""
        assert made.parameters["MessageAttributes"]["outbox-encoding"]["StringValue"] == "base64"

    @given(st.binary() | st.text().map(lambda text: text.encode(errors="replace")))
    def test_every_payload_comes_back(self, payload: bytes) -> None:
        parameters = make_entry(0, message(payload=payload), fifo=False).parameters
        body = parameters["MessageBody"]
        assert re.fullmatch("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+", body)
        encoded = "outbox-encoding" in parameters["MessageAttributes"]
        assert (base64.b64decode(body) if encoded else body.encode()) == payload


class TestAttributes:
    def test_the_wire_names_come_first(self) -> None:
        assert attributes(key="customer 7", headers={"region": "eu", "attempt": 3, "vip": True, "gift": False}) == {
            "idempotency-key": {"DataType": "String", "StringValue": "id-1"},
            "outbox-type": {"DataType": "String", "StringValue": "OrderPlaced"},
            "outbox-key": {"DataType": "String", "StringValue": "customer 7"},
            "outbox-created-at": {"DataType": "String", "StringValue": "2026-03-01T12:30:00+00:00"},
            "content-type": {"DataType": "String", "StringValue": "application/json"},
            "region": {"DataType": "String", "StringValue": "eu"},
            "attempt": {"DataType": "Number", "StringValue": "3"},
            "vip": {"DataType": "String", "StringValue": "true"},
            "gift": {"DataType": "String", "StringValue": "false"},
        }

    def test_ten_attributes_need_no_overflow(self) -> None:
        headers = {f"h{number}": number for number in range(6)}
        assert list(attributes(headers=headers)) == WIRE + list(headers)

    def test_what_is_beyond_the_tenth_goes_into_one(self) -> None:
        headers = {f"h{number}": number for number in range(7)}
        assert list(attributes(headers=headers)) == [*WIRE, "h0", "h1", "h2", "h3", "h4", "outbox-headers"]
        assert overflow(headers=headers) == {"h5": 5, "h6": 6}

    @pytest.mark.parametrize(
        "name",
        ["", " ", "a b", "ä", ".a", "a.", "a..b", "AWS.a", "aws.a", "AmAzOn.a", "n" * 257, "a/b", "a\n", "\u212a"],
    )
    def test_a_name_that_sqs_refuses_goes_into_the_overflow(self, name: str) -> None:
        assert name not in attributes(headers={name: "x", "fine": True})
        assert overflow(headers={name: "x", "fine": True}) == {name: "x"}

    @pytest.mark.parametrize("name", ["a", "a.b", "A-b_9", "awsome", "n" * 256, "AWSTraceHeader"])
    def test_a_name_that_sqs_takes_is_an_attribute(self, name: str) -> None:
        assert attributes(headers={name: "x"})[name]["StringValue"] == "x"

    @pytest.mark.parametrize("value", ["", "\x00", "a\x1b", "\ufffe", "\ud800"])
    def test_a_value_that_sqs_refuses_goes_into_the_overflow(self, value: str) -> None:
        written = attributes(headers={"h": value})
        assert "h" not in written
        assert overflow(headers={"h": value}) == {"h": value}
        assert written["outbox-headers"]["StringValue"].isascii()

    @pytest.mark.parametrize("value", [None, 1.5, [1], {"a": 1}])
    def test_other_json_values_of_plain_sql_go_into_the_overflow(self, value: Any) -> None:
        assert overflow(headers={"h": value}) == {"h": value}

    @pytest.mark.parametrize("name", ["content-type", "idempotency-key", "outbox-encoding", "outbox-headers"])
    def test_a_header_named_like_one_of_ours_does_not_replace_it(self, name: str) -> None:
        written = attributes(headers={name: "mine"})
        assert written.get(name) != {"DataType": "String", "StringValue": "mine"}
        assert overflow(headers={name: "mine"}) == {name: "mine"}

    def test_a_wire_value_that_sqs_refuses_is_kept_in_the_overflow(self) -> None:
        assert "outbox-key" not in attributes(key="\x01")
        assert overflow(key="\x01") == {"outbox-key": "\x01"}

    @given(
        st.dictionaries(st.text(), st.text() | st.integers(-(2**63), 2**63 - 1) | st.booleans(), max_size=15),
        st.none() | st.text(min_size=1),
        st.binary(max_size=5),
    )
    def test_every_header_is_somewhere_and_nothing_breaks_the_rules(
        self, headers: dict[str, Any], key: str | None, payload: bytes
    ) -> None:
        made = make_entry(0, message(headers=headers, key=key, payload=payload), fifo=True)
        written = made.parameters["MessageAttributes"]
        assert len(written) <= 10
        for name, attribute in written.items():
            assert re.fullmatch(r"[A-Za-z0-9_.-]{1,256}", name)
            assert re.fullmatch("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+", attribute["StringValue"])
        left_out = json.loads(written["outbox-headers"]["StringValue"]) if "outbox-headers" in written else {}
        assert headers.keys() <= written.keys() | left_out.keys()
        # Nothing is in both places, but for a header with a name that is the relay's own.
        assert written.keys() & left_out.keys() <= {*WIRE, "outbox-key", "outbox-encoding", "outbox-headers"}


class TestSize:
    def test_it_counts_body_names_types_and_values_in_utf8(self) -> None:
        made = make_entry(0, message(payload="ä".encode(), headers={"n": "ü"}), fifo=False)
        names = len("".join([*WIRE, "n"]))
        types = len("String") * 5
        values = len("id-1" + "OrderPlaced" + "2026-03-01T12:30:00+00:00" + "application/json") + 2
        assert made.size == 2 + names + types + values


class TestFifoIds:
    def ids(self, **values: Any) -> tuple[str, str]:
        parameters = make_entry(0, message(**values), fifo=True).parameters
        return parameters["MessageGroupId"], parameters["MessageDeduplicationId"]

    def test_group_is_the_key_and_deduplication_id_the_idempotency_key(self) -> None:
        assert self.ids(key="customer-7") == ("customer-7", "id-1")

    def test_without_a_key_the_group_is_the_idempotency_key(self) -> None:
        assert self.ids() == ("id-1", "id-1")

    @pytest.mark.parametrize("key", ["customer 7", "ä", "k" * 129, "a\tb", "a\n", "\ud800"])
    def test_a_key_that_can_be_no_group_is_hashed(self, key: str) -> None:
        group, _ = self.ids(key=key)
        assert group == hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()

    def test_every_ascii_letter_digit_and_punctuation_can_be_one(self) -> None:
        key = "".join(chr(code) for code in range(0x21, 0x7F))
        assert self.ids(key=key)[0] == key

    def test_a_replay_has_a_deduplication_id_of_its_own(self) -> None:
        assert self.ids(resends=3)[1] == "id-1:3"
        longest = "i" * 128
        assert self.ids(idempotency_key=longest)[1] == longest
        assert self.ids(idempotency_key=longest, resends=1)[1] == hashlib.sha256(f"{longest}:1".encode()).hexdigest()

    def test_a_standard_queue_gets_neither(self) -> None:
        assert make_entry(0, message(key="k"), fifo=False).parameters.keys() == {
            "Id",
            "MessageBody",
            "MessageAttributes",
        }


class TestPacking:
    def test_ten_entries_fill_a_call(self) -> None:
        packing = Packing()
        for position in range(23):
            packing.add(QUEUE, entry(position, 1))
        assert calls(packing) == [list(range(10)), list(range(10, 20)), [20, 21, 22]]

    def test_nine_legal_messages_of_150_kb_and_a_small_one_are_split_before_sending(self) -> None:
        packing = Packing()
        for position, size in enumerate([150_000] * 9 + [10]):
            packing.add(QUEUE, entry(position, size))
        assert calls(packing) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]

    def test_the_limit_itself_fits(self) -> None:
        packing = Packing()
        for position, size in enumerate([MAX_BYTES - 1, 1, 1]):
            packing.add(QUEUE, entry(position, size))
        assert calls(packing) == [[0, 1], [2]]

    def test_the_queues_own_limit_counts(self) -> None:
        queue = Queue("small", "url", "region", limit=262_144)
        packing = Packing()
        for position in range(4):
            packing.add(queue, entry(position, 100_000))
        assert calls(packing) == [[0, 1], [2, 3]]

    def test_a_message_above_the_queues_limit_goes_alone(self) -> None:
        queue = Queue("small", "url", "region", limit=1000)
        packing = Packing()
        for position, size in enumerate([10, 2000, 10]):
            packing.add(queue, entry(position, size))
        assert calls(packing) == [[0], [1], [2]]

    def test_each_queue_has_calls_of_its_own(self) -> None:
        other = Queue("other", "url", "region")
        packing = Packing()
        for position in range(6):
            packing.add(other if position % 2 else QUEUE, entry(position, 1))
        assert calls(packing) == [[0, 2, 4], [1, 3, 5]]

    def test_a_call_that_was_taken_is_not_added_to(self) -> None:
        packing = Packing()
        packing.add(QUEUE, entry(0, 1))
        taken = packing.take()
        packing.add(QUEUE, entry(1, 1))
        assert taken == Call(QUEUE, [entry(0, 1)])
        assert calls(packing) == [[1]]

    def test_the_halves_of_a_split_call_go_first(self) -> None:
        packing = Packing()
        packing.add(QUEUE, entry(9, 1))
        packing.split(Call(QUEUE, [entry(position, 1) for position in range(5)]))
        assert calls(packing) == [[0, 1], [2, 3, 4], [9]]

    @given(st.lists(st.integers(1, MAX_BYTES)))
    def test_no_call_breaks_a_limit_and_none_is_lost(self, sizes: list[int]) -> None:
        packing = Packing()
        for position, size in enumerate(sizes):
            packing.add(QUEUE, entry(position, size))
        taken = calls(packing)
        assert [position for call in taken for position in call] == list(range(len(sizes)))
        for call in taken:
            assert len(call) <= 10
            assert sum(sizes[position] for position in call) <= MAX_BYTES
