"""The benchmark, in small: every event in the queue exactly once, and how fast."""

import json
from typing import Any

import psycopg
import pytest

from relays.exit_codes import ExitCode
from tests.support.cli import Result, run_cli

TRIES = 5
"""A machine that has other things to do slows down a relay, which needs the processor, more than single messages, which
mostly wait. One quiet moment is enough to show what it can do."""


def bench(*arguments: str, **settings: str) -> Result:
    return run_cli("bench", "--json", *arguments, timeout=100, **settings)


def numbers_of(run: Result) -> dict[str, Any]:
    assert run.code == ExitCode.DONE, run.stderr + run.stdout
    numbers: dict[str, Any] = json.loads(run.stdout)
    assert (numbers["missing"], numbers["duplicates"], numbers["foreign"]) == (0, 0, 0)
    return numbers


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_rabbitmq_gets_every_event_once_at_over_five_times_the_rate(outbox_url: str, amqp_url: str) -> None:
    ratios = []
    while len(ratios) < TRIES and max(ratios, default=0.0) <= 5:
        run = bench("--events", "5000", OUTBOX_DATABASE_URL=outbox_url, OUTBOX_RABBITMQ_URL=amqp_url)
        ratios.append(numbers_of(run)["ratio"])
    assert max(ratios) > 5, ratios


def test_nothing_is_left_in_the_users_database(database_url: str, amqp_url: str) -> None:
    run = bench("--events", "50", "--rounds", "2", OUTBOX_DATABASE_URL=database_url, OUTBOX_RABBITMQ_URL=amqp_url)
    assert numbers_of(run)["events"] == 50
    with psycopg.connect(database_url.replace("+psycopg", "")) as connection:
        left = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'outbox%'").fetchall()
        assert left == []


def test_the_users_routes_and_names_do_not_matter(database_url: str, amqp_url: str) -> None:
    run = bench(
        *["--events", "50", "--rounds", "1", "--keys", "0"],
        OUTBOX_DATABASE_URL=database_url,
        OUTBOX_RABBITMQ_URL=amqp_url,
        OUTBOX_RABBITMQ_EXCHANGE="of-the-user",
        OUTBOX_ROUTE="*=elsewhere",
        OUTBOX_OUTBOX="billing",
        OUTBOX_SCHEMA="of_the_user",
        OUTBOX_PREFIX="mine_",
    )
    assert numbers_of(run)["rounds"] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize("kind", [[], ["--fifo"]], ids=["standard", "fifo"])
def test_sqs_gets_every_event_once(outbox_url: str, kind: list[str]) -> None:
    arguments = ["--target", "sqs", "--events", "300", "--keys", "50", "--rounds", "1", *kind]
    numbers = numbers_of(bench(*arguments, OUTBOX_DATABASE_URL=outbox_url))
    assert numbers["relay_rate"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["--target", "kafka"], ExitCode.CONFIGURATION, "bench knows rabbitmq and sqs"),
        (["--fifo"], ExitCode.CONFIGURATION, "--fifo: only SQS has FIFO queues"),
        (["--target", "sqs", "--rabbitmq-url", "amqp://localhost"], ExitCode.USAGE, "no option of --target sqs"),
        (["--rabbitmq-url", "amqp://127.0.0.1:1"], ExitCode.BROKER_UNREACHABLE, "OUTBOX_RABBITMQ_URL"),
    ],
)
def test_what_can_not_be_measured(arguments: list[str], code: ExitCode, error: str) -> None:
    run = bench(*arguments)
    assert run.code == code
    assert error in run.error


def test_a_message_that_is_missing_is_an_exit_code(database_url: str, amqp_url: str) -> None:
    lose = """
from relays.publishers import rabbitmq, Confirmed
publish = rabbitmq.RabbitMQPublisher.publish
rabbitmq.RabbitMQPublisher.publish = lambda self, some, deadline: [Confirmed(), *publish(self, some[1:], deadline)]
"""
    run = run_cli(
        *["bench", "--json", "--events", "50", "--rounds", "1"],
        before=lose,
        OUTBOX_DATABASE_URL=database_url,
        OUTBOX_RABBITMQ_URL=amqp_url,
    )
    assert run.code == 1
    assert json.loads(run.stdout)["missing"] > 0
