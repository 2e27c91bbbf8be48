"""Several relay processes on one table, started and stopped as an operator does."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import OutboxEvent
from tests.support.cli import command, environment
from tests.support.consume import first_occurrences, from_rabbitmq
from tests.support.relay import eventually

EVENTS, KEYS = 3000, 30


@contextmanager
def relays(count: int, **variables: str) -> Iterator[list[subprocess.Popen[str]]]:
    started = [
        subprocess.Popen(
            command("--target", "rabbitmq", "--log-format", "text"),
            env=environment(**variables),
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def left(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(sa.text("SELECT count(*) FROM outbox_event")).scalar_one()  # type: ignore[no-any-return]


@pytest.mark.parametrize("count", [2, 3])
def test_every_event_once_and_in_order_while_relays_come_and_go(
    count: int, engine: sa.Engine, outbox_url: str, amqp_url: str, queue: str
) -> None:
    variables = {
        "OUTBOX_DATABASE_URL": outbox_url,
        "OUTBOX_RABBITMQ_URL": amqp_url,
        "OUTBOX_ROUTE": f"t={queue}",
        "OUTBOX_BATCH_SIZE": "50",
    }
    with relays(count, **variables) as processes:
        for process in processes:
            assert process.stderr
            assert any("relaying" in line for line in process.stderr), "it did not start"
        with Session(engine) as session:
            for n in range(EVENTS):
                session.add(OutboxEvent(topic="t", type="T", payload=n, key=f"k{n % KEYS}" if n % 2 else None))
                if n % 20 == 19:
                    session.commit()
                if n == EVENTS // 2:  # scale in, in the middle of the work
                    processes[0].send_signal(signal.SIGTERM)
            session.commit()
        eventually(lambda: left(engine) == 0, timeout=60)
        for process in processes[1:]:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            _, errors = process.communicate(timeout=30)
            assert process.returncode == 0, errors
            assert "Traceback" not in errors

    received = from_rabbitmq(amqp_url, queue)
    assert sorted(message.payload for message in received) == list(range(EVENTS)), "lost, invented or sent twice"
    for payloads in first_occurrences(received).values():
        assert payloads == sorted(payloads)
