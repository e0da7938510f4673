"""Counting what goes wrong."""

from __future__ import annotations

from isoscale.runtime.membership.retry_limits import Breakage, RetryLimits, Strikes, Tries


def test_the_limit_is_reached_by_failures_in_a_row() -> None:
    strikes = Strikes(3)
    assert [strikes.strike(), strikes.strike()] == [False, False]
    strikes.clear()
    assert [strikes.strike() for _ in range(3)] == [False, False, True]


def test_each_sort_of_failure_is_counted_by_itself() -> None:
    patience = RetryLimits()
    patience.newcomers.lose(0, 1, 0.0)
    assert (patience.unformed.count, patience.broken.count, patience.spares.count) == (0, 0, 0)


def test_whoever_was_started_before_the_first_of_them_was_lost_belongs_to_the_burst() -> None:
    tries = Tries()
    assert tries.lose(1, started=4, now=100.0)
    assert not tries.lose(3, started=5, now=100.1)
    assert not tries.lose(2, started=6, now=150.0), "however late it is lost"
    assert tries.count == 1
    assert tries.lose(4, started=7, now=150.0), "its replacement is another matter"
    assert tries.count == 2


def test_losses_within_a_second_are_one_and_the_pause_is_kept() -> None:
    tries = Tries()
    assert tries.lose(0, started=1, now=100.0)
    assert tries.waits(100.0) == 0.0
    for number in range(1, 50):
        assert not tries.lose(number, started=number + 1, now=100.0 + number / 100)
    assert tries.count == 1
    assert tries.waits(100.5) == 0.5


def test_pauses_between_tries_double() -> None:
    tries, now, pauses = Tries(), 100.0, []
    for number in range(8):
        assert tries.lose(number, started=number + 1, now=now)
        pauses.append(tries.waits(now))
        now += 40.0
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_who_joined_and_did_not_last_is_no_reason_to_give_the_target_up() -> None:
    patience = RetryLimits()
    for number in range(6):
        patience.newcomers.lose(number, started=number + 1, now=10.0 * number, joined=True)
    assert not patience.exhausted
    assert patience.newcomers.waits(50.0) == 16.0
    patience.newcomers.clear()
    assert patience.newcomers.waits(50.0) == 0.0


def test_a_tick_says_when_those_who_had_to_wait_may_be_started() -> None:
    patience = RetryLimits(now=100.0)
    for number in range(2):
        patience.newcomers.lose(number, started=number + 1, now=100.0 + 2 * number)
    assert [patience.tick(now) for now in (102.2, 102.9, 103.1, 103.3)] == [False, False, True, False]


def test_a_breakage_is_overdue_some_time_after_the_first_report() -> None:
    breakage = Breakage()
    assert not breakage
    assert not breakage.is_overdue(100.0)
    breakage.report("a peer is gone", 100.0)
    breakage.report("another word for it", 102.0)
    assert breakage
    assert breakage.reason == "a peer is gone"
    assert not breakage.is_overdue(102.9)
    assert breakage.is_overdue(103.0)
    breakage.mend()
    assert not breakage


def test_one_that_is_known_otherwise_is_overdue_at_once() -> None:
    breakage = Breakage()
    breakage.assume("it waited")
    assert breakage.is_overdue(1.0)
    breakage.assume()
    assert breakage.reason == "it waited"
