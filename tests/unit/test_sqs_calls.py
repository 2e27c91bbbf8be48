"""The SQS publisher and the answers that moto never gives: a stand-in server says what AWS might."""

import itertools
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from outbox.errors import BrokerRefused, ConfigurationError, Unavailable
from relays.publishers import Confirmed, Deferred, Interrupted, Message, Options, Paused, Rejected, Retry
from relays.publishers.sqs import SQSPublisher, SQSSettings
from relays.publishers.sqs_connection import region_of
from relays.routing import Routes
from tests.contract.publisher_contract import NEVER, Limit, message
from tests.support.moto import aws_environment
from tests.unit.sqs_stub import Answer, Request, StubSQS, accept, failed, refuse, successful

pytestmark = pytest.mark.sqs

HTML = Answer("<html>Welcome</html>", content_type="text/html")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubSQS]:
    for name in [name for name in os.environ if name.startswith(("AWS_", "OUTBOX_SQS_"))]:
        monkeypatch.delenv(name)
    with StubSQS() as stub:
        for name, value in aws_environment(stub.url).items():
            monkeypatch.setenv(name, value)
        yield stub


@pytest.fixture
def publisher(stub: StubSQS) -> Iterator[SQSPublisher]:
    publisher = SQSPublisher(SQSSettings(), Options())
    publisher.open()
    yield publisher
    publisher.close(5)


def many(count: int, **values: Any) -> list[Message]:
    return [message("orders", **values) for _ in range(count)]


def ids(messages: Sequence[Message]) -> list[str]:
    return [each.idempotency_key for each in messages]


def names(request: Request) -> list[str]:
    """The idempotency keys of a call."""
    return [entry["MessageAttributes"]["idempotency-key"]["StringValue"] for entry in request["Entries"]]


