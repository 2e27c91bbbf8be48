"""The command line: what it takes, and what each mistake says: one line, the setting to change, an exit code."""

import json
import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import (
    BrokerRefused,
    ConfigurationError,
    DatabaseError,
    DatabaseRefused,
    DatabaseUnreachable,
    InvalidEvent,
    MissingExtra,
    OutboxEvent,
    PublisherError,
    SchemaError,
    Unavailable,
)
from outbox.database import parse_url
from relays.exit_codes import ExitCode, UsageError, exit_code
from relays.settings import RelaySettings
from relays.sources import settings_of
from relays.wiring import known_targets
from tests.support.cli import command, environment, run_cli

SECRET = "s3cr3t"
NOWHERE = f"postgresql://app:{SECRET}@127.0.0.1:1/shop"

WITHOUT_PACKAGES = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("boto3", "botocore", "pika"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def test_help_names_every_setting_its_variable_and_every_exit_code() -> None:
    result = run_cli("--help", COLUMNS="200")
    assert result.code == 0
    for setting in settings_of(RelaySettings):
        assert f"{setting.flag} " in result.stdout
        assert re.search(rf"\[{setting.env}[;\]]", result.stdout)
    for flag in ("--rabbitmq-url", "--rabbitmq-exchange", "--sqs-queue", "--drain", "--config", "--debug", "--version"):
        assert f"{flag} " in result.stdout
    for code in ExitCode:
        assert re.search(rf"^ *{code:d}  {re.escape(code.meaning)}$", result.stdout, re.MULTILINE)
    assert "Examples:" in result.stdout


def test_version() -> None:
    assert run_cli("--version").stdout == f"outbox-relay {version('outbox-relay')}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--bogus"], ["--bogus"]),
        (["nonsense"], ["nonsense"]),
        (["--batch-size", "many"], ["--batch-size"]),
        (["--target"], ["--target"]),
        (["--target", "sqs", "migrate"], ["--target", "migrate"]),
        (["--batch-size", "5", "--take-over", "migrate"], ["--batch-size", "--take-over"]),
        (["--target", "rabbitmq", "--sqs-queue", "q"], ["--sqs-queue", "--target rabbitmq"]),
        (["--target", "sqs", "--rabbitmq-url", f"amqp://u:{SECRET}@h", "--rabbitmq-exchange", "x"], ["--rabbitmq-url"]),
        (["migrate", "--sql", "--check"], ["--sql", "--check"]),
        (["migrate", "--sql", "--to", "0"], ["--sql"]),
        (["migrate", "--to", "99"], ["--to"]),
        (["migrate", "--batch-size", "5"], ["--batch-size"]),
    ],
)
def test_wrong_usage(arguments: list[str], words: list[str]) -> None:
    result = run_cli(*arguments, OUTBOX_DATABASE_URL=NOWHERE)
    assert result.code == ExitCode.USAGE
    assert all(word in result.error for word in words), result.error
    assert SECRET not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--target (OUTBOX_TARGET)", *known_targets()]),
        (["--target", "kafka"], ["--target (OUTBOX_TARGET)", "'kafka'", *known_targets()]),
        (["--target", "kafka", "--sqs-queue", "q"], ["'kafka'"]),
        (["--target", "memory"], ["--database-url (OUTBOX_DATABASE_URL)"]),
        (["--target", "rabbitmq", "--database-url", NOWHERE], ["--rabbitmq-url (OUTBOX_RABBITMQ_URL)", "not set"]),
        (["--target", "memory", "--database-url", f"mysql://u:{SECRET}@h/d"], ["OUTBOX_DATABASE_URL"]),
        (["--target", "memory", "--database-url", NOWHERE, "--schema", "a.b"], ["schema", "a.b"]),
        (["--target", "memory", "--database-url", NOWHERE, "--route", "nowhere"], ["--route (OUTBOX_ROUTE)"]),
        (
            ["--target", "memory", "--batch-size", "0"],
            ["--batch-size (OUTBOX_BATCH_SIZE)", "greater than or equal to 1"],
        ),
        (["--config", "no-such.toml"], ["--config (OUTBOX_CONFIG)", "no-such.toml"]),
        (["migrate"], ["--database-url (OUTBOX_DATABASE_URL)"]),
    ],
)
def test_wrong_configuration(arguments: list[str], words: list[str]) -> None:
    result = run_cli(*arguments)
    assert result.code == ExitCode.CONFIGURATION
    assert all(word in result.error for word in words), result.error
    assert SECRET not in result.stderr


