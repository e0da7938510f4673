from __future__ import annotations

import numpy as np
import pytest

from isoscale.timelines.curves import decimate, rate


def test_few_points_come_back_as_they_are() -> None:
    curve = decimate(np.array([0.0, 1.0]), np.array([3.0, 4.0]), limit=2)
    assert (curve.t, curve.value, curve.low, curve.high) == ((0.0, 1.0), (3.0, 4.0), (3.0, 4.0), (3.0, 4.0))


def test_many_points_become_means_with_extremes() -> None:
    curve = decimate(np.arange(8.0), np.array([1.0, 3.0, 0.0, 0.0, 5.0, 5.0, 2.0, 8.0]), limit=4)
    assert curve.value == pytest.approx((2.0, 0.0, 5.0, 5.0))
    assert (curve.low, curve.high) == ((1.0, 0.0, 5.0, 2.0), (3.0, 0.0, 5.0, 8.0))


def test_what_is_not_finite_is_left_out() -> None:
    assert decimate(np.arange(3.0), np.array([1.0, np.nan, np.inf])).value == (1.0,)
    assert decimate(np.arange(2.0), np.array([np.nan, np.nan])).t == ()


def test_points_of_one_instant() -> None:
    assert decimate(np.zeros(10), np.arange(10.0), limit=3).value == (4.5,)


def test_huge_values_do_not_overflow() -> None:
    curve = decimate(np.arange(100.0), np.full(100, 1.5e308), limit=2)
    assert curve.value == pytest.approx((1.5e308, 1.5e308))


def test_a_steady_rate_is_flat() -> None:
    curve = rate(np.arange(101) * 0.1)
    assert curve.value == pytest.approx([10.0] * len(curve.t))
    assert (curve.t[0], curve.t[-1]) == (0.0, pytest.approx(10.0))


def test_a_pause_shows() -> None:
    times = np.concatenate([np.arange(50) * 0.1, 15 + np.arange(50) * 0.1])
    curve = rate(times)
    assert min(curve.value) < 0.2 < 9.0 < max(curve.value)


def test_the_area_is_the_number_of_steps() -> None:
    times = np.sort(np.random.default_rng(0).uniform(0.0, 30.0, 400))
    curve = rate(times)
    assert np.sum(np.array(curve.value[:-1]) * np.diff(curve.t)) == pytest.approx(399)


@pytest.mark.parametrize("times", [[], [1.0], [2.0, 2.0, 2.0]])
def test_no_rate_without_time(times: list[float]) -> None:
    assert rate(np.array(times)).t == ()
