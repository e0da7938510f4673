from __future__ import annotations

import time

import pytest

from isoscale.clock import Clock, Instant, VirtualClock, WallClock


def test_wall_clock_tells_unix_time_and_never_goes_back() -> None:
    clock: Clock = WallClock()
    assert abs(clock.now() - time.time()) < 60
    before = clock.monotonic()
    clock.sleep(0)
    assert clock.monotonic() >= before


def test_virtual_clock_moves_only_when_told() -> None:
    clock = VirtualClock(now=100.0)
    assert (clock.now(), clock.monotonic()) == (100.0, 100.0)
    clock.advance(2.5)
    clock.sleep(0.5)
    assert (clock.now(), clock.monotonic()) == (103.0, 103.0)


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_virtual_clock_refuses_to_go_back(seconds: float) -> None:
    clock = VirtualClock()
    with pytest.raises(ValueError, match="cannot advance"):
        clock.sleep(seconds)
    assert clock.now() == 0.0


def test_virtual_clock_is_a_clock() -> None:
    clock: Clock = VirtualClock()
    assert clock.now() == 0.0


def test_an_instant_is_not_moved_by_a_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    instant = Instant()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert instant.unix <= instant.unix_now() < instant.unix + 60
    assert 0 <= instant.seconds_ago() < 60