@pytest.mark.parametrize(("target", "package"), [("rabbitmq", "pika"), ("sqs", "boto")])
def test_a_missing_extra(target: str, package: str) -> None:
    result = run_cli("--target", target, "--database-url", NOWHERE, before=WITHOUT_PACKAGES)
    assert result.code == ExitCode.CONFIGURATION
    assert package in result.error
    assert f"pip install 'outbox-relay[{target}]'" in result.error


def test_settings_from_a_file_with_an_unknown_section(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text("target = 'memory'\n[rabitmq]\nurl = 'amqp://h'\n")
    result = run_cli(OUTBOX_CONFIG=str(config), OUTBOX_DATABASE_URL=NOWHERE)
    assert result.code == ExitCode.CONFIGURATION
    assert "[rabitmq]; did you mean 'rabbitmq'?" in result.error


def test_a_server_that_is_away_is_retried_for_the_startup_timeout() -> None:
    result = run_cli("--target", "memory", "--database-url", NOWHERE, "--startup-timeout", "1", "--log-format", "json")
    assert result.code == ExitCode.DATABASE
    assert "shop at 127.0.0.1:1 as user app (OUTBOX_DATABASE_URL): Connection refused" in result.error
    log = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    assert any("trying for 1 s" in entry["message"] and entry["level"] == "warning" for entry in log)
    assert SECRET not in result.stderr


def test_a_refusal_of_the_database_ends_the_relay_at_once(database_url: str) -> None:
    url = parse_url(database_url)
    wrong = [url.set(password=SECRET), url.set(database="no_such_database"), url.set(username="no_such_role")]
    for each in wrong:
        result = run_cli("--target", "memory", OUTBOX_DATABASE_URL=each.render_as_string(hide_password=False))
        assert result.code == ExitCode.DATABASE
        assert f"{each.database} at {each.host}:{each.port} as user {each.username}" in result.error
        assert "OUTBOX_DATABASE_URL" in result.error
        assert SECRET not in result.stderr
        assert (url.password or SECRET) not in result.stderr


def test_an_unknown_host() -> None:
    result = run_cli(
        "--target", "memory", "--startup-timeout", "0", "--database-url", "postgresql://nowhere.invalid/shop"
    )
    assert result.code == ExitCode.DATABASE
    assert "nowhere.invalid" in result.error
    assert "OUTBOX_DATABASE_URL" in result.error


def test_a_database_without_tables_names_the_command_to_run(database_url: str) -> None:
    result = run_cli("--target", "memory", "--schema", "app", "--prefix", "ob_", OUTBOX_DATABASE_URL=database_url)
    assert result.code == ExitCode.SCHEMA
    assert "outbox-relay migrate --schema app --prefix ob_" in result.error


def test_debug_shows_the_traceback_with_its_cause(database_url: str) -> None:
    url = parse_url(database_url).set(password=SECRET).render_as_string(hide_password=False)
    result = run_cli("--target", "memory", "--debug", OUTBOX_DATABASE_URL=url)
    assert result.code == ExitCode.DATABASE
    assert "Traceback" in result.stderr
    assert "psycopg.OperationalError" in result.stderr
    assert SECRET not in result.stderr


def test_a_bug_is_one_line_too() -> None:
    breakage = "import relays.wiring\nrelays.wiring.make_relay = None"
    result = run_cli("--target", "memory", before=breakage)
    assert result.code == ExitCode.INTERNAL
    assert result.error.startswith("internal: TypeError")
    assert "Traceback" in run_cli("--target", "memory", "--debug", before=breakage).stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError(), ExitCode.USAGE),
        (ConfigurationError(), ExitCode.CONFIGURATION),
        (MissingExtra(), ExitCode.CONFIGURATION),
        (SchemaError(), ExitCode.SCHEMA),
        (DatabaseError(), ExitCode.DATABASE),
        (DatabaseRefused(), ExitCode.DATABASE),
        (DatabaseUnreachable(), ExitCode.DATABASE),
        (BrokerRefused(), ExitCode.BROKER_REFUSED),
        (Unavailable(), ExitCode.BROKER_UNREACHABLE),
        (PublisherError(), ExitCode.BROKER_UNREACHABLE),
        (InvalidEvent(), ExitCode.INTERNAL),
        (ZeroDivisionError(), ExitCode.INTERNAL),
    ],
)
def test_exit_codes(error: Exception, code: ExitCode) -> None:
    assert exit_code(error) is code


