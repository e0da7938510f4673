"""When the open step is given up, so that devices are free in time."""

from __future__ import annotations

from isoscale.runtime.membership.progress import Progress
from isoscale.runtime.membership.reclaim import Reclaim


def progress(step_s: float, since_s: float, *, saved: int = 5, write_s: float = 0.0) -> Progress:
    return Progress(step=5, saved=saved, step_s=step_s, since_step_s=since_s, write_s=write_s)


def test_a_step_that_ends_in_time_is_waited_for() -> None:
    reclaim = Reclaim(102.0, writes=False)
    assert not reclaim.is_hopeless(progress(1.0, 0.5), 100.0)
    assert not reclaim.is_hopeless(progress(10.0, 9.5), 100.0)


def test_a_step_that_does_not_is_given_up_at_once() -> None:
    reclaim = Reclaim(102.0, writes=False)
    assert reclaim.is_hopeless(progress(10.0, 1.0), 100.0)
    # Nobody knows how long the first one takes.
    assert reclaim.is_hopeless(progress(0.0, 1.0), 100.0)


def test_one_that_takes_longer_than_those_before_is_given_up_in_time() -> None:
    reclaim = Reclaim(102.0, writes=False)
    assert not reclaim.is_hopeless(progress(1.0, 5.0), 100.0)
    assert reclaim.is_hopeless(progress(1.0, 5.0), 101.5)
    assert not reclaim.is_over(101.5)
    assert reclaim.is_over(101.7)


def test_what_has_to_be_written_needs_its_time_too() -> None:
    reclaim = Reclaim(102.0, writes=True)
    assert not reclaim.is_hopeless(progress(1.0, 0.5, write_s=1.0), 100.0)
    assert reclaim.is_hopeless(progress(1.0, 0.5, saved=3, write_s=1.0), 100.0)
