"""The boto3 side: session, clients and what is known of the queues.

Endpoint and credentials are those that boto3 finds (`AWS_*`, profiles, roles). The region of a queue that is given
as an AWS URL is the URL's; the others are in boto3's region (AWS_DEFAULT_REGION, profile), or else in AWS_REGION,
which boto3 itself does not read.

The credentials need sqs:SendMessage, sqs:GetQueueAttributes and, for queues given by name, sqs:GetQueueUrl.
"""

import os
import re
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from outbox.errors import BrokerRefused, PublisherError, Unavailable
from relays.publishers import Deadline
from relays.publishers.sqs_answers import ACCESS_DENIED, NOT_SQS, Fault, Kind, classify, printable
from relays.publishers.sqs_packing import MAX_BYTES, Call, Queue

__all__ = ["Connection", "NotSent", "is_queue", "region_of"]

URL = re.compile(r"https?://[\w.:/%~-]+", re.ASCII)
QUEUE_NAME = re.compile(r"(?=.{1,80}\Z)[A-Za-z0-9_-]+(\.fifo)?")
# sqs.REGION.amazonaws.com with its FIPS, dual-stack, VPC and legacy forms, in all partitions.
AWS_HOST = re.compile(
    r"(?:.+\.)?sqs(?:-fips)?\.(?P<region>[a-z]{2,}-[a-z-]+-\d+)\.(?:vpce\.)?(?:amazonaws|api)\..+"
    r"|(?P<legacy>[a-z]{2,}-[a-z-]+-\d+)\.queue\.amazonaws\..+"
)


class NotSent(Exception):
    """The request was held back: the deadline has expired or the connection is closed."""


