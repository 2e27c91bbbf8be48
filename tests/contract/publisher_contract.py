"""What every publisher has to do, whatever its broker.

A test module derives a class from `PublisherContract` and defines the fixture `harness`, which makes publishers for a
real broker, reads what arrived there and takes the broker away.
"""

import datetime as dt
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from outbox.errors import Unavailable
from relays.publishers import Confirmed, Deferred, Interrupted, Message, Options, Outcome, Paused, Publisher
from relays.routing import Routes

__all__ = ["Harness", "Limit", "PublisherContract", "Received", "message"]

TEN_SECONDS = 10.0


class Received(NamedTuple):
    """A message as a consumer sees it."""

    body: bytes
    idempotency_key: str
    type: str
    key: str | None
    content_type: str
    created_at: str
    headers: dict[str, Any]
    """The event's own."""


class Harness(ABC):
    """One broker with two destinations of the test's own."""

    topic: str
    """Messages of this topic arrive in the first destination."""
    other_topic: str
    """Messages of this topic arrive in the second one."""
    missing_topic: str
    """The destination of this topic does not exist."""

    @abstractmethod
    def publisher(self, options: Options) -> Publisher:
        """A publisher that is not open yet."""

    @abstractmethod
    def drain(self) -> list[Received]:
        """Take what is in both destinations, in order of arrival per destination."""

    @abstractmethod
    def cut(self) -> None:
        """Make the broker unreachable for publishers; `drain` still works."""

    @abstractmethod
    def restore(self) -> None:
        """Make the broker reachable again."""

    def header(self, value: str | int | bool) -> Any:
        """The value as this broker can carry it."""
        return value

    def received(self, count: int) -> list[Received]:
        """Wait until that many messages have arrived; returns all that have, those beyond the count too."""
        arrived = self.drain()
        deadline = time.monotonic() + TEN_SECONDS
        while len(arrived) < count and time.monotonic() < deadline:
            arrived += self.drain()
        return arrived + self.drain()


class Limit:
    """A deadline that expires after a number of looks at it, or does something else then."""

    def __init__(self, looks: float = float("inf"), then: Callable[[], None] | None = None) -> None:
        self._looks = looks
        self._then = then or self.expire
        self._expired = looks == 0
        self._lock = threading.Lock()

    def expire(self) -> None:
        self._expired = True

    def expired(self) -> bool:
        with self._lock:
            self._looks -= 1
            if self._looks == 0:
                self._then()
        return self._expired


NEVER = Limit()

numbers = itertools.count()


def message(topic: str, key: str | None = None, **values: Any) -> Message:
    """A message like no other."""
    number = next(numbers)
    fields: dict[str, Any] = {
        "idempotency_key": f"id-{number}",
        "key": key,
        "topic": topic,
        "type": "Tested",
        "payload": b'{"number":%d}' % number,
        "content_type": "application/json",
        "headers": None,
        "created_at": dt.datetime(2026, 3, 1, 12, 30, tzinfo=dt.UTC),
        "resends": 0,
    }
    return Message(**(fields | values))


def ids(messages: Sequence[Message | Received]) -> list[str]:
    return [each.idempotency_key for each in messages]


def confirmed(messages: Sequence[Message], outcomes: Sequence[Outcome]) -> list[str]:
    """The ids of the messages that were confirmed."""
    assert len(outcomes) == len(messages)
    return [each.idempotency_key for each, outcome in zip(messages, outcomes, strict=True) if outcome == Confirmed()]


