"""A stand-in for SQS that answers what a test tells it to: things that moto never answers, and AWS does."""

import hashlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

__all__ = ["Answer", "StubSQS", "accept", "failed", "refuse", "successful"]

Request = dict[str, Any]


class Answer(NamedTuple):
    """One HTTP response."""

    body: dict[str, Any] | str
    status: int = 200
    query_error: str | None = None
    content_type: str = "application/x-amz-json-1.0"


class StubSQS:
    """Every queue exists and takes everything, unless `answers` says otherwise for an operation."""

    def __init__(self) -> None:
        self.limit = 1_048_576
        """MaximumMessageSize of every queue."""
        self.answers: dict[str, Callable[[Request], Answer]] = {}
        """Operation -> what it answers to a request."""
        self.requests: list[tuple[str, Request]] = []
        """Every request, in order: operation and parameters."""
        self.signers: list[str] = []
        """Access key and region of every request, as `key/region`."""

    def __enter__(self) -> Self:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                stub._handle(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class names it so)
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def sent(self) -> list[list[str]]:
        """The idempotency keys of each SendMessageBatch so far."""
        return [
            [entry["MessageAttributes"]["idempotency-key"]["StringValue"] for entry in request["Entries"]]
            for operation, request in self.requests
            if operation == "SendMessageBatch"
        ]

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        operation = handler.headers["X-Amz-Target"].removeprefix("AmazonSQS.")
        request = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        key, _, region = handler.headers["Authorization"].split("Credential=")[1].split("/")[:3]
        self.signers.append(f"{key}/{region}")
        self.requests.append((operation, request))
        answer = self.answers.get(operation, getattr(self, f"_{operation}"))(request)
        body = (answer.body if isinstance(answer.body, str) else json.dumps(answer.body)).encode()
        handler.send_response(answer.status)
        handler.send_header("Content-Type", answer.content_type)
        handler.send_header("Content-Length", str(len(body)))
        if answer.query_error:
            handler.send_header("x-amzn-query-error", f"{answer.query_error};Sender")
        handler.end_headers()
        handler.wfile.write(body)

    def _GetQueueUrl(self, request: Request) -> Answer:  # noqa: N802 (the operation's name)
        return Answer({"QueueUrl": f"{self.url}/1/{request['QueueName']}"})

    def _GetQueueAttributes(self, request: Request) -> Answer:  # noqa: N802
        return Answer({"Attributes": {"MaximumMessageSize": str(self.limit)}})

    def _ListQueues(self, request: Request) -> Answer:  # noqa: N802
        return Answer({})

    def _SendMessageBatch(self, request: Request) -> Answer:  # noqa: N802
        return accept(request)


def accept(request: Request) -> Answer:
    """Every entry of a SendMessageBatch is successful."""
    return Answer({"Successful": [successful(entry) for entry in request["Entries"]], "Failed": []})


def refuse(code: str, status: int = 400, *, query_error: str | None = None, message: str = "said the stub") -> Answer:
    """An error for a whole call."""
    return Answer({"__type": f"com.amazonaws.sqs#{code}", "message": message}, status, query_error)


def successful(entry: dict[str, Any]) -> dict[str, Any]:
    """The result of an entry that was taken."""
    md5 = hashlib.md5(entry["MessageBody"].encode()).hexdigest()
    return {"Id": entry["Id"], "MessageId": f"m-{entry['Id']}", "MD5OfMessageBody": md5}


def failed(entry: dict[str, Any], code: str, *, sender_fault: bool) -> dict[str, Any]:
    """The result of an entry that was not taken."""
    return {"Id": entry["Id"], "Code": code, "Message": "said the stub", "SenderFault": sender_fault}
