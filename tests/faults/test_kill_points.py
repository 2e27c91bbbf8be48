"""SIGKILL between claim, publish and settle: nothing lost, order kept, duplicates within one batch. On both brokers."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import OutboxEvent
from tests.faults.kill_points import POINTS
from tests.support.cli import environment, run_cli
from tests.support.consume import Received, first_occurrences, from_rabbitmq, from_sqs

EVENTS, KEYS, BATCH = 120, 7, 16

Consume = Callable[[], list[Received]]


def kill_at(point: str, variables: dict[str, str]) -> None:
    """Run a relay that dies at `point`; a point that is not reached fails the test."""
    reading, writing = os.pipe()
    run = subprocess.run(
        [sys.executable, "-m", "tests.faults.kill_points", point, str(writing)],
        env=environment(**variables),
        pass_fds=[writing],
        capture_output=True,
        timeout=60,
        check=False,
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read().decode() == point, f"the point was not reached: {run.stderr.decode()}"
    assert run.returncode == -9


def check(point: str, engine: sa.Engine, variables: dict[str, str], consume: Consume, *, deduplicated: bool) -> None:
    with Session(engine) as session:
        events = [
            OutboxEvent(topic="t", type="T", payload=n, key=f"k{n % KEYS}" if n % 3 else None) for n in range(EVENTS)
        ]
        session.add_all(events)
        session.commit()
    kill_at(point, variables)
    finished = run_cli("--drain", **variables)
    assert finished.code == 0, finished.stderr

    received = consume()
    assert {message.idempotency_key for message in received} == {event.idempotency_key for event in events}
    duplicates = len(received) - EVENTS
    assert duplicates <= BATCH
    if point in ("published", "settling") and not deduplicated:
        assert duplicates > 0, "nothing was in flight: the kill came too late to show anything"
    per_key = first_occurrences(received)
    assert len(per_key) == KEYS
    for payloads in per_key.values():
        assert payloads == sorted(payloads)
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM outbox_event")).scalar_one() == 0
        assert connection.execute(sa.text("SELECT count(*) FROM outbox_dead_letter")).scalar_one() == 0


def settings(url: str, target: str, **more: str) -> dict[str, str]:
    return {
        "OUTBOX_DATABASE_URL": url,
        "OUTBOX_TARGET": target,
        "OUTBOX_LEASE": "1",
        "OUTBOX_BATCH_SIZE": str(BATCH),
        "OUTBOX_CONCURRENCY": "1",
    } | more


@pytest.mark.parametrize("point", POINTS)
def test_rabbitmq(point: str, engine: sa.Engine, outbox_url: str, amqp_url: str, queue: str) -> None:
    variables = settings(outbox_url, "rabbitmq", OUTBOX_RABBITMQ_URL=amqp_url, OUTBOX_ROUTE=f"t={queue}")
    check(point, engine, variables, lambda: from_rabbitmq(amqp_url, queue), deduplicated=False)


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
@pytest.mark.parametrize("point", POINTS)
def test_sqs(point: str, fifo: bool, engine: sa.Engine, outbox_url: str, aws: Any) -> None:
    attributes = {"FifoQueue": "true"} if fifo else {}
    url = aws.create_queue(QueueName="events.fifo" if fifo else "events", Attributes=attributes)["QueueUrl"]
    variables = settings(outbox_url, "sqs", OUTBOX_SQS_QUEUE=url)
    check(point, engine, variables, lambda: from_sqs(aws, url), deduplicated=fifo)
