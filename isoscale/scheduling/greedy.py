"""Devices one by one to whoever gains most from the next: what Optimus and Elastic-Tiresias do with devices left over.

Worked out for all devices at once. Whoever hands out devices one by one takes a job's step as soon as the smallest gain
up to that step is the largest on offer: a step that gains more than the one before it follows at once. So steps sorted
by that smallest gain come in the order in which they would have been taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["share_by_gain"]

Table = NDArray[np.float64]


def share_by_gain(
    tables: Sequence[Table], sizes: Sequence[int], left: int, first_steps: Sequence[int] | None = None
) -> list[int]:
    """Sizes when `left` more devices have been handed out; `tables[j][k]` is the value of k devices to job j.

    A job's first step from 0 is `first_steps[j]` devices at once (its minimum; 1 if nothing is said) and counts by its
    gain per device. Nobody is given a step that gains nothing. Among equal gains the earlier job comes first.

    >>> root = np.sqrt(np.arange(5))
    >>> share_by_gain([root, 2 * root], [1, 0], 3)
    [1, 3]
    """
    held = np.array(sizes, dtype=np.int64)
    if left <= 0 or not len(tables):
        return list(sizes)
    steps = np.ones_like(held)
    if first_steps is not None:
        steps = np.where(held > 0, 1, np.maximum(1, np.array(first_steps, dtype=np.int64)))
    values = np.full((len(tables), max(map(len, tables))), -np.inf)
    for row, table in zip(values, tables, strict=True):
        row[: len(table)] = table
    owners, costs = _in_order(values, held, steps)
    if (steps == 1).all():
        return [int(size) for size in held + np.bincount(owners[:left], minlength=len(held))]
    return _one_by_one(list(sizes), owners.tolist(), costs.tolist(), left)


def _in_order(
    values: NDArray[np.float64], held: NDArray[np.int64], steps: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The job and the devices of every step that gains something, in the order in which they would be taken."""
    reached = held + steps
    with np.errstate(invalid="ignore"):
        gains = np.nan_to_num(np.diff(values, axis=1), nan=-np.inf, neginf=-np.inf)  # [:, k - 1]: from k - 1 to k
    # A first step of several devices stands where it leads to; what it leaps over is no step.
    gains[np.arange(1, values.shape[1]) < reached[:, None]] = np.inf
    jobs = np.flatnonzero(reached < values.shape[1])
    gains[jobs, reached[jobs] - 1] = (values[jobs, reached[jobs]] - values[jobs, held[jobs]]) / steps[jobs]
    smallest = np.minimum.accumulate(gains, axis=1)
    owners, columns = np.nonzero((smallest > 0) & (smallest < np.inf))
    # Stable: among equal gains the earlier job, and within a job the earlier step, come first.
    order = np.argsort(-smallest[owners, columns], kind="stable")
    owners, columns = owners[order], columns[order]
    return owners, np.where(columns + 1 == reached[owners], steps[owners], 1)


def _one_by_one(sizes: list[int], owners: list[int], costs: list[int], left: int) -> list[int]:
    """Steps in order; a job whose step does not fit any more is passed over from then on."""
    passed: set[int] = set()
    for job, cost in zip(owners, costs, strict=True):
        if left <= 0:
            break
        if cost > left:
            passed.add(job)
        elif job not in passed:
            sizes[job] += cost
            left -= cost
    return sizes