class PublisherContract:
    """The tests; a subclass defines the fixture `harness`."""

    @pytest.fixture
    def publisher(self, harness: Harness) -> Any:
        publisher = harness.publisher(Options(concurrency=4))
        publisher.open()
        yield publisher
        publisher.close(5)

    def test_what_is_confirmed_has_arrived_once_and_whole(self, harness: Harness, publisher: Publisher) -> None:
        headers: dict[str, Any] = {"text": "größer", "number": -(2**63), "yes": True, "no": False, "empty": ""}
        messages = [
            message(harness.topic),
            message(harness.topic, key="a key with spaces and ümlauts"),
            message(harness.topic, headers=headers),
            message(harness.topic, headers={f"header-{number}": number for number in range(20)}),
            message(harness.topic, payload="täxt ☃ 🐘".encode(), content_type="text/plain"),
            message(harness.topic, payload=bytes(range(256)), content_type="application/octet-stream"),
            message(harness.topic, payload=b"", content_type="text/plain"),
            message(harness.topic, payload=b"\x00", content_type="text/plain"),
            message(harness.topic, payload=b"x" * 200_000),
            message(harness.other_topic, type="Another", key="k" * 255),
        ]
        assert publisher.publish(messages, NEVER) == [Confirmed()] * len(messages)
        assert sorted(harness.received(len(messages))) == sorted(
            Received(
                body=sent.payload,
                idempotency_key=sent.idempotency_key,
                type=sent.type,
                key=sent.key,
                content_type=sent.content_type,
                created_at="2026-03-01T12:30:00+00:00",
                headers={name: harness.header(value) for name, value in (sent.headers or {}).items()},
            )
            for sent in messages
        )

    def test_messages_of_a_key_arrive_in_order(self, harness: Harness, publisher: Publisher) -> None:
        messages = [message(harness.topic, key=f"key-{number % 5}") for number in range(60)]
        assert publisher.publish(messages, NEVER) == [Confirmed()] * len(messages)
        expected, arrived = defaultdict(list), defaultdict(list)
        for sent in messages:
            expected[sent.key].append(sent.idempotency_key)
        for got in harness.received(len(messages)):
            arrived[got.key].append(got.idempotency_key)
        assert arrived == expected

    def test_an_empty_batch_is_nothing(self, harness: Harness, publisher: Publisher) -> None:
        assert list(publisher.publish([], NEVER)) == []

    def test_a_missing_destination_is_paused_and_its_neighbours_are_confirmed(
        self, harness: Harness, publisher: Publisher
    ) -> None:
        topics = [harness.topic, harness.missing_topic, harness.other_topic] * 4
        messages = [message(topic) for topic in topics]
        outcomes = publisher.publish(messages, NEVER)
        assert [type(outcome) for outcome in outcomes] == [Confirmed, Paused, Confirmed] * 4
        assert all(outcome.reason for outcome in outcomes if isinstance(outcome, Paused))
        assert sorted(ids(harness.received(8))) == sorted(confirmed(messages, outcomes))

    def test_nothing_overtakes_a_message_of_its_key_that_did_not_go(
        self, harness: Harness, publisher: Publisher
    ) -> None:
        messages = [
            message(harness.topic, key="stuck"),
            message(harness.missing_topic, key="stuck"),
            message(harness.topic, key="stuck"),
            message(harness.topic, key="free"),
            message(harness.topic, key="stuck"),
        ]
        outcomes = publisher.publish(messages, NEVER)
        assert [type(outcome) for outcome in outcomes] == [Confirmed, Paused, Deferred, Confirmed, Deferred]
        assert sorted(ids(harness.received(2))) == sorted([messages[0].idempotency_key, messages[3].idempotency_key])

    def test_several_threads_publish_at_once(self, harness: Harness, publisher: Publisher) -> None:
        batches = [[message(harness.topic, key=f"{thread}-{n % 7}") for n in range(50)] for thread in range(4)]
        with ThreadPoolExecutor(len(batches)) as pool:
            results = list(pool.map(lambda batch: publisher.publish(batch, NEVER), batches))
        assert results == [[Confirmed()] * 50] * 4
        everything = [each for batch in batches for each in batch]
        assert sorted(ids(harness.received(len(everything)))) == sorted(ids(everything))

    def test_nothing_is_sent_after_the_deadline(self, harness: Harness, publisher: Publisher) -> None:
        messages = [message(harness.topic) for _ in range(30)]
        assert publisher.publish(messages, Limit(0)) == [Deferred()] * 30
        assert harness.received(0) == []

    def test_a_deadline_that_expires_midway_defers_the_rest(self, harness: Harness, publisher: Publisher) -> None:
        # One key: each message is sent, and looks at the deadline, after its predecessor is confirmed.
        messages = [message(harness.topic, key="one") for _ in range(30)]
        outcomes = publisher.publish(messages, Limit(15))
        sent = outcomes.index(Deferred())
        assert sent > 0
        assert outcomes == [Confirmed()] * sent + [Deferred()] * (30 - sent)
        assert ids(harness.received(sent)) == ids(messages[:sent])

    def test_an_unreachable_broker_is_unavailable_until_it_is_back(
        self, harness: Harness, publisher: Publisher
    ) -> None:
        messages = [message(harness.topic, key=f"key-{number % 3}") for number in range(20)]
        assert publisher.publish(messages[:1], NEVER) == [Confirmed()]
        harness.cut()
        with pytest.raises(Unavailable):
            publisher.publish(messages[1:], NEVER)
        with pytest.raises(Unavailable):
            publisher.open()
        harness.restore()
        publisher.open()
        assert publisher.publish(messages[1:], NEVER) == [Confirmed()] * 19
        assert ids(harness.received(20))[0] == messages[0].idempotency_key

    def test_a_broker_that_goes_away_midway_says_what_it_has_confirmed(
        self, harness: Harness, publisher: Publisher
    ) -> None:
        messages = [message(harness.topic, key="one") for _ in range(30)]
        with pytest.raises(Interrupted) as interrupted:
            publisher.publish(messages, Limit(15, then=harness.cut))
        outcomes = list(interrupted.value.outcomes)
        sent = outcomes.index(Deferred())
        assert sent > 0
        assert outcomes == [Confirmed()] * sent + [Deferred()] * (30 - sent)
        assert str(interrupted.value)
        arrived = ids(harness.received(sent))
        # The one in flight may have arrived without a confirmation.
        assert arrived in (ids(messages[:sent]), ids(messages[: sent + 1]))

    def test_an_unreachable_broker_is_unavailable_at_start(self, harness: Harness) -> None:
        publisher = harness.publisher(Options())
        harness.cut()
        with pytest.raises(Unavailable):
            publisher.open()
        publisher.close(5)

    def test_open_does_nothing_when_all_is_well(self, harness: Harness, publisher: Publisher) -> None:
        publisher.open()
        assert publisher.publish([message(harness.topic)], NEVER) == [Confirmed()]

    def test_after_close_nothing_is_sent(self, harness: Harness) -> None:
        publisher = harness.publisher(Options())
        publisher.open()
        publisher.close(5)
        with pytest.raises(Unavailable):
            publisher.publish([message(harness.topic)], NEVER)
        with pytest.raises(Unavailable):
            publisher.open()
        publisher.close(5)
        assert harness.received(0) == []

    def test_close_during_publish_ends_it(self, harness: Harness) -> None:
        publisher = harness.publisher(Options())
        publisher.open()
        messages = [message(harness.topic, key="one") for _ in range(500)]
        reached, closed = threading.Event(), threading.Event()

        def hold() -> None:
            reached.set()
            closed.wait(TEN_SECONDS)

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(_outcomes, publisher, messages, Limit(10, then=hold))
            assert reached.wait(TEN_SECONDS)
            publisher.close(1)
            closed.set()
            outcomes = running.result(TEN_SECONDS)
        arrived = ids(harness.received(0))
        sent = len(confirmed(messages, outcomes))
        assert 0 < sent < 500
        assert outcomes == [Confirmed()] * sent + [Deferred()] * (500 - sent)
        assert arrived in (ids(messages[:sent]), ids(messages[: sent + 1]))

    def test_close_is_bounded_while_the_broker_is_away(self, harness: Harness, publisher: Publisher) -> None:
        assert publisher.publish([message(harness.topic)], NEVER) == [Confirmed()]
        harness.cut()
        began = time.monotonic()
        publisher.close(1)
        assert time.monotonic() - began < 4

    def test_a_route_decides_the_destination(self, harness: Harness) -> None:
        plain = harness.publisher(Options())
        routed = harness.publisher(Options(routes=Routes([f"orders.*={harness.other_topic}"])))
        assert plain.destination(harness.topic) != plain.destination(harness.other_topic)
        assert routed.destination("orders.placed") == routed.destination("orders.paid")
        assert routed.destination("orders.placed") != routed.destination(harness.topic)
        routed.open()
        routed_message = message("orders.placed")
        assert routed.publish([routed_message], NEVER) == [Confirmed()]
        routed.close(5)
        assert ids(harness.received(1)) == [routed_message.idempotency_key]


def _outcomes(publisher: Publisher, messages: Sequence[Message], deadline: Limit) -> Sequence[Outcome]:
    """What is known of each message, however the publication ends."""
    try:
        return publisher.publish(messages, deadline)
    except Interrupted as error:
        return list(error.outcomes)
