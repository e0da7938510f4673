"""Counting what goes wrong."""

from __future__ import annotations

from isoscale.runtime.patience import Breakage, Patience, Strikes


def test_the_limit_is_reached_by_failures_in_a_row() -> None:
    strikes = Strikes(3)
    assert [strikes.strike(), strikes.strike()] == [False, False]
    strikes.clear()
    assert [strikes.strike() for _ in range(3)] == [False, False, True]


def test_each_sort_of_failure_is_counted_by_itself() -> None:
    patience = Patience()
    patience.stillborn.strike()
    assert (patience.unformed.count, patience.broken.count, patience.restarts.count) == (0, 0, 0)


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
    assert breakage.is_overdue(50.0)
    breakage.assume()
    assert breakage.reason == "it waited"
