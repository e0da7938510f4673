"""One option per job, several kinds of devices: the multiple-choice knapsack that a mixed cluster poses.

    maximise  sum_j v_j(o_j)   subject to  sum_j c_j(o_j) <= C, for every kind

where option o of job j is worth v and takes the vector c of devices. Solved by prices (Lagrange multipliers) that bound
the optimum from above, a good choice that bounds it from below, and dynamic programming over the vectors of devices for
the options that the two bounds leave open. Exact unless that program were larger than `budget`; then the better of two
good choices, one made from nothing and one from what jobs hold: prices alone would have jobs of near-equal worth change
places in every round. A good choice leaves no device free that would be worth anything to a job.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Choices", "choose"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: steps in which prices follow demand, and finer ones along the bound's slope
_MARKET_STEPS = 40
_PRICE_STEPS = 20
#: jobs left with nothing for which others are asked to shrink
_SQUEEZES = 200


@dataclass(frozen=True, slots=True)
class Choices:
    """Options of one job: row i of `counts` (one column per kind) is worth `values[i]`; `held` is the row that it has
    now, -1 if none."""

    counts: Ints
    values: Floats
    held: int = -1


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
    jobs = [
        Choices(job.counts[rows], job.values[rows], int(np.searchsorted(rows, job.held)) if job.held in rows else -1)
        for job, rows in zip(jobs, fits, strict=True)
    ]
    counts, values = _stacked(jobs)
    wanted = values.argmax(axis=1)
    if (counts[np.arange(len(jobs)), wanted].sum(axis=0) <= total).all():
        return tuple(int(rows[i]) for rows, i in zip(fits, wanted, strict=True)), True
    prices, upper = _prices(counts, values, total)
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
    elif (held := _held_rows(jobs, total)) is not None:
        kept, worth = _good_choice(jobs, total, prices, held)
        chosen = kept if worth > lower else chosen
    return tuple(int(rows[i]) for rows, i in zip(fits, chosen, strict=True)), exact


def _stacked(jobs: Sequence[Choices]) -> tuple[Floats, Floats]:
    """[job, row, kind] devices and [job, row] values, with rows that nobody wants where a job has fewer."""
    most = max(len(job.values) for job in jobs)
    counts = np.zeros((len(jobs), most, jobs[0].counts.shape[1]))
    values = np.full((len(jobs), most), -np.inf)
    for j, job in enumerate(jobs):
        counts[j, : len(job.values)] = job.counts
        values[j, : len(job.values)] = job.values
    return counts, values


def _prices(counts: Floats, values: Floats, capacity: Ints) -> tuple[Floats, float]:
    """Prices per device of each kind, and the upper bound that they prove."""
    everybody = np.arange(len(values))
    best_prices, best_bound = np.zeros(len(capacity)), np.inf

    def ask(prices: Floats) -> tuple[float, Floats]:
        """The bound at these prices, and the devices that jobs would take."""
        reduced = values - counts @ prices
        rows = reduced.argmax(axis=1)
        bound = float(reduced[everybody, rows].sum() + prices @ capacity)
        return bound, counts[everybody, rows].sum(axis=0)

    # Begin where everything would be bought at the average worth of a device; then prices follow demand.
    prices = np.full(len(capacity), max(float(values.max(axis=1).sum()), 0.0) / max(1, int(capacity.sum())))
    for step in range(_MARKET_STEPS):
        bound, demand = ask(prices)
        if bound < best_bound:
            best_prices, best_bound = prices, bound
        ratio = np.clip((demand + 0.5) / (capacity + 0.5), 0.2, 5.0)
        prices = prices * ratio ** (0.8 * 0.92**step)
    step_size = 0.3
    prices = best_prices
    _, demand = ask(prices)
    for _ in range(_PRICE_STEPS):
        scale = np.maximum(prices, prices.mean() * 0.1 + 1e-12) / np.maximum(capacity, 1)
        prices = np.maximum(0.0, prices + step_size * scale * (demand - capacity))
        bound, demand = ask(prices)
        if bound < best_bound:
            best_prices, best_bound = prices, bound
        else:
            step_size *= 0.7
            prices = best_prices
            _, demand = ask(prices)
    return best_prices, best_bound


def _nothing(job: Choices) -> int:
    return int(np.flatnonzero(job.counts.sum(axis=1) == 0)[0])


def _held_rows(jobs: Sequence[Choices], capacity: Ints) -> list[int] | None:
    """What jobs have now, as rows; None if nobody has anything, or if it no longer fits."""
    if all(job.held < 0 for job in jobs):
        return None
    rows = [job.held if job.held >= 0 else _nothing(job) for job in jobs]
    taken = sum((job.counts[row] for job, row in zip(jobs, rows, strict=True)), np.zeros_like(capacity))
    return rows if (taken <= capacity).all() else None


def _good_choice(
    jobs: Sequence[Choices], capacity: Ints, prices: Floats, begin: Sequence[int] | None = None
) -> tuple[list[int], float]:
    """A choice that fits: the most profitable jobs first, then each job anew given the others, while that helps.

    `begin`: rows that fit, to begin with; without them, from nothing.
    """
    chosen = [_nothing(job) for job in jobs] if begin is None else list(begin)
    tops = [float(job.values.max()) for job in jobs]
    profits = [job.values - job.counts @ prices for job in jobs]
    highest = [float(profit.max()) for profit in profits]
    order = sorted(range(len(jobs)), key=lambda j: (-highest[j], j))
    left = capacity - sum((job.counts[row] for job, row in zip(jobs, chosen, strict=True)), np.zeros_like(capacity))
    for rounds in range(6):
        improved = False
        for j in order:
            job, now = jobs[j], chosen[j]
            if rounds and (job.values[now] >= tops[j] or not left.any()):
                continue
            room = left + job.counts[now]
            fitting = np.flatnonzero((job.counts <= room).all(axis=1))
            # At first by profit, so that nobody takes devices that are worth more to others; later by value.
            worth = (job.values if rounds else profits[j])[fitting]
            best = int(fitting[np.argmax(worth)])
            if rounds == 0 or job.values[best] > job.values[now] + 1e-12:
                improved = improved or best != now
                left, chosen[j] = room - job.counts[best], best
        if rounds == 0:
            left = _squeeze(jobs, chosen, left, order)
        if rounds and not improved:
            break
    return chosen, float(sum(job.values[row] for job, row in zip(jobs, chosen, strict=True)))


def _squeeze(jobs: Sequence[Choices], chosen: list[int], left: Ints, order: Sequence[int]) -> Ints:
    """Jobs left with nothing take their smallest set where others can shrink by a step at less loss; what is left."""
    heaps: dict[int, list[_Step]] = {}
    for j in [j for j in order if not jobs[j].counts[chosen[j]].any() and jobs[j].values.max() > 0][:_SQUEEZES]:
        job = jobs[j]
        able = np.flatnonzero((job.values > 0) & ((job.counts > 0).sum(axis=1) == 1))
        for kind in range(len(left)):
            rows = able[job.counts[able, kind] > 0]
            if not len(rows):
                continue
            row = int(rows[np.argmin(job.counts[rows, kind])])
            if kind not in heaps:
                steps = (_step(jobs, kind, other, at) for other, at in enumerate(chosen))
                heaps[kind] = [step for step in steps if step is not None]
                heapq.heapify(heaps[kind])
            missing = int(job.counts[row, kind] - left[kind])
            taken = _shrink(heaps[kind], chosen, missing, float(job.values[row]))
            if taken is None:
                continue
            for _, freed, other, at in taken:
                chosen[other] = at - 1
                left[kind] += freed
                further = _step(jobs, kind, other, at - 1)
                if further is not None:
                    heapq.heappush(heaps[kind], further)
            chosen[j], left = row, left - job.counts[row]
            break
    return left


#: what a device less costs, devices that the step frees, job, row that it leaves
_Step = tuple[float, int, int, int]


def _step(jobs: Sequence[Choices], kind: int, j: int, row: int) -> _Step | None:
    """From a row to the one before it, if both are of this kind alone: rows of one kind follow each other by size."""
    if row < 2 or jobs[j].counts[row, kind] < 2:
        return None
    here, before = jobs[j].counts[row].tolist(), jobs[j].counts[row - 1].tolist()
    freed = here[kind] - before[kind]
    if freed < 1 or before[kind] < 1 or sum(here) > here[kind] or sum(before) > before[kind]:
        return None
    return float(jobs[j].values[row] - jobs[j].values[row - 1]) / freed, freed, j, row


def _shrink(heap: list[_Step], chosen: Sequence[int], missing: int, gain: float) -> list[_Step] | None:
    """The cheapest steps that free `missing` devices, off the heap; None (and nothing taken) if they cost the gain."""
    taken: list[_Step] = []
    loss = 0.0
    while missing > 0 and heap:
        step = heapq.heappop(heap)
        if chosen[step[2]] != step[3]:
            continue  # the job has shrunk since
        taken.append(step)
        loss += step[0] * step[1]
        missing -= step[1]
        if loss >= gain:
            break
    if missing > 0 or loss >= gain:
        for step in taken:
            heapq.heappush(heap, step)
        return None
    return taken


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