class TestAnswers:
    def test_under_http_200_only_what_failed_is_retried(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        def answer(request: Request) -> Answer:
            first, *others = request["Entries"]
            lists = {
                "Successful": [successful(entry) for entry in others],
                "Failed": [failed(first, "InternalError", sender_fault=False)],
            }
            return Answer(lists)

        stub.answers["SendMessageBatch"] = answer
        messages = many(5)
        outcomes = publisher.publish(messages, NEVER)
        assert outcomes == [Retry("InternalError: said the stub"), *[Confirmed()] * 4]
        assert stub.sent() == [ids(messages)]

    def test_an_entry_that_the_answer_omits_is_not_sent(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        stub.answers["SendMessageBatch"] = lambda request: Answer(
            {"Successful": [successful(entry) for entry in request["Entries"][1:]]}
        )
        outcomes = publisher.publish(many(3), NEVER)
        assert [type(outcome) for outcome in outcomes] == [Retry, Confirmed, Confirmed]

    @pytest.mark.parametrize("answer", [Answer({}), HTML], ids=["{}", "html"])
    def test_an_answer_without_lists_is_an_outage(self, stub: StubSQS, publisher: SQSPublisher, answer: Answer) -> None:
        stub.answers["SendMessageBatch"] = lambda request: answer
        messages = many(3)
        with pytest.raises(Interrupted, match="AWS_ENDPOINT_URL") as interrupted:
            publisher.publish(messages, NEVER)
        assert interrupted.value.outcomes == [Deferred()] * 3
        del stub.answers["SendMessageBatch"]
        publisher.open()
        assert publisher.publish(messages, NEVER) == [Confirmed()] * 3

    def test_throttling_blamed_on_the_sender_is_retried(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        stub.answers["SendMessageBatch"] = lambda request: Answer(
            {"Failed": [failed(entry, "ThrottlingException", sender_fault=True) for entry in request["Entries"]]}
        )
        assert publisher.publish(many(2), NEVER) == [Retry("ThrottlingException: said the stub")] * 2

    def test_another_md5_is_no_confirmation(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        stub.answers["SendMessageBatch"] = lambda request: Answer(
            {"Successful": [successful(entry) | {"MD5OfMessageBody": "0" * 32} for entry in request["Entries"]]}
        )
        assert [type(outcome) for outcome in publisher.publish(many(2), NEVER)] == [Retry, Retry]

    @pytest.mark.parametrize(
        "answer",
        [refuse("RequestThrottled", 403), refuse("KMS.ThrottlingException"), refuse("ServiceUnavailable", 503)],
        ids=lambda answer: answer.body["__type"],
    )
    def test_a_throttled_call_is_an_outage(self, stub: StubSQS, publisher: SQSPublisher, answer: Answer) -> None:
        stub.answers["SendMessageBatch"] = lambda request: answer
        with pytest.raises(Interrupted) as interrupted:
            publisher.publish(many(3), NEVER)
        assert interrupted.value.outcomes == [Deferred()] * 3

    def test_what_earlier_calls_have_delivered_stays_confirmed(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        messages = many(6, key="one")
        stub.answers["SendMessageBatch"] = lambda request: (
            refuse("InternalFailure", 500) if names(request) == ids(messages[3:4]) else accept(request)
        )
        with pytest.raises(Interrupted) as interrupted:
            publisher.publish(messages, NEVER)
        assert interrupted.value.outcomes == [Confirmed()] * 3 + [Deferred()] * 3
        assert Counter(itertools.chain(*stub.sent())) == dict(zip(ids(messages), [1, 1, 1, 3], strict=False))


class TestCulprits:
    @pytest.mark.parametrize(
        "answer",
        [
            refuse("BatchRequestTooLong"),
            refuse("InvalidMessageContents"),
            refuse("InvalidParameterValue"),
            refuse("BatchRequestTooLong", query_error="AWS.SimpleQueueService.BatchRequestTooLong"),
        ],
        ids=["too-long", "contents", "parameter", "older-spelling"],
    )
    def test_a_call_that_fails_for_a_message_is_split_down_to_it(
        self, stub: StubSQS, publisher: SQSPublisher, answer: Answer
    ) -> None:
        messages = many(10)
        culprit = messages[6].idempotency_key
        accepted: list[str] = []

        def judge(request: Request) -> Answer:
            if culprit in names(request):
                return answer
            accepted.extend(names(request))
            return accept(request)

        stub.answers["SendMessageBatch"] = judge
        outcomes = publisher.publish(messages, NEVER)
        assert [type(outcome) for outcome in outcomes] == [Confirmed] * 6 + [Rejected] + [Confirmed] * 3
        assert sorted(accepted) == sorted(set(ids(messages)) - {culprit})

    def test_nine_legal_messages_and_a_small_one_are_split_before_sending(
        self, stub: StubSQS, publisher: SQSPublisher
    ) -> None:
        messages = [*many(9, payload=b"x" * 150_000), *many(1)]
        assert publisher.publish(messages, NEVER) == [Confirmed()] * 10
        assert sorted(stub.sent(), key=len) == [ids(messages[6:]), ids(messages[:6])]

    def test_the_queues_own_limit_is_read_once_and_kept(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        stub.limit = 262_144
        messages = many(6, payload=b"x" * 100_000)
        assert publisher.publish(messages[:3], NEVER) == [Confirmed()] * 3
        assert publisher.publish(messages[3:], NEVER) == [Confirmed()] * 3
        assert sorted(len(call) for call in stub.sent()) == [1, 1, 2, 2]
        assert [operation for operation, _ in stub.requests].count("GetQueueAttributes") == 1

    def test_a_message_beyond_any_queue_is_rejected_without_a_call(
        self, stub: StubSQS, publisher: SQSPublisher
    ) -> None:
        large, behind, other = [*many(1, key="k", payload=b"x" * 1_048_577), *many(1, key="k"), *many(1)]
        outcomes = publisher.publish([large, behind, other], NEVER)
        assert outcomes[1:] == [Deferred(), Confirmed()]
        assert isinstance(outcomes[0], Rejected)
        assert "1048576" in outcomes[0].reason
        assert stub.sent() == [ids([other])]

    def test_a_message_beyond_the_queues_limit_is_judged_by_sqs_alone(
        self, stub: StubSQS, publisher: SQSPublisher
    ) -> None:
        stub.limit = 2_000
        small, large, another = [*many(1), *many(1, payload=b"x" * 3_000), *many(1)]
        stub.answers["SendMessageBatch"] = lambda request: (
            refuse("BatchRequestTooLong") if names(request) == ids([large]) else accept(request)
        )
        outcomes = publisher.publish([small, large, another], NEVER)
        assert [type(outcome) for outcome in outcomes] == [Confirmed, Rejected, Confirmed]
        assert isinstance(outcomes[1], Rejected)
        assert re.search(r"it has 31\d\d bytes, the queue's limit is 2000", outcomes[1].reason)
        assert sorted(stub.sent()) == sorted([ids([small]), ids([large]), ids([another])])


class TestQueues:
    @pytest.mark.parametrize(
        "answer",
        [
            refuse("AccessDenied", 403),
            refuse("QueueDoesNotExist", query_error="AWS.SimpleQueueService.NonExistentQueue"),
            refuse("KmsDisabled"),
            refuse("NeverHeardOf"),
        ],
        ids=lambda answer: answer.body["__type"],
    )
    def test_a_queue_at_fault_is_paused_and_the_others_go_on(
        self, stub: StubSQS, publisher: SQSPublisher, answer: Answer
    ) -> None:
        stub.answers["SendMessageBatch"] = lambda request: (
            answer if request["QueueUrl"].endswith("/closed") else accept(request)
        )
        messages = [message(topic) for topic in ("closed", "orders") * 300]
        outcomes = publisher.publish(messages, NEVER)
        assert [type(outcome) for outcome in outcomes] == [Paused, Confirmed] * 300
        # One refusal is enough: what was not under way by then is not tried.
        refusals = [request for _, request in stub.requests if request.get("QueueUrl", "").endswith("/closed")]
        assert len(refusals) <= 1 + 16

    def test_a_queue_that_was_at_fault_is_looked_up_anew(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        stub.answers["SendMessageBatch"] = lambda request: refuse("QueueDoesNotExist")
        assert [type(outcome) for outcome in publisher.publish(many(1), NEVER)] == [Paused]
        del stub.answers["SendMessageBatch"]
        stub.limit = 2_000
        assert publisher.publish(many(2, payload=b"x" * 1_000), NEVER) == [Confirmed()] * 2
        assert sorted(len(call) for call in stub.sent()) == [1, 1, 1]

    def test_a_queue_that_can_not_be_looked_up_is_paused(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        stub.answers["GetQueueUrl"] = lambda request: (
            refuse("QueueDoesNotExist") if request["QueueName"] == "gone" else stub._GetQueueUrl(request)
        )
        outcomes = publisher.publish([message("gone"), message("orders.placed"), message("orders")], NEVER)
        assert [type(outcome) for outcome in outcomes] == [Paused, Paused, Confirmed]
        assert "does not exist" in outcomes[0].reason
        assert "orders.placed" in outcomes[1].reason
        assert "--route" in outcomes[1].reason

    @pytest.mark.parametrize(
        "topic",
        ["http://[x", "http://a\u2100b", "http://", "https://a@b", "arn:aws:sqs:eu-west-1:1:q", "\t", "t" * 255],
    )
    def test_no_topic_is_too_odd_to_be_paused(self, stub: StubSQS, publisher: SQSPublisher, topic: str) -> None:
        outcomes = publisher.publish([message(topic), message("orders")], NEVER)
        assert [type(outcome) for outcome in outcomes] == [Paused, Confirmed]

    def test_a_missing_queue_may_be_the_fault_of_its_messages(self, stub: StubSQS) -> None:
        stub.answers["SendMessageBatch"] = lambda request: (
            refuse("QueueDoesNotExist") if request["QueueUrl"].endswith("/gone") else accept(request)
        )
        publisher = SQSPublisher(SQSSettings(), Options(on_unroutable="dead-letter"))
        publisher.open()
        outcomes = publisher.publish([message("gone"), message("orders.placed"), message("orders")], NEVER)
        publisher.close(5)
        assert [type(outcome) for outcome in outcomes] == [Rejected, Rejected, Confirmed]

    def test_nothing_is_sent_before_open(self, stub: StubSQS) -> None:
        with pytest.raises(Unavailable, match="not open"):
            SQSPublisher(SQSSettings(), Options()).publish(many(1), NEVER)
        assert stub.requests == []

    def test_a_throttled_look_up_is_an_outage(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        stub.answers["GetQueueAttributes"] = lambda request: refuse("RequestThrottled", 403)
        with pytest.raises(Interrupted) as interrupted:
            publisher.publish(many(2), NEVER)
        assert interrupted.value.outcomes == [Deferred()] * 2


class TestOrder:
    def test_one_message_of_a_key_is_under_way_and_no_key_waits_for_another(
        self, stub: StubSQS, publisher: SQSPublisher
    ) -> None:
        fast_done = threading.Event()
        busy: list[str] = []
        lock = threading.Lock()

        def answer(request: Request) -> Answer:
            keys = [entry["MessageAttributes"]["outbox-key"]["StringValue"] for entry in request["Entries"]]
            with lock:
                busy.extend(keys)
                assert len(busy) == len(set(busy))
            if request["QueueUrl"].endswith("/slow"):
                assert fast_done.wait(10), "the slow key has held up the fast one"
            elif names(request) == [fast[-1].idempotency_key]:
                fast_done.set()
            with lock:
                for key in keys:
                    busy.remove(key)
            return accept(request)

        slow = [message("slow", key="slow") for _ in range(3)]
        fast = [message("fast", key="fast") for _ in range(5)]
        stub.answers["SendMessageBatch"] = answer
        assert publisher.publish(slow + fast, NEVER) == [Confirmed()] * 8
        assert [call for call in stub.sent() if call[0] in ids(fast)] == [[each] for each in ids(fast)]
        assert [call for call in stub.sent() if call[0] in ids(slow)] == [[each] for each in ids(slow)]

    def test_a_wider_key_window_puts_several_of_a_key_into_a_call(self, stub: StubSQS) -> None:
        publisher = SQSPublisher(SQSSettings(), Options(key_window=10))
        publisher.open()
        messages = [message("orders.fifo", key="one") for _ in range(10)]
        assert publisher.publish(messages, NEVER) == [Confirmed()] * 10
        publisher.close(5)
        assert stub.sent() == [ids(messages)]

    def test_unkeyed_messages_go_in_full_calls(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        assert publisher.publish(many(95), NEVER) == [Confirmed()] * 95
        assert sorted(len(call) for call in stub.sent()) == [5] + [10] * 9


class TestDeadline:
    def test_it_holds_for_the_retries_of_boto3_too(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        limit = Limit()

        def answer(request: Request) -> Answer:
            limit.expire()
            return refuse("ServiceUnavailable", 503)

        stub.answers["SendMessageBatch"] = answer
        assert publisher.publish(many(3), limit) == [Deferred()] * 3
        assert len(stub.sent()) == 1

    def test_the_others_under_way_are_still_settled(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        limit = Limit()
        messages = [*many(3, key="k"), message("other", key="o")]

        def answer(request: Request) -> Answer:
            limit.expire()
            return accept(request)

        stub.answers["SendMessageBatch"] = answer
        outcomes = publisher.publish(messages, limit)
        sent = list(itertools.chain(*stub.sent()))
        assert [outcome == Confirmed() for outcome in outcomes] == [each in sent for each in ids(messages)]
        assert outcomes[1:3] == [Deferred()] * 2


class TestStopping:
    def test_after_close_boto3_does_not_retry(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        def answer(request: Request) -> Answer:
            publisher.close(0.1)
            return refuse("ServiceUnavailable", 503)

        stub.answers["SendMessageBatch"] = answer
        assert publisher.publish(many(3), NEVER) == [Deferred()] * 3
        assert len(stub.sent()) == 1

    def test_after_close_no_call_is_begun(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        def answer(request: Request) -> Answer:
            publisher.close(0.1)
            return accept(request)

        stub.answers["SendMessageBatch"] = answer
        assert publisher.publish(many(3, key="k"), NEVER) == [Confirmed(), Deferred(), Deferred()]
        assert len(stub.sent()) == 1

    def test_close_waits_for_the_calls_under_way(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        with _held(stub, "orders") as (reached, release), ThreadPoolExecutor(1) as worker:
            running = worker.submit(publisher.publish, many(1), NEVER)
            assert reached.wait(10)
            threading.Timer(0.2, release.set).start()
            publisher.close(10)
            assert release.is_set()
            assert running.result(10) == [Confirmed()]

    def test_close_waits_no_longer_than_it_may(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        with _held(stub, "orders") as (reached, release), ThreadPoolExecutor(1) as worker:
            running = worker.submit(publisher.publish, many(1), NEVER)
            assert reached.wait(10)
            publisher.close(0.1)
            assert not running.done()
            release.set()

    def test_a_connection_that_was_replaced_retries_nothing(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        def late(request: Request) -> Answer:
            assert replaced.wait(10)
            return refuse("ServiceUnavailable", 503)

        replaced, reached = threading.Event(), threading.Event()
        stub.answers["SendMessageBatch"] = lambda request: (
            reached.set() or late(request) if request["QueueUrl"].endswith("/late") else refuse("ExpiredToken", 403)
        )
        with ThreadPoolExecutor(1) as worker:
            running = worker.submit(publisher.publish, [message("late")], NEVER)
            assert reached.wait(10)
            with pytest.raises(Interrupted):
                publisher.publish(many(1), NEVER)
            publisher.open()
            replaced.set()
            assert running.result(10) == [Deferred()]
        assert len(stub.sent()) == 2

    def test_calls_that_wait_for_a_thread_are_not_made_after_close(self, stub: StubSQS) -> None:
        publisher = SQSPublisher(SQSSettings(threads=1), Options())
        publisher.open()
        with _held(stub, "first") as (reached, release), ThreadPoolExecutor(2) as workers:
            first = workers.submit(publisher.publish, [message("first")], NEVER)
            assert reached.wait(10)
            second = workers.submit(publisher.publish, [message("second")], NEVER)
            _wait_for_queued(publisher, 1)
            closing = threading.Thread(target=publisher.close, args=(5,))
            closing.start()
            assert second.result(10) == [Deferred()]
            release.set()
            assert first.result(10) == [Confirmed()]
            closing.join()
        assert len(stub.sent()) == 1

    def test_an_outage_stops_the_calls_of_its_batch_that_wait_for_a_thread(self, stub: StubSQS) -> None:
        publisher = SQSPublisher(SQSSettings(threads=2), Options())
        publisher.open()
        with _held(stub, "first") as (reached, release), ThreadPoolExecutor(3) as workers:
            first = workers.submit(publisher.publish, [message("first")], NEVER)
            assert reached.wait(10)
            with _held(stub, "second") as (second_reached, second_release):
                second = workers.submit(publisher.publish, [message("second")], NEVER)
                assert second_reached.wait(10)
                interrupted = workers.submit(publisher.publish, [message("throttled") for _ in range(20)], NEVER)
                _wait_for_queued(publisher, 2)
                second_release.set()
                assert isinstance(interrupted.exception(10), Interrupted)
            release.set()
            assert first.result(10) == second.result(10) == [Confirmed()]
        publisher.close(5)
        assert sorted(len(call) for call in stub.sent()) == [1, 1, 10]


@contextmanager
def _held(stub: StubSQS, topic: str) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Calls to the queue `topic` set the first event and are answered when the second is set."""
    reached, release = threading.Event(), threading.Event()
    before = stub.answers.get("SendMessageBatch", accept)

    def answer(request: Request) -> Answer:
        queue = request["QueueUrl"].rpartition("/")[2]
        if queue == "throttled":
            return refuse("KMS.ThrottlingException")  # which boto3 does not retry
        if queue != topic:
            return before(request)
        reached.set()
        assert release.wait(10)
        return accept(request)

    stub.answers["SendMessageBatch"] = answer
    yield reached, release
    release.set()


def _wait_for_queued(publisher: SQSPublisher, count: int) -> None:
    """Wait until that many calls wait for a thread."""
    assert publisher._pool is not None
    deadline = time.monotonic() + 10
    while publisher._pool._work_queue.qsize() < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


class TestOpen:
    def open(self, *routes: str, queue: str | None = None) -> SQSPublisher:
        publisher = SQSPublisher(SQSSettings(queue=queue), Options(routes=Routes(routes)))
        publisher.open()
        return publisher

    def test_it_looks_at_every_queue_that_is_known(self, stub: StubSQS) -> None:
        self.open("a*=alpha", "b*=alpha", f"c*={stub.url}/1/gamma", queue="beta").close(5)
        looked_at = [request["QueueUrl"] for operation, request in stub.requests if operation == "GetQueueAttributes"]
        assert sorted(url.rpartition("/")[2] for url in looked_at) == ["alpha", "beta", "gamma"]

    @pytest.mark.parametrize("query_error", [None, "AWS.SimpleQueueService.NonExistentQueue"])
    @pytest.mark.parametrize(
        ("routes", "queue", "setting"),
        [([], "gone", r"--sqs-queue \(OUTBOX_SQS_QUEUE\)"), (["a*=gone"], None, r"--route \(OUTBOX_ROUTE\)")],
    )
    def test_a_missing_queue_names_the_setting(
        self, stub: StubSQS, routes: list[str], queue: str | None, setting: str, query_error: str | None
    ) -> None:
        stub.answers["GetQueueUrl"] = lambda request: refuse("QueueDoesNotExist", query_error=query_error)
        with pytest.raises(BrokerRefused, match=f"{setting}: SQS queue 'gone': the queue does not exist: create it"):
            self.open(*routes, queue=queue)

    def test_access_denied_names_the_permissions(self, stub: StubSQS) -> None:
        stub.answers["GetQueueAttributes"] = lambda request: refuse("AccessDeniedException", 403)
        with pytest.raises(BrokerRefused, match=r"OUTBOX_SQS_QUEUE.*access is denied.*sqs:GetQueueAttributes"):
            self.open(queue="orders")

    def test_without_a_known_queue_it_may_be_forbidden_to_list_them(self, stub: StubSQS) -> None:
        stub.answers["ListQueues"] = lambda request: refuse("AccessDenied", 403)
        self.open().close(5)

    @pytest.mark.parametrize("queue", [None, "orders"])
    def test_unknown_credentials_are_refused(self, stub: StubSQS, queue: str | None) -> None:
        refused = refuse("InvalidClientTokenId", 403)
        stub.answers |= {"ListQueues": lambda request: refused, "GetQueueUrl": lambda request: refused}
        with pytest.raises(BrokerRefused, match="AWS_ACCESS_KEY_ID"):
            self.open(queue=queue)

    @pytest.mark.parametrize("queue", [None, "orders", "http://localhost/1/orders"])
    @pytest.mark.parametrize("answer", [HTML, HTML._replace(status=404)], ids=["200", "404"])
    def test_something_else_at_the_endpoint_is_refused(self, stub: StubSQS, answer: Answer, queue: str | None) -> None:
        for operation in ("ListQueues", "GetQueueUrl", "GetQueueAttributes"):
            stub.answers[operation] = lambda request: answer
        with pytest.raises(BrokerRefused, match="AWS_ENDPOINT_URL"):
            self.open(queue=queue)

    @pytest.mark.parametrize("queue", [None, "orders"])
    def test_throttling_is_only_unavailable(self, stub: StubSQS, queue: str | None) -> None:
        throttled = refuse("RequestThrottled", 403)
        stub.answers |= {"ListQueues": lambda request: throttled, "GetQueueUrl": lambda request: throttled}
        with pytest.raises(Unavailable, match="RequestThrottled"):
            self.open(queue=queue)

    @pytest.mark.parametrize(
        ("changes", "setting"),
        [
            ({"AWS_DEFAULT_REGION": None}, "AWS_REGION"),
            ({"AWS_DEFAULT_REGION": "a b"}, "AWS_REGION"),
            ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "AWS_ACCESS_KEY_ID"),
            ({"AWS_SECRET_ACCESS_KEY": None}, "AWS_SECRET_ACCESS_KEY"),
            ({"AWS_PROFILE": "nobody"}, "AWS_PROFILE"),
            ({"AWS_ENDPOINT_URL_SQS": "nonsense"}, "AWS_ENDPOINT_URL"),
        ],
        ids=["no-region", "bad-region", "no-credentials", "no-secret", "bad-profile", "bad-endpoint"],
    )
    def test_a_wrong_environment_names_what_to_set(
        self, stub: StubSQS, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], setting: str
    ) -> None:
        for name, value in changes.items():
            if value is None:
                monkeypatch.delenv(name)
            else:
                monkeypatch.setenv(name, value)
        with pytest.raises(BrokerRefused, match=setting):
            self.open()
        assert stub.requests == []

    def test_an_unreachable_endpoint_is_unavailable_and_shows_no_password(
        self, stub: StubSQS, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://user:s3cret@127.0.0.1:1")
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1") as caught:
            self.open()
        assert "s3cret" not in str(caught.value)

    def test_aws_region_counts_where_boto3_finds_none(self, stub: StubSQS, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_DEFAULT_REGION")
        monkeypatch.setenv("AWS_REGION", "sa-east-1")
        self.open().close(5)
        assert stub.signers == ["testing/sa-east-1"]

    @pytest.mark.parametrize(
        "name", ["orders.placed", "a b", "ä", "n" * 81, "n" * 76 + ".fifo", "http://user:s3cret@host/1/orders"]
    )
    @pytest.mark.parametrize("as_route", [True, False])
    def test_an_impossible_name_is_refused_before_anything_is_asked(self, name: str, as_route: bool) -> None:
        settings = SQSSettings(queue=None if as_route else name)
        routes = Routes([f"a={name}"] if as_route else [])
        with pytest.raises(ConfigurationError, match="OUTBOX_ROUTE" if as_route else "OUTBOX_SQS_QUEUE") as caught:
            SQSPublisher(settings, Options(routes=routes))
        assert "s3cret" not in str(caught.value)


class TestSessions:
    def test_after_an_outage_the_credentials_are_read_anew(
        self, stub: StubSQS, publisher: SQSPublisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stub.answers["SendMessageBatch"] = lambda request: refuse("ExpiredToken", 403)
        with pytest.raises(Interrupted, match="ExpiredToken"):
            publisher.publish(many(1), NEVER)
        del stub.answers["SendMessageBatch"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "fresh")
        publisher.open()
        assert publisher.publish(many(1), NEVER) == [Confirmed()]
        assert stub.signers[-1] == "fresh/eu-central-1"

    def test_refused_credentials_are_an_outage_once_it_has_worked(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        stub.answers["SendMessageBatch"] = lambda request: refuse("SignatureDoesNotMatch", 403)
        with pytest.raises(Interrupted, match="AWS_SECRET_ACCESS_KEY"):
            publisher.publish(many(1), NEVER)

    def test_the_region_of_a_url_is_used(self, stub: StubSQS) -> None:
        url = "https://sqs.ap-south-1.amazonaws.com/1/orders"
        publisher = SQSPublisher(SQSSettings(queue=url), Options())
        publisher.open()
        assert publisher.publish(many(1), NEVER) == [Confirmed()]
        publisher.close(5)
        assert set(stub.signers) == {"testing/ap-south-1"}

    def test_an_outage_of_another_region_pauses_its_queues_only(self, stub: StubSQS, publisher: SQSPublisher) -> None:
        far = "https://sqs.ap-south-1.amazonaws.com/1/orders"
        stub.answers["SendMessageBatch"] = lambda request: (
            refuse("ServiceUnavailable", 503) if request["QueueUrl"] == far else accept(request)
        )
        outcomes = publisher.publish([message(far), message("orders")], NEVER)
        assert outcomes == [Paused("ServiceUnavailable: said the stub"), Confirmed()]

    def test_more_threads_than_boto3s_pool_of_ten_fit(
        self, stub: StubSQS, publisher: SQSPublisher, caplog: pytest.LogCaptureFixture
    ) -> None:
        all_under_way = threading.Barrier(16)

        def answer(request: Request) -> Answer:
            all_under_way.wait(10)
            return accept(request)

        stub.answers["SendMessageBatch"] = answer
        assert publisher.publish(many(320), NEVER) == [Confirmed()] * 320
        assert "pool is full" not in caplog.text


@pytest.mark.parametrize(
    ("destination", "region"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/orders", "eu-west-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/orders", "cn-north-1"),
        ("https://sqs.us-gov-west-1.amazonaws.com/1/orders", "us-gov-west-1"),
        ("https://sqs-fips.us-east-2.amazonaws.com/1/orders", "us-east-2"),
        ("https://sqs.us-east-2.api.aws/1/orders", "us-east-2"),
        ("https://vpce-1a2b-3c4d.sqs.us-east-1.vpce.amazonaws.com/1/orders", "us-east-1"),
        ("https://eu-west-1.queue.amazonaws.com/1/orders", "eu-west-1"),
        ("https://queue.amazonaws.com/1/orders", "us-east-1"),
        ("http://localhost:5000/1/orders", None),
        ("https://sqs.example.com/1/orders", None),
        ("sqs.eu-west-1.amazonaws.com", None),
        ("orders", None),
        ("", None),
    ],
)
def test_region_of(destination: str, region: str | None) -> None:
    assert region_of(destination) == region
