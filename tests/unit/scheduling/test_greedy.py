"""Devices handed out at once go where they would have gone one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isoscale.scheduling.greedy import share_by_gain

# Few distinct values: ties and steps that gain nothing must come up often.
_tables = st.lists(st.integers(-2, 6), min_size=0, max_size=7).map(lambda gains: np.cumsum([0.0, *gains]))


def one_by_one(tables: list[np.ndarray], sizes: list[int], left: int, first_steps: list[int]) -> list[int]:
    sizes = list(sizes)
    while True:
        best, best_gain, best_step = -1, 0.0, 0
        for job, table in enumerate(tables):
            step = 1 if sizes[job] else first_steps[job]
            if step <= left and sizes[job] + step < len(table):
                gain = (table[sizes[job] + step] - table[sizes[job]]) / step
                if gain > best_gain:
                    best, best_gain, best_step = job, gain, step
        if best < 0:
            return sizes
        sizes[best] += best_step
        left -= best_step


@given(st.data(), st.lists(_tables, min_size=1, max_size=5), st.integers(0, 20))
def test_all_at_once_is_one_by_one(data: st.DataObject, tables: list[np.ndarray], left: int) -> None:
    sizes = [data.draw(st.integers(0, len(table) - 1)) for table in tables]
    first_steps = [data.draw(st.sampled_from([1, 1, 2, 3])) for _ in tables]
    assert share_by_gain(tables, sizes, left, first_steps) == one_by_one(tables, sizes, left, first_steps)


def test_a_large_step_behind_a_small_one_is_taken_with_it() -> None:
    tables = [np.array([0.0, 1.0, 1.5, 9.0]), np.array([0.0, 2.0, 2.6])]
    assert share_by_gain(tables, [0, 0], 2) == [1, 1]
    assert share_by_gain(tables, [0, 0], 3) == [1, 2]
    assert share_by_gain(tables, [0, 0], 5) == [3, 2]


def test_nothing_left_or_nobody_there() -> None:
    assert share_by_gain([], [], 4) == []
    assert share_by_gain([np.array([0.0, 1.0])], [0], 0) == [0]
