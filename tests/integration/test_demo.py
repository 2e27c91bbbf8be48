"""The demo: as a user meets it, with relays that break their promises, and with everything else that may go wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from relays.demo.command import run_demo
from relays.demo.processes import ChildFailed
from relays.exit_codes import ExitCode
from tests.support.broken_relay import KINDS
from tests.support.cli import command, environment, run_cli
from tests.support.rabbitmq import connect

ROOT = Path(__file__).parents[2]
KEYS = {"committed", "received_distinct", "duplicates", "lost", "invented", "order_violations", "seconds"}
ORDERS = 150

# A user's own settings, none of which may reach the demo's relays or its consumer.
OWN_SETTINGS = {
    "OUTBOX_DATABASE_URL": "postgresql://nobody@nowhere.invalid/nothing",
    "OUTBOX_ROUTE": "*=elsewhere",
    "OUTBOX_OUTBOX": "billing",
    "OUTBOX_RABBITMQ_EXCHANGE": "of-the-user",
    "OUTBOX_SQS_QUEUE": "of-the-user",
    "AWS_PROFILE": "missing",
    "AWS_ENDPOINT_URL": "http://nowhere.invalid",
    "HTTP_PROXY": "http://nowhere.invalid:1",
}


def check(stdout: str) -> None:
    numbers = json.loads(stdout)
    assert numbers.keys() >= KEYS
    assert (numbers["committed"], numbers["received_distinct"]) == (ORDERS, ORDERS)
    assert (numbers["lost"], numbers["invented"], numbers["order_violations"]) == (0, 0, 0)
    assert numbers["rolled_back"] == ORDERS // 10
    assert numbers["in_flight_at_kill"] > 0
    assert numbers["seconds"] > ORDERS / 100


@pytest.mark.sqs
@pytest.mark.slow
def test_sqs() -> None:
    run = run_cli("demo", "--orders", str(ORDERS), "--json", timeout=120, **OWN_SETTINGS)
    assert run.code == ExitCode.DONE, run.stderr
    check(run.stdout)
    assert "killed (SIGKILL) with" in run.stderr


@pytest.mark.slow
def test_rabbitmq(amqp_url: str) -> None:
    settings = OWN_SETTINGS | {"OUTBOX_RABBITMQ_URL": amqp_url}
    run = run_cli("demo", "--orders", str(ORDERS), "--target", "rabbitmq", "--json", timeout=120, **settings)
    assert run.code == ExitCode.DONE, run.stderr
    check(run.stdout)
    assert not queue_exists(amqp_url, queue_in(run.stderr))


def test_the_closing_table(amqp_url: str) -> None:
    settings = {"OUTBOX_RABBITMQ_URL": amqp_url}
    run = run_cli("demo", "--orders", "20", "--target", "rabbitmq", timeout=120, **settings)
    assert run.code == ExitCode.DONE, run.stderr
    rows = dict(re.findall(r"│ (\S[^│]*?) +│ +([\d,.]+) │", run.stdout))
    assert rows["orders committed"] == rows["distinct messages received"] == "20"
    assert rows["lost"] == rows["invented"] == rows["order violations"] == "0"
    assert rows.keys() >= {"orders rolled back", "duplicates", "events/s", "seconds"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_relay_is_found_out(
    kind: str, amqp_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTBOX_RABBITMQ_URL", amqp_url)
    monkeypatch.chdir(ROOT)  # where the relays' processes find the module
    relay = [sys.executable, "-m", "tests.support.broken_relay", kind]
    assert run_demo(orders=200, target="rabbitmq", as_json=True, relay=relay) == 1
    numbers = json.loads(capsys.readouterr().out)
    found = {"loses": "lost", "invents": "invented", "reorders": "order_violations"}[kind]
    assert numbers["committed"] == 200
    assert numbers[found] > 0
    if kind == "loses":  # not always in order: what the killed relay lost, the other one sends, late
        assert numbers["invented"] == 0
    if kind == "invents":
        assert (numbers["lost"], numbers["order_violations"]) == (0, 0)


def test_a_relay_that_ends_ends_the_demo(amqp_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_RABBITMQ_URL", amqp_url)
    relay = [sys.executable, "-c", "raise SystemExit('no relay today')"]
    with pytest.raises(ChildFailed, match=r"relay-\d \(pid \d+\) has ended with exit code 1: no relay today"):
        run_demo(orders=20, target="rabbitmq", relay=relay)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_demo_that_is_ended(number: signal.Signals, amqp_url: str, tmp_path: Path) -> None:
    demo = subprocess.Popen(
        command("demo", "--orders", "100000", "--target", "rabbitmq"),
        env=environment(OUTBOX_RABBITMQ_URL=amqp_url, TMPDIR=str(tmp_path)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stderr is not None
    said = ""
    while "killed (SIGKILL)" not in said and "two relays" not in said:
        line = demo.stderr.readline()
        assert line, f"the demo ended by itself: {said}"
        said += line
    children = [int(pid) for pid in re.findall(r"\(pid (\d+)\)", said)]
    assert len(children) == 2
    demo.send_signal(number)
    assert demo.wait(60) == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in demo.stderr.read()
    demo.stderr.close()
    eventually(lambda: not any(map(is_alive, children)), "the relays are gone")
    eventually(lambda: not list(tmp_path.iterdir()), "the directories are gone")
    eventually(lambda: not queue_exists(amqp_url, queue_in(said)), "the queue is gone")


def test_rabbitmq_without_its_setting() -> None:
    run = run_cli("demo", "--target", "rabbitmq")
    assert run.code == ExitCode.CONFIGURATION
    assert "OUTBOX_RABBITMQ_URL" in run.error


def test_a_broker_that_refuses_us_is_named_before_anything_starts() -> None:
    run = run_cli("demo", "--target", "rabbitmq", OUTBOX_RABBITMQ_URL="amqp://guest:guest@127.0.0.1:1/%2F")
    assert run.code == ExitCode.BROKER_UNREACHABLE
    assert "OUTBOX_RABBITMQ_URL" in run.error


def test_an_unknown_target() -> None:
    run = run_cli("demo", "--target", "kafka")
    assert run.code == ExitCode.CONFIGURATION
    assert run.error == "--target: the demo knows sqs and rabbitmq, not 'kafka'"


@pytest.mark.parametrize(
    ("target", "package", "extra"),
    [("sqs", "moto", "demo"), ("sqs", "boto3", "demo"), ("rabbitmq", "pika", "rabbitmq")],
)
def test_a_missing_extra(target: str, package: str, extra: str) -> None:
    hide = f"""
import importlib.util as util
find = util.find_spec
util.find_spec = lambda name, *rest: None if name == {package!r} else find(name, *rest)
"""
    run = run_cli("demo", "--target", target, before=hide, OUTBOX_RABBITMQ_URL="amqp://localhost")
    assert run.code == ExitCode.CONFIGURATION
    assert f"needs the package {package}" in run.error
    assert f"pip install 'outbox-relay[{extra}]'" in run.error


def queue_in(text: str) -> str:
    found = re.search(r"outbox-demo-\w+", text)
    assert found, text
    return found[0]


def queue_exists(url: str, name: str) -> bool:
    with connect(url) as connection:
        try:
            connection.channel().queue_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return (
        not Path(f"/proc/{pid}/stat").exists() or Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    )


def eventually(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"not within 30 s: {what}"
        time.sleep(0.05)
