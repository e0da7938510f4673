"""What an operator may want of a cluster (`--objective`), as values of options.

jct         least sum of completion times       w_j * rate, w_j from `flowtime`, where all declare their work;
                                                speedup^CAUTION / (a_j + c) where not, a_j the service had
makespan    the last job done soonest           min(1, rate / need_j), need_j = the rate at which all end together
throughput  most normalised work per second     rate / rate on the smallest set of devices
efficiency  as jct, on sets of devices that lose at most a fifth of their speed
fairness    as jct, after what jobs need that fall behind their fair share (`fairness`)
cost        dollars: w_j * rate less what the devices cost (`money`); w_j here is that of jct
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.flowtime import flow_weights
from isoscale.scheduling.options import DeviceOptions
from isoscale.scheduling.state import Objective

__all__ = ["efficient_only", "option_values", "sizes_of"]

Floats = NDArray[np.float64]

_LEAST_EFFICIENCY = 0.8
#: Exponent q of h * s^q, what speed-up s is worth to a job whose end nobody knows; h is the chance that it ends soon.
#: With 1 devices would go where they finish most jobs per second if all guesses were right; the smaller q, the more
#: evenly they are shared. (Pollux's objective is q = -1 with h alike for all.)
CAUTION = 0.5
# What is left over after the makespan's needs goes by completion times, at so little worth that it takes nothing away.
_LEFT_OVER = 1e-3


def option_values(
    objective: Objective,
    options: Sequence[DeviceOptions],
    sizes: Sequence[Floats],
    remaining: Sequence[float],
    total: int,
    *,
    all_declared: bool = True,
    interval_s: float = 0.0,
) -> tuple[list[Floats], Floats]:
    """The value of each option of each job, and the worth of a unit of each job's work.

    `sizes` are the options' sizes in devices of the best kind (`sizes_of`), `total` is the cluster's. `remaining` is
    declared work, or expected work where `all_declared` is False; decisions are `interval_s` apart.
    """
    tables = [_by_size(job, size, total) for job, size in zip(options, sizes, strict=True)]
    if objective == "throughput":
        worth = np.array([1.0 / job.rates[1] if len(job.rates) > 1 else 0.0 for job in options])
    elif all_declared or objective == "cost":
        worth = flow_weights(tables, remaining, total)
    else:
        # The chance to finish in the next second, h: what is known of a job whose end is not. Sharing by guessed ends
        # as if they were known makes jobs overtake each other for nothing.
        worth = np.array([1.0 / max(work, 1e-300) for work in remaining])
    values = [weight * job.rates for weight, job in zip(worth, options, strict=True)]
    if objective in ("jct", "efficiency", "fairness") and not all_declared:
        values = [_cautious(value, job.rates) for value, job in zip(values, options, strict=True)]
    elif objective in ("jct", "efficiency", "fairness") and interval_s > 0:
        values = [
            _until_next_round(value, job.rates, work, interval_s)
            for value, job, work in zip(values, options, remaining, strict=True)
        ]
    if objective == "makespan":
        needs = _needs(tables, remaining, total)
        values = [
            np.minimum(1.0, job.rates / need) + _LEFT_OVER * value / max(1, len(options)) if need > 0 else value
            for job, need, value in zip(options, needs, values, strict=True)
        ]
    return values, worth


def efficient_only(job: DeviceOptions, sizes: Floats) -> DeviceOptions:
    """Without the sets on which devices are much slower than on the job's best set."""
    per_device = np.divide(job.rates, sizes, out=np.zeros_like(job.rates), where=sizes > 0)
    keep = per_device >= _LEAST_EFFICIENCY * per_device.max(initial=0.0)
    keep[0] = True
    return DeviceOptions(counts=job.counts[keep], rates=job.rates[keep])


def sizes_of(options: Sequence[DeviceOptions]) -> list[Floats]:
    """Sizes in devices of each job's fastest kind, by what single devices of other kinds give, averaged over jobs."""
    if not options:
        return []
    num_kinds = options[0].counts.shape[1]
    if num_kinds == 1:
        return [np.asarray(job.counts[:, 0], dtype=np.float64) for job in options]
    relative = np.full((len(options), num_kinds), np.nan)
    for row, job in zip(relative, options, strict=True):
        single = job.counts.sum(axis=1) == 1
        for counts, rate in zip(job.counts[single], job.rates[single], strict=True):
            row[int(counts.argmax())] = rate
        row /= np.nanmax(row) if not np.isnan(row).all() else 1.0
    known = ~np.isnan(relative)
    mean = np.where(known.any(axis=0), np.nansum(relative, axis=0) / np.maximum(known.sum(axis=0), 1), 1.0)
    return [np.asarray(job.counts @ mean, dtype=np.float64) for job in options]


def _cautious(values: Floats, rates: Floats) -> Floats:
    """h * s^CAUTION for values h * s, with s = 1 on the job's smallest set."""
    if len(rates) < 2:
        return values
    return np.asarray(values * np.where(rates > 0, rates / rates[1], 1.0) ** (CAUTION - 1.0))


def _until_next_round(values: Floats, rates: Floats, work: float, interval_s: float) -> Floats:
    """Values of a job that ends before the next decision: w * work, and a second for each second that it ends sooner.

    Its devices then stand idle until that decision, so speed beyond the end is worth nothing.
    """
    ends = rates * interval_s > work
    seconds_left = interval_s - work / np.where(ends, rates, 1.0)
    worth_of_all = values * work / np.where(ends, rates, 1.0)
    return np.where(ends, (worth_of_all + seconds_left) / interval_s, values)


def _by_size(job: DeviceOptions, sizes: Floats, total: int) -> Floats:
    """The best rate within each whole size; jobs of one kind only have their own entries."""
    whole = np.ceil(sizes - 1e-9).astype(np.int64)
    table = np.zeros(min(total, int(whole.max(initial=0))) + 1)
    fits = whole < len(table)
    np.maximum.at(table, whole[fits], job.rates[fits])
    return table


def _needs(tables: Sequence[Floats], remaining: Sequence[float], total: int) -> list[float]:
    """Rates that let all jobs end together, as early as the devices allow; all 0 if there are not enough to run all."""
    best = [np.maximum.accumulate(table) for table in tables]
    low = max((work / table[-1] for work, table in zip(remaining, best, strict=True) if table[-1] > 0), default=0.0)
    high = low * max(1, total) * max(1, len(tables)) + 1.0

    def devices(end: float) -> int:
        return sum(
            int(np.searchsorted(table, work / end * (1 - 1e-12)))
            for work, table in zip(remaining, best, strict=True)
            if table[-1] > 0
        )

    if low <= 0 or devices(high) > total:
        return [0.0] * len(tables)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if devices(middle) <= total else (middle, high)
    return [work / high if table[-1] > 0 else 0.0 for work, table in zip(remaining, best, strict=True)]
