"""Percentiles and their intervals, histograms against lists, concentration."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.analysis.study.sketch import Sketches
from isoscale.analysis.study.statistics import cdf, gini, interval_ranks, spread


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(1, 3))
def test_histograms_give_what_lists_give(tenths: list[int], groups: int) -> None:
    sketch = Sketches(groups)
    values = np.array(tenths, dtype=np.int64)
    which = np.arange(len(values), dtype=np.int64) % groups
    half = len(values) // 2
    sketch.add(which[:half], values[:half] * 100)
    sketch.add(which[half:], values[half:] * 100)
    for group in range(groups):
        mine = values[which == group] / 10
        found = sketch.figures(np.arange(groups) == group)
        assert found["count"] == len(mine)
        if len(mine):
            assert found["mean"] == pytest.approx(mine.mean(), abs=1e-9)
            for level in (50, 90, 95, 99):
                assert found[f"p{level}"] == pytest.approx(np.percentile(mine, level), abs=1e-9)
    assert sketch.inexact == 0


def test_samples_between_steps_are_told_and_off_by_less_than_one() -> None:
    sketch = Sketches(1)
    values = np.array([12_345, 50_001, 99_999], dtype=np.int64)
    sketch.add(np.zeros(3, dtype=np.int64), values)
    found = sketch.figures()
    assert sketch.inexact == 3
    assert found["mean"] == values.sum() / 3000
    assert abs(float(found["p50"] or 0) - 50.001) < 0.1


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """95 % of intervals hold the true percentile: exact by the binomial distribution, so at least that often."""
    draw = random.Random(7)
    truth = {level: NormalDist().inv_cdf(level) for level in (0.5, 0.9)}
    hits = dict.fromkeys(truth, 0)
    for _ in range(600):
        sample = sorted(draw.gauss(0, 1) for _ in range(80))
        for level, value in truth.items():
            low, high = interval_ranks(80, level)
            assert low is not None
            assert high is not None
            hits[level] += sample[low] <= value <= sample[high]
    assert all(0.93 <= hit / 600 <= 0.995 for hit in hits.values()), hits


@given(st.integers(1, 400), st.sampled_from([0.5, 0.9, 0.99]))
@settings(max_examples=60, deadline=None)
def test_an_interval_is_the_shortest_of_its_kind(count: int, level: float) -> None:
    low, high = interval_ranks(count, level)
    below = [math.comb(count, k) * level**k * (1 - level) ** (count - k) for k in range(count + 1)]
    if low is not None:
        # P(fewer than low + 1 samples below the percentile) stays under the tail; one more would not.
        assert sum(below[: low + 1]) <= 0.025 + 1e-9
        assert sum(below[: low + 2]) > 0.025 - 1e-9
    if high is not None:
        assert sum(below[high + 1 :]) <= 0.025 + 1e-9


def test_small_samples_have_intervals_and_large_ones_none() -> None:
    assert spread(np.arange(999.0))["p50_interval"] == [468.0, 530.0]
    assert "p50_interval" not in spread(np.arange(1000.0))
    few = spread(np.array([1.0, 2.0, np.nan]))
    assert few["count"] == 2
    assert few["p50_interval"] == [None, None]
    assert few["p99_interval"] == [pytest.approx(1.99), None]


def test_curves_have_both_ends_and_few_points() -> None:
    points = cdf(np.arange(10_000.0))
    assert len(points) == 101
    assert points[0] == [0.0, 0.0001]
    assert points[-1] == [9999.0, 1.0]
    assert cdf(np.array([np.nan])) == []


def test_concentration() -> None:
    assert gini(np.array([5.0] * 4)) == pytest.approx(0.0)
    assert gini(np.array([0.0, 0.0, 0.0, 1.0])) == pytest.approx(0.75)
    assert gini(np.zeros(3)) is None
