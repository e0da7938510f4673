"""Everybody was told to go: when there must be a checkpoint, and when the end."""

from __future__ import annotations

from typing import Any

from isoscale.runtime.membership.eviction import Eviction

CALM: dict[str, Any] = {"everybody": True, "rescued": False, "given_up": "", "step_s": 0.1}


def at(one: Eviction, now: float, **changes: Any) -> str:
    return one.look(now=now, **{**CALM, **changes})


def test_a_checkpoint_at_once_and_the_end_in_time() -> None:
    one = Eviction(30.0)
    assert at(one, 0.0, everybody=False) == ""
    assert at(one, 100.0) == "checkpoint"
    assert at(one, 127.0) == ""
    assert at(one, 128.0) == "stop", "early enough for the last steps and the checkpoint"
    assert at(one, 129.0) == "", "once is enough"
    assert at(one, 157.0) == "stop", "again, should it have failed"


def test_long_steps_are_ended_earlier_but_others_get_half_of_the_time_to_come() -> None:
    one = Eviction(30.0)
    assert at(one, 0.0, step_s=60.0) == "checkpoint"
    assert at(one, 14.0, step_s=60.0) == ""
    assert at(one, 15.0, step_s=60.0) == "stop"


def test_whoever_is_about_to_hand_over_is_left_to_it() -> None:
    one = Eviction(30.0)
    at(one, 0.0)
    assert at(one, 40.0, rescued=True) == ""
    assert at(one, 41.0, everybody=False) == ""
    assert at(one, 42.0) == "checkpoint", "another time"


def test_where_nobody_will_come_the_end_is_at_once_but_not_again_and_again() -> None:
    one = Eviction(30.0)
    at(one, 0.0)
    assert at(one, 0.2, given_up="newcomers end") == "stop"
    assert at(one, 0.4, given_up="newcomers end") == ""


def test_what_was_given_up_before_says_nothing_of_those_who_may_come_now() -> None:
    one = Eviction(30.0)
    at(one, 0.0, given_up="an hour ago")
    assert at(one, 0.2, given_up="an hour ago") == ""
    assert at(one, 0.4, given_up="just now") == "stop"