def test_the_numbers_are_a_promise() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "DONE": 0,
        "USAGE": 2,
        "CONFIGURATION": 3,
        "SCHEMA": 4,
        "DATABASE": 5,
        "BROKER_REFUSED": 6,
        "BROKER_UNREACHABLE": 7,
        "LEFT_BEHIND": 8,
        "INTERNAL": 70,
    }


def test_a_drain_of_an_empty_outbox(outbox_url: str) -> None:
    result = run_cli("--target", "memory", "--drain", "--log-format", "text", OUTBOX_DATABASE_URL=outbox_url)
    assert (result.code, result.stdout) == (ExitCode.DONE, "")
    assert "published 0, dead letters 0" in result.stderr


def test_a_drain_counts_what_could_not_be_sent(outbox_url: str, engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.add_all([OutboxEvent(topic="t", type="T"), OutboxEvent(topic="t", type="T", delay=3600)])
        session.commit()
        session.execute(sa.text("UPDATE outbox_event SET available_at = 'infinity', held = 'exhausted' WHERE id = 1"))
        session.commit()
    result = run_cli("--target", "memory", "--drain", OUTBOX_DATABASE_URL=outbox_url)
    assert result.code == ExitCode.LEFT_BEHIND
    assert result.error == "drained, but 1 events could not be sent: 1 scheduled, 1 parked"


def test_events_that_are_scheduled_for_later_are_no_failure_of_a_drain(outbox_url: str, engine: sa.Engine) -> None:
    with Session(engine) as session:
        session.add_all([OutboxEvent(topic="t", type="T"), OutboxEvent(topic="t", type="T", delay=3600)])
        session.commit()
    result = run_cli("--target", "memory", "--drain", "--log-format", "text", OUTBOX_DATABASE_URL=outbox_url)
    assert result.code == ExitCode.DONE
    assert "left for later: 1 scheduled" in result.stderr
    assert "published 1, dead letters 0" in result.stderr


def test_an_outbox_of_another_target_is_left_alone(outbox_url: str) -> None:
    assert run_cli("--target", "memory", "--drain", OUTBOX_DATABASE_URL=outbox_url).code == ExitCode.DONE
    arguments = ("--target", "rabbitmq", "--rabbitmq-url", "amqp://127.0.0.1:1", "--startup-timeout", "0")
    result = run_cli(*arguments, OUTBOX_DATABASE_URL=outbox_url)
    assert result.code == ExitCode.CONFIGURATION
    assert "--take-over" in result.error
    result = run_cli(*arguments, "--take-over", OUTBOX_DATABASE_URL=outbox_url)
    assert result.code == ExitCode.BROKER_UNREACHABLE, "past the outbox, on to the broker"


def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments), env=environment(**variables), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_relay_gracefully(outbox_url: str, number: signal.Signals) -> None:
    with start("--target", "memory", OUTBOX_DATABASE_URL=outbox_url) as process:
        assert process.stderr
        for line in process.stderr:
            if "relaying" in line:
                break
        process.send_signal(number)
        _, rest = process.communicate(timeout=60)
    assert process.returncode == ExitCode.DONE, rest
    assert "published 0" in rest


def test_a_second_signal_ends_the_process_at_once() -> None:
    code = """
import time
from relays.commands.run import _stopped_by_signals
with _stopped_by_signals(lambda: print("stopping", flush=True)):
    print("ready", flush=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(1)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
        assert process.stdout.read() == ""
