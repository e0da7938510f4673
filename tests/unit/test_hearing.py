"""How long an executor may be silent, and how long it may keep others waiting."""

from __future__ import annotations

from isoscale.protocol import messages as m
from isoscale.runtime.hearing import Hearing
from isoscale.types import Settings

SETTINGS = Settings(heartbeat_s=1.0, lost_after_s=10.0, stalled_after_s=60.0, orphan_s=600.0)


def beat(place: str, seconds: float) -> m.Beat:
    return m.Beat(step=1, place=place, place_s=seconds)


def never() -> bool:
    raise AssertionError("the system is asked about one that was heard just now")


def test_silence_is_death_while_others_are_heard() -> None:
    hearing = Hearing(SETTINGS)
    assert hearing.limit([0.5, 30.0], now=100.0) == 10.0


def test_if_nobody_is_heard_the_coordinator_is_the_one_that_is_cut_off() -> None:
    hearing = Hearing(SETTINGS)
    assert hearing.limit([30.0, 31.0], now=100.0) == 600.0
    assert hearing.limit([0.5, 33.0], now=102.0) == 600.0, "not all come back at once"
    assert hearing.limit([0.5, 44.0], now=113.0) == 10.0


def test_a_stopped_process_is_dead_after_two_beats() -> None:
    hearing = Hearing(SETTINGS)
    assert hearing.why_dead(1.5, None, never) == ""
    assert hearing.why_dead(2.5, None, lambda: False) == ""
    assert hearing.why_dead(2.5, None, lambda: True) == "stopped by a signal"
    assert hearing.why_dead(10.5, None, lambda: False) == "no heartbeat for 10.5 s"


def test_a_member_may_wait_for_others_but_not_let_them_wait() -> None:
    hearing = Hearing(SETTINGS)
    assert hearing.why_dead(0.1, beat("exchange", 1000.0), never) == ""
    assert hearing.why_dead(0.1, beat("turn", 59.0), never) == ""
    assert hearing.why_dead(0.1, beat("turn", 61.0), never) == "kept the others waiting for 61 s"
