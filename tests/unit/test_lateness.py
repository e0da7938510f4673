"""When something happened, by clocks that show different times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoscale.runtime.coordinator.lateness import Lateness


def test_what_lay_unread_is_late_by_as_long() -> None:
    """The executor's clock is 1000 s behind; messages take 1 ms, but for three that lie for up to a second."""
    lateness = Lateness()
    heard = {0.0: 0.001, 0.5: 0.501, 1.0: 2.0, 1.5: 2.0, 1.9: 2.0, 2.0: 2.001}
    late = {at: lateness.of(7, at + 1, now + 1001) for at, now in heard.items()}
    assert late == pytest.approx({0.0: 0, 0.5: 0, 1.0: 0.999, 1.5: 0.499, 1.9: 0.099, 2.0: 0}, abs=1e-3)


def test_what_was_kept_for_another_coordinator_is_as_old_as_it_is() -> None:
    lateness = Lateness()
    assert lateness.of(3, 5000.0, 10.0) == 0, "it introduces itself"
    assert [lateness.of(3, at, 10.0) for at in (1400.0, 4990.0, 5000.0)] == [3600.0, 10.0, 0.0]


def test_executors_have_clocks_of_their_own() -> None:
    lateness = Lateness()
    assert lateness.of(1, 5.0, 100.0) == lateness.of(2, 1e9, 100.0) == 0
    assert lateness.of(1, 6.0, 103.0) == pytest.approx(2.0, abs=1e-3)


def test_clocks_that_run_apart_are_followed() -> None:
    """One is slow by 50 ppm: 4 s a day."""
    lateness = Lateness()
    worst = max(lateness.of(1, 1 + now * (1 - 5e-5), float(now)) for now in range(0, 86_400, 10))
    assert worst < 0.01


@pytest.mark.parametrize("at", [0.0, math.nan, math.inf, -math.inf])
def test_a_time_that_is_none_says_nothing(at: float) -> None:
    lateness = Lateness()
    assert lateness.of(1, at, 50.0) == 0
    assert lateness.of(1, 7.0, 50.0) == 0


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(st.floats(0, 10), st.floats(0, 3)), min_size=1, max_size=30))
def test_never_later_than_heard_and_never_before_it_was(apart: float, messages: list[tuple[float, float]]) -> None:
    lateness, true, heard = Lateness(), 1.0, 1.0
    for gap, delay in messages:
        true += gap
        heard = max(heard, true + delay)
        late = lateness.of(1, true + apart, heard) if true + apart else 0.0
        assert true - 1e-3 * len(messages) <= heard - late <= heard + 1e-9
