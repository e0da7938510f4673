"""The autoscaler's three paths against every allocation there is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoscale.scheduling import autoscaler
from isoscale.scheduling.autoscaler import (
    allocate,
    allocate_by_recurrence,
    allocate_concave,
    is_concave,
    total_value,
)

value = st.one_of(st.integers(-3, 12).map(float), st.floats(0.1, 9), st.just(-np.inf))
table = st.lists(value, min_size=1, max_size=5).map(lambda values: np.array([-np.inf, *values]))
gains = st.lists(st.floats(0, 3), min_size=1, max_size=5)


def brute(tables: list[np.ndarray], devices: int) -> float:
    ranges = [range(len(t)) for t in tables]
    return max((total_value(tables, ks) for ks in itertools.product(*ranges) if sum(ks) <= devices), default=-np.inf)


@given(st.lists(table, min_size=1, max_size=4), st.integers(1, 12))
def test_every_path_gives_the_highest_total(tables: list[np.ndarray], devices: int) -> None:
    best = brute(tables, devices)
    for path in (allocate, allocate_by_recurrence):
        chosen = path(tables, devices)
        if chosen is None:
            assert best == -np.inf
        else:
            assert sum(chosen) <= devices
            assert total_value(tables, chosen) == pytest.approx(best)


@given(st.lists(gains, min_size=1, max_size=4), st.integers(1, 14))
def test_greedy_is_exact_on_concave_tables(steps: list[list[float]], devices: int) -> None:
    tables = [np.concatenate([[-np.inf], 1 + np.cumsum(sorted(s, reverse=True))]) for s in steps]
    assert all(map(is_concave, tables))
    chosen = allocate_concave(tables, devices)
    best = brute(tables, devices)
    assert chosen is None if best == -np.inf else total_value(tables, chosen) == pytest.approx(best)


@given(st.integers(0, 2**32 - 1))
def test_reduction_agrees_with_the_recurrence_on_larger_cases(seed: int) -> None:
    """Small cases go straight to the recurrence, so the reduction is asked by name."""
    rng = np.random.default_rng(seed)
    jobs, devices, top = int(rng.integers(2, 25)), int(rng.integers(25, 90)), int(rng.integers(1, 17))
    tables = []
    for _ in range(jobs):
        rates = np.cumsum(rng.random(top) ** 2)
        rates[rng.random(top) < 0.2] = -np.inf
        rates[0] = max(rates[0], 0.01)
        tables.append(np.concatenate([[-np.inf if rng.random() < 0.7 else 0.0], rates]))
    slow, fast = allocate_by_recurrence(tables, devices), autoscaler._allocate_reduced(tables, devices)
    assert slow is not None
    assert fast is not None
    assert sum(fast) <= devices
    assert total_value(tables, fast) == pytest.approx(total_value(tables, slow), rel=1e-12)


def test_jobs_that_may_be_left_out_give_way() -> None:
    optional = np.array([0.0, 1.0])
    large = np.array([-np.inf, -np.inf, -np.inf, 2.0])
    assert allocate([optional, large, optional], 4) in ((1, 3, 0), (0, 3, 1))


def test_more_jobs_than_devices_cannot_all_run() -> None:
    must = np.array([-np.inf, 1.0])
    assert allocate([must] * 3, 2) is None
    assert allocate([], 2) == ()


def test_devices_that_do_not_help_stay_unused() -> None:
    peaked = np.array([-np.inf, 1.0, 1.5, 1.2, 0.3])
    assert allocate([peaked], 4) == (2,)


@pytest.mark.parametrize(
    ("values", "concave"),
    [([1.0, 2.0, 2.5], True), ([1.0, 1.5, 2.5], False), ([1.0, -np.inf, 2.0], False), ([3.0], True)],
)
def test_is_concave(values: list[float], concave: bool) -> None:
    assert is_concave(np.array([-np.inf, *values])) is concave
