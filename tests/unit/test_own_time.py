"""Time in which the coordinator itself was running."""

from __future__ import annotations

from isoscale.clock import VirtualClock
from isoscale.runtime.coordinator.own_time import OwnTime


def test_it_runs_as_long_as_ticks_come() -> None:
    clock = VirtualClock(now=100.0)
    own = OwnTime(clock, 0.2)
    for _ in range(50):
        clock.advance(0.2)
        assert own.tick() == 0.0
    clock.advance(0.1)
    assert round(own.now(), 6) == 110.1


def test_a_stretch_without_ticks_does_not_count_and_is_told() -> None:
    clock = VirtualClock(now=100.0)
    own = OwnTime(clock, 0.2)
    clock.advance(14.2)
    assert round(own.now(), 6) == 100.4, "also before the tick: messages come first"
    assert round(own.tick(), 6) == 14.0
    assert round(own.now(), 6) == 100.4
    clock.advance(0.2)
    assert own.tick() == 0.0
    assert round(own.now(), 6) == 100.6


def test_it_never_goes_back_and_a_late_tick_is_not_worth_telling() -> None:
    clock = VirtualClock()
    own, before = OwnTime(clock, 0.2), 0.0
    for late in (0.2, 0.35, 0.9, 1.1, 0.2):
        for _ in range(10):
            clock.advance(late / 10)
            assert own.now() >= before
            before = own.now()
        assert own.tick() == 0.0
        assert own.now() >= before
