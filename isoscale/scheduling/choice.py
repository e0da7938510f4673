"""One option per job, several kinds of devices: the multiple-choice knapsack that a mixed cluster poses.

    maximise  sum_j v_j(o_j)   subject to  sum_j c_j(o_j) <= C, for every kind

where option o of job j is worth v and takes the vector c of devices. Solved by prices (Lagrange multipliers) that bound
the optimum from above, a good choice that bounds it from below, and dynamic programming over the vectors of devices for
the options that the two bounds leave open. Exact unless that program were larger than `budget`; then the good choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Choices", "choose"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PRICE_STEPS = 40


@dataclass(frozen=True, slots=True)
class Choices:
    """Options of one job: row i of `counts` (one column per kind) is worth `values[i]`."""

    counts: Ints
    values: Floats


def choose(
    jobs: Sequence[Choices], capacity: Sequence[int], *, budget: int = 60_000_000
) -> tuple[tuple[int, ...], bool]:
    """The chosen row of each job, and whether that is proven best. Every job needs a row that takes nothing.

    >>> a = Choices(np.array([[0, 0], [1, 0], [0, 1], [1, 1]]), np.array([0.0, 3.0, 2.0, 4.0]))
    >>> choose([a, a], [1, 1])
    ((1, 2), True)
    """
    if not jobs:
        return (), True
    total = np.asarray(capacity, dtype=np.int64)
    # Options that could never fit only confuse the prices.
    fits = [np.flatnonzero((job.counts <= total).all(axis=1)) for job in jobs]
    jobs = [Choices(job.counts[rows], job.values[rows]) for job, rows in zip(jobs, fits, strict=True)]
    prices, upper = _prices(jobs, total)
    chosen, lower = _good_choice(jobs, total, prices)
    slack = upper - lower + 1e-9 * max(1.0, abs(lower))
    open_rows = []
    for job in jobs:
        reduced = job.values - job.counts @ prices
        open_rows.append(np.flatnonzero(reduced >= reduced.max() - slack))
    work = int(np.prod(total + 1)) * sum(len(rows) for rows in open_rows if len(rows) > 1)
    exact = work <= budget
    if exact:
        reduced_jobs = [Choices(job.counts[rows], job.values[rows]) for job, rows in zip(jobs, open_rows, strict=True)]
        best = _by_lattice(reduced_jobs, total)
        if best is not None:
            chosen = [int(rows[i]) for rows, i in zip(open_rows, best, strict=True)]
    return tuple(int(rows[i]) for rows, i in zip(fits, chosen, strict=True)), exact


def _prices(jobs: Sequence[Choices], capacity: Ints) -> tuple[Floats, float]:
    """Prices per device of each kind, and the upper bound that they prove."""
    counts = np.concatenate([job.counts for job in jobs]).astype(np.float64)
    values = np.concatenate([job.values for job in jobs])
    starts = np.cumsum([0, *(len(job.values) for job in jobs)])[:-1]
    # Begin where everything would be bought at the average worth of a device.
    prices = np.full(len(capacity), max(values.max(), 0.0) / max(1, int(capacity.sum())))
    best_prices, best_bound = np.zeros(len(capacity)), np.inf
    step = 1.0
    for _ in range(_PRICE_STEPS):
        reduced = values - counts @ prices
        rows = _argmax_per_job(reduced, starts)
        bound = float(reduced[rows].sum() + prices @ capacity)
        if bound < best_bound:
            best_prices, best_bound = prices, bound
        else:
            step *= 0.7
            prices = best_prices
            rows = _argmax_per_job(values - counts @ prices, starts)
        excess = counts[rows].sum(axis=0) - capacity
        scale = np.maximum(prices, prices.mean() * 0.1 + 1e-12) / np.maximum(capacity, 1)
        prices = np.maximum(0.0, prices + step * scale * excess)
    return best_prices, best_bound


def _argmax_per_job(values: Floats, starts: Ints) -> Ints:
    """Index of each job's largest value, the first of equals."""
    tops = np.maximum.reduceat(values, starts)
    lengths = np.diff(np.append(starts, len(values)))
    hits = np.flatnonzero(values >= np.repeat(tops, lengths))
    owner = np.searchsorted(starts, hits, side="right") - 1
    _, first = np.unique(owner, return_index=True)
    return np.asarray(hits[first])


def _good_choice(jobs: Sequence[Choices], capacity: Ints, prices: Floats) -> tuple[list[int], float]:
    """A choice that fits: the most profitable jobs first, then each job anew given the others, while that helps."""
    chosen = [int(np.flatnonzero(job.counts.sum(axis=1) == 0)[0]) for job in jobs]
    profit = [float((job.values - job.counts @ prices).max()) for job in jobs]
    order = sorted(range(len(jobs)), key=lambda j: (-profit[j], j))
    left = capacity.copy()
    for rounds in range(6):
        improved = False
        for j in order:
            job, now = jobs[j], chosen[j]
            room = left + job.counts[now]
            fitting = np.flatnonzero((job.counts <= room).all(axis=1))
            # At first by profit, so that nobody takes devices that are worth more to others; later by value.
            worth = job.values[fitting] - (job.counts[fitting] @ prices if rounds == 0 else 0.0)
            best = int(fitting[np.argmax(worth)])
            if rounds == 0 or job.values[best] > job.values[now] + 1e-12:
                improved = improved or best != now
                left, chosen[j] = room - job.counts[best], best
        if not improved:
            break
    return chosen, float(sum(job.values[row] for job, row in zip(jobs, chosen, strict=True)))


def _by_lattice(jobs: Sequence[Choices], capacity: Ints) -> list[int] | None:
    """Exact: F_j[k] = best value of the first j jobs with at most the devices k, for every vector k."""
    shape = tuple(int(count) + 1 for count in capacity)
    layers = [np.zeros(shape)]
    for job in jobs:
        before, layer = layers[-1], np.full(shape, -np.inf)
        for row, value in zip(job.counts.tolist(), job.values.tolist(), strict=True):
            to = tuple(slice(count, None) for count in row)
            of = tuple(slice(None, size - count) for size, count in zip(shape, row, strict=True))
            np.maximum(layer[to], before[of] + value, out=layer[to])
        layers.append(layer)
    if layers[-1][tuple(int(count) for count in capacity)] == -np.inf:
        return None
    chosen: list[int] = []
    left = capacity.copy()
    for j in range(len(jobs) - 1, -1, -1):
        job, before = jobs[j], layers[j]
        rest = left - job.counts
        able = (rest >= 0).all(axis=1)
        worth = np.full(len(job.values), -np.inf)
        worth[able] = job.values[able] + before[tuple(rest[able].T)]
        chosen.append(int(np.argmax(worth)))
        left = left - job.counts[chosen[-1]]
    return chosen[::-1]
