import uuid

from relays.lease import RENEWED_FOR, Lease, boot_time


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lease(clock: Clock, seconds: float = 30.0) -> Lease:
    return Lease("default", {1: 0, 2: 0}, uuid.uuid4(), seconds, clock(), clock)


def test_a_lease_ends_before_the_database_lets_others_in() -> None:
    clock = Clock()
    mine = lease(clock)
    clock.now += 26.9
    assert not mine.expired()
    clock.now += 0.2  # 27.1 of 30 seconds
    assert mine.expired()


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    clock = Clock()
    mine = lease(clock)
    clock.now += 20
    sent = clock.now
    clock.now += 5  # the answer took its time
    mine.renewed(sent)
    clock.now = sent + 26.9
    assert not mine.expired()
    clock.now = sent + 27.1
    assert mine.expired()


def test_a_lease_that_ran_out_stays_lost() -> None:
    clock = Clock()
    mine = lease(clock)
    clock.now += 1000  # a frozen process wakes up: nothing sent in the meantime may be followed by more
    mine.renewed(clock.now)
    assert mine.expired()


def test_a_batch_that_takes_ages_is_hung() -> None:
    clock = Clock()
    mine = lease(clock)
    clock.now += 30.0 * RENEWED_FOR + 1
    assert mine.hung
    mine.begin_batch()
    assert not mine.hung


def test_boot_time_advances() -> None:
    first = boot_time()
    assert boot_time() >= first
