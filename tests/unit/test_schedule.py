"""Properties of KeyedSchedule under random histories of sending."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relays.schedule import KeyedSchedule

KEYS = st.lists(st.sampled_from([None, "a", "b", "c"]), max_size=30)
WINDOWS = st.integers(1, 4)


@dataclass
class History:
    """Drives a schedule at random and checks, step by step, what must always hold."""

    keys: list[Hashable | None]
    window: int
    draw: st.DataObject
    in_flight: list[int] = field(default_factory=list)
    confirmed: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    deferred: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.schedule = KeyedSchedule(self.keys, self.window)

    def run(self, *steps: str) -> None:
        """Apply random steps until every message is finished."""
        budget = 20 * len(self.keys) + 20
        while not self.schedule.done:
            budget -= 1
            possible = [step for step in steps if step in {"take", "abandon"} or self.in_flight]
            step = self.draw.draw(st.sampled_from(possible)) if budget > 0 else ["take", "confirm"][budget % 2]
            if step in possible:
                getattr(self, step)()
        assert self.schedule.take() is None
        finished = self.confirmed + self.failed + self.deferred
        assert sorted(finished) == list(range(len(self.keys)))

    def take(self) -> None:
        position = self.schedule.take()
        if position is None:
            assert self.in_flight, "nothing is in flight, so something unfinished must be ready"
            return
        self.check_may_go(position)
        self.in_flight.append(position)

    def check_may_go(self, position: int) -> None:
        assert position not in self.in_flight + self.confirmed + self.failed + self.deferred
        key = self.keys[position]
        if key is None:
            return
        same_key = [other for other in range(len(self.keys)) if self.keys[other] == key]
        in_flight = [other for other in self.in_flight if self.keys[other] == key]
        assert len(in_flight) < self.window
        earlier = [other for other in same_key if other < position]
        assert set(earlier) <= set(in_flight + self.confirmed), (
            "an earlier one of its key is neither sent nor confirmed"
        )

    def pick(self) -> int:
        return self.in_flight.pop(self.draw.draw(st.integers(0, len(self.in_flight) - 1)))

    def confirm(self) -> None:
        position = self.pick()
        self.confirmed.append(position)
        self.schedule.confirmed(position)

    def fail(self) -> None:
        position = self.pick()
        self.failed.append(position)
        behind = self.schedule.failed(position)
        assert all(self.keys[other] == self.keys[position] is not None for other in behind)
        assert not set(behind) & set(self.in_flight + self.confirmed + self.failed + self.deferred)
        self.deferred += behind

    def abandon(self) -> None:
        behind = self.schedule.abandon()
        assert self.schedule.take() is None
        self.deferred += behind


@given(KEYS, WINDOWS, st.data())
def test_everything_is_confirmed_in_order_of_its_key(keys: list[str | None], window: int, data: st.DataObject) -> None:
    history = History(keys, window, data)
    history.run("take", "confirm")
    assert len(history.confirmed) == len(keys)


@given(KEYS, WINDOWS, st.data())
def test_nothing_follows_a_message_that_failed(keys: list[str | None], window: int, data: st.DataObject) -> None:
    history = History(keys, window, data)
    history.run("take", "confirm", "fail")
    failures = Counter(keys[position] for position in history.failed)
    for position in history.deferred:
        assert failures[keys[position]], "deferred although none of its key failed"


@given(KEYS, WINDOWS, st.data())
def test_abandoning_leaves_only_what_is_in_flight(keys: list[str | None], window: int, data: st.DataObject) -> None:
    history = History(keys, window, data)
    history.run("take", "confirm", "fail", "abandon")


@given(KEYS, WINDOWS)
def test_as_much_as_possible_is_ready_at_once(keys: list[str | None], window: int) -> None:
    schedule = KeyedSchedule(keys, window)
    taken = []
    while (position := schedule.take()) is not None:
        taken.append(position)
    expected = sum(count if key is None else min(count, window) for key, count in Counter(keys).items())
    assert len(taken) == expected
    assert taken == sorted(taken)


@given(KEYS, st.data())
def test_the_successor_is_ready_as_soon_as_its_predecessor_is_confirmed(
    keys: list[str | None], data: st.DataObject
) -> None:
    schedule = KeyedSchedule(keys)
    taken = []
    while (position := schedule.take()) is not None:
        taken.append(position)
    for position in data.draw(st.permutations(taken)):
        schedule.confirmed(position)
        key = keys[position]
        successors = [] if key is None else [other for other in range(position + 1, len(keys)) if keys[other] == key]
        assert schedule.take() == (successors[0] if successors else None)


def test_a_window_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        KeyedSchedule([], 0)
