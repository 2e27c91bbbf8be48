"""The memory publisher keeps the contract, and its own promises to tests."""

import pytest

from outbox.errors import Unavailable
from relays.publishers import Confirmed, Deferred, Interrupted, Message, Options, Outcome, Paused, Rejected, Retry
from relays.publishers.memory import MemoryPublisher, MemorySettings, plugin
from tests.contract.publisher_contract import NEVER, Harness, PublisherContract, Received, message

MISSING = "missing"


class MemoryHarness(Harness):
    topic = "first"
    other_topic = "second"
    missing_topic = MISSING

    def __init__(self) -> None:
        self._publishers: list[MemoryPublisher] = []
        self._drained = 0

    def publisher(self, options: Options) -> MemoryPublisher:
        publisher = MemoryPublisher(options, fail=_missing)
        self._publishers.append(publisher)
        return publisher

    def drain(self) -> list[Received]:
        arrived = [each for publisher in self._publishers for each in publisher.published]
        new, self._drained = arrived[self._drained :], len(arrived)
        return [
            Received(
                body=each.payload,
                idempotency_key=each.idempotency_key,
                type=each.type,
                key=each.key,
                content_type=each.content_type,
                created_at=each.created_at.isoformat(),
                headers=each.headers or {},
            )
            for each in new
        ]

    def cut(self) -> None:
        for publisher in self._publishers:
            publisher.outage = "cut"

    def restore(self) -> None:
        for publisher in self._publishers:
            publisher.outage = None


def _missing(each: Message) -> Outcome | None:
    return Paused("no such destination") if each.topic == MISSING else None


class TestMemoryPublisher(PublisherContract):
    @pytest.fixture
    def harness(self) -> Harness:
        return MemoryHarness()


def test_fail_decides_what_becomes_of_a_message() -> None:
    messages = [message("topic", key=key) for key in ("a", "a", "b", "c", None)]
    fates = dict(zip([each.idempotency_key for each in messages], [Retry("full"), None, Rejected("bad")], strict=False))
    publisher = MemoryPublisher(fail=lambda each: fates.get(each.idempotency_key))
    publisher.open()
    outcomes = publisher.publish(messages, NEVER)
    assert outcomes == [Retry("full"), Deferred(), Rejected("bad"), Confirmed(), Confirmed()]
    assert publisher.published == messages[3:]


def test_fail_may_interrupt_the_batch() -> None:
    messages = [message("topic") for _ in range(3)]

    def fail(each: Message) -> Outcome | None:
        if each is messages[1]:
            raise Unavailable("gone")
        return None

    publisher = MemoryPublisher(fail=fail)
    publisher.open()
    with pytest.raises(Interrupted, match="gone") as interrupted:
        publisher.publish(messages, NEVER)
    assert interrupted.value.outcomes == [Confirmed(), Deferred(), Deferred()]


def test_the_plugin_makes_one() -> None:
    publisher = plugin.make(MemorySettings(), Options())
    assert publisher.destination("topic") == "topic"
