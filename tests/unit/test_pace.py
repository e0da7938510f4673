"""Where an executor is, and for how long it has been there."""

from __future__ import annotations

from pathlib import Path

import pytest

from isoscale.runtime.control.trail import Trail, whereabouts_of
from isoscale.runtime.training import speed as module
from isoscale.runtime.training.speed import Pace
from isoscale.types import Whereabouts


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(module, "time", one)
    return one


def test_every_turn_is_a_place_of_its_own(clock: Clock) -> None:
    """Sixteen turns of two minutes are no turn of half an hour."""
    pace = Pace()
    for rank in range(16):
        pace.turn(0, rank, training=True)
        for _ in range(120):
            clock.now += 1.0
            beat = pace.beat(0)
        assert (beat.place, beat.place_s) == ("turn", 120.0)


def test_time_in_which_the_process_itself_was_stopped_does_not_count(clock: Clock) -> None:
    pace = Pace()
    pace.turn(0, 0, training=True)
    clock.now += 1.0
    assert pace.beat(0).place_s == 1.0
    clock.now += 7200.0
    assert pace.beat(0).place_s == 3.0
    clock.now += 1.0
    assert pace.beat(0).place_s == 4.0


def test_a_step_in_which_not_all_turns_ran_tells_nothing_of_speed(clock: Clock) -> None:
    pace = Pace()
    for seconds, is_whole in ((5.0, True), (1.0, False), (7.0, True)):
        pace.turns_begin()
        pace.last_turn_begins()
        clock.now += seconds
        pace.turns_end()
        if not is_whole:
            pace.leave_out()
        pace.sealed(2)
    beat = pace.beat(3)
    assert (beat.steps, beat.turn_s, beat.last_turn_s, beat.step_s) == (2, 3.0, 6.0, 6.0)


def test_the_trail_follows(tmp_path: Path) -> None:
    pace, path = Pace(), tmp_path / "one"
    pace.trail = Trail(path).note
    seen = []
    for act in (
        lambda: pace.turn(4, 2, training=True),
        pace.turns_end,
        lambda: pace.sealed(1),
        lambda: pace.turn(5, 1, training=False),
        pace.outside,
    ):
        act()
        seen.append(whereabouts_of(path))
    assert seen == [
        Whereabouts("turn", 4, 2),
        Whereabouts("exchange", 4),
        Whereabouts("outside", 5),
        Whereabouts("evaluation", 5, 1),
        Whereabouts("outside", 5),
    ]
