import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from outbox.errors import BrokerRefused, Unavailable
from relays.gate import Gate
from relays.retry import Backoff

AT_ONCE = Backoff(shortest=0.001, longest=0.002)


def test_an_open_gate_lets_everyone_through_without_probing() -> None:
    gate = Gate("it", lambda: pytest.fail("probed"), AT_ONCE, threading.Event())
    assert gate.wait()


def test_it_opens_when_a_probe_succeeds_whatever_refuses_meanwhile() -> None:
    answers = [Unavailable("still"), BrokerRefused("password"), None]

    def probe() -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    gate = Gate("it", probe, AT_ONCE, threading.Event())
    gate.fail(Unavailable("gone"))
    assert not gate.is_open
    assert gate.wait()
    assert not answers


def test_stop_ends_the_waiting() -> None:
    stop = threading.Event()
    gate = Gate("it", lambda: pytest.fail("probed"), Backoff(shortest=1000, longest=1000), stop)
    gate.fail(Unavailable("gone"))
    waiter = threading.Thread(target=lambda: results.append(gate.wait()))
    results: list[bool] = []
    waiter.start()
    stop.set()
    waiter.join(10)
    assert results == [False]


def test_one_log_line_per_backoff_step_however_many_threads(caplog: pytest.LogCaptureFixture) -> None:
    answers = [Unavailable("still")] * 3 + [None]

    def probe() -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    gate, together = Gate("it", probe, AT_ONCE, threading.Event()), threading.Barrier(8)

    def meet_the_outage() -> None:
        gate.fail(Unavailable("gone"))
        together.wait(10)
        assert gate.wait()

    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(8) as pool:
        for met in [pool.submit(meet_the_outage) for _ in range(8)]:
            met.result(10)
    assert [record.message.partition(",")[0] for record in caplog.records] == ["it is away: gone"] + [
        "it is still away"
    ] * 3


def test_the_epoch_tells_whether_there_was_an_outage_since() -> None:
    gate = Gate("it", lambda: None, AT_ONCE, threading.Event())
    before = gate.epoch
    gate.fail(Unavailable("gone"))
    gate.fail(Unavailable("gone"))
    assert gate.wait()
    assert gate.epoch == before + 1


def test_the_backoff_goes_on_growing_until_the_server_has_really_worked() -> None:
    waits: list[int] = []

    class Recording(Backoff):
        def delay(self, failures: int) -> float:
            waits.append(failures)
            return 0.0

    gate = Gate("it", lambda: None, Recording(), threading.Event())
    for _ in range(3):  # lets us in and fails at once
        gate.fail(Unavailable("throttled"))
        assert gate.wait()
    gate.worked()
    gate.fail(Unavailable("throttled"))
    assert gate.wait()
    assert waits == [1, 2, 3, 1]