class Connection:
    """Clients made with the credentials of one moment; after an outage a new connection takes its place.

    Parameters:
        region: of the queues whose region is not in their URL; None: boto3's, or AWS_REGION.
        requests: how many requests may be under way at once.
        connect_timeout, read_timeout: seconds, for one attempt; boto3 makes up to three.

    Raises BrokerRefused when region, profile or endpoint are wrong. Every method may be called by any thread.
    """

    def __init__(self, region: str | None, *, requests: int, connect_timeout: float, read_timeout: float) -> None:
        self.broken = False
        """Set when SQS as a whole has failed: time for a new connection."""
        self._closed = False
        self._config = Config(
            # Said outright, since the default mode differs between versions of botocore.
            retries={"mode": "standard", "total_max_attempts": 3},
            max_pool_connections=requests,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            tcp_keepalive=True,
        )
        self._sending = threading.local()
        self._lock = threading.Lock()  # clients are thread-safe, making them is not
        self._clients: dict[str, Any] = {}
        self._queues: dict[str, Queue] = {}
        try:
            self._session = boto3.session.Session()
            self.region = region or self._session.region_name or os.environ.get("AWS_REGION", "")
            self.endpoint = printable(self._client(self.region).meta.endpoint_url)
        except BotoCoreError as error:
            raise BrokerRefused(f"SQS: {classify(error).reason}") from error
        except ValueError as error:
            raise BrokerRefused(f"SQS: {printable(str(error))}: see AWS_ENDPOINT_URL") from error

    def verify(self, known: Mapping[str, str]) -> None:
        """See that SQS answers and has every queue of `known`, which maps destinations to the settings they are from.

        Raises BrokerRefused, naming the setting to change, or Unavailable.
        """
        if not known and (fault := self._probe()):
            raise self._error(fault, "SQS") from fault.cause
        for destination, setting in known.items():
            found = self._find(destination)
            if isinstance(found, Fault):
                raise self._error(found, f"{setting}: SQS queue {destination!r}") from found.cause

    def queue(self, destination: str) -> Queue | Fault:
        """The queue of that name or URL, looked up once; why it can't be used, if it can't."""
        found = self._queues.get(destination) or self._find(destination)
        if isinstance(found, Fault):
            return self.scoped(found, self._region(destination))
        return found

    def scoped(self, fault: Fault, region: str) -> Fault:
        """The fault as it concerns the relay: an outage of a region that is not its own is the queue's affair."""
        if fault.kind in {Kind.AWAY, Kind.REFUSED} and region != self.region:
            return fault._replace(kind=Kind.QUEUE)
        return fault

    def forget(self, destination: str) -> None:
        """Look the queue up anew when it is next needed."""
        self._queues.pop(destination, None)

    def send(self, call: Call, deadline: Deadline) -> Mapping[str, Any] | Fault:
        """SQS's answer to the call. Raises NotSent when the deadline has expired, before a retry of boto3's too."""
        self._sending.deadline = deadline
        entries = [entry.parameters for entry in call.entries]
        try:
            client = self._client(call.queue.region)
            answer: Mapping[str, Any] = client.send_message_batch(QueueUrl=call.queue.url, Entries=entries)
        except (BotoCoreError, ClientError) as error:
            return classify(error)
        return answer

    def close(self) -> None:
        """Send nothing more, and disconnect."""
        self._closed = True
        for client in list(self._clients.values()):
            client.close()

    def _client(self, region: str) -> Any:
        with self._lock:
            if region not in self._clients:
                client = self._session.client("sqs", region_name=region or None, config=self._config)
                client.meta.events.register("before-send.sqs.SendMessageBatch", self._hold_back)
                self._clients[region] = client
            return self._clients[region]

    def _hold_back(self, **_: object) -> None:
        if self._sending.deadline.expired() or self._closed:
            raise NotSent

    def _region(self, destination: str) -> str:
        return region_of(destination) or self.region

    def _find(self, destination: str) -> Queue | Fault:
        if not is_queue(destination):
            # Those of the settings are checked before: this one is a topic.
            return Fault(
                Kind.MISSING,
                f"{printable(destination)!r} is neither the URL nor a possible name of a queue: "
                "give the topic one by --route (OUTBOX_ROUTE) or --sqs-queue (OUTBOX_SQS_QUEUE)",
            )
        try:
            found = self._look_up(destination, self._region(destination))
        except (BotoCoreError, ClientError) as error:
            fault = classify(error)
            return fault._replace(kind=Kind.QUEUE) if fault.kind is Kind.MESSAGE else fault
        if isinstance(found, Queue):
            self._queues[destination] = found
        return found

    def _look_up(self, destination: str, region: str) -> Queue | Fault:
        client = self._client(region)
        url = destination
        if not URL.fullmatch(destination):
            url = client.get_queue_url(QueueName=destination).get("QueueUrl")
        answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["MaximumMessageSize"]) if url else {}
        if "Attributes" not in answer:
            return Fault(Kind.REFUSED, NOT_SQS)
        limit = int(answer["Attributes"].get("MaximumMessageSize", MAX_BYTES))
        return Queue(destination, url, region, min(limit, MAX_BYTES))

    def _probe(self) -> Fault | None:
        """Why SQS can't be used at all, if so. Being forbidden to list queues proves that the credentials are known."""
        try:
            answer = self._client(self.region).list_queues(MaxResults=1)
        except (BotoCoreError, ClientError) as error:
            fault = classify(error)
            return None if ACCESS_DENIED in fault.reason else fault
        html = "html" in answer["ResponseMetadata"]["HTTPHeaders"].get("content-type", "")
        return Fault(Kind.REFUSED, NOT_SQS) if html else None

    def _error(self, fault: Fault, what: str) -> PublisherError:
        kind = Unavailable if fault.kind is Kind.AWAY else BrokerRefused
        return kind(f"{what}: {fault.reason} [asked {self.endpoint}, region {self.region}]")


def is_queue(destination: str) -> bool:
    """Whether it is a URL, or has the form of a queue's name: 1 to 80 ASCII letters, digits, - and _, or with .fifo."""
    return bool(URL.fullmatch(destination) or QUEUE_NAME.fullmatch(destination))


def region_of(destination: str) -> str | None:
    """The region in a queue's URL, if it is one of AWS."""
    if not URL.fullmatch(destination):
        return None
    host = urlsplit(destination).hostname or ""
    if host == "queue.amazonaws.com":
        return "us-east-1"
    found = AWS_HOST.fullmatch(host)
    return (found["region"] or found["legacy"]) if found else None
