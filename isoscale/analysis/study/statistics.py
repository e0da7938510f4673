"""Summaries of samples: mean, percentiles, their intervals where a sample is small, and curves for figures.

Percentiles interpolate linearly, as the simulator's do. An interval is distribution-free: the order statistics between
which the true percentile lies with 95 % confidence, by the binomial distribution (Conover, Practical Nonparametric
Statistics, section 3.2); its ends are None where the sample is too small to bound that side.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from isoscale.analysis.study.trace import SIZES, Jobs

__all__ = ["INTERVAL_METHOD", "SMALL", "Figures", "by_size", "cdf", "gini", "spread"]

Floats = NDArray[np.float64]
Figures = dict[str, object]

#: samples below which percentiles carry an interval
SMALL = 1000
INTERVAL_METHOD = "95 % confidence, order statistics by the binomial distribution, no assumption about the shape"
_LEVELS = (50, 90, 99)
_POINTS = 101


def spread(values: Floats) -> Figures:
    """Count, mean, p50, p90, p99 of the values that are numbers; intervals if there are fewer than SMALL.

    >>> spread(np.array([1.0, 2.0, 3.0]))["p50"], spread(np.array([]))["mean"]
    (2.0, None)
    """
    known = values[np.isfinite(values)]
    count = len(known)
    if not count:
        return {"count": 0, "mean": None, **{f"p{level}": None for level in _LEVELS}}
    ordered = np.sort(known)
    found: Figures = {"count": count, "mean": math.fsum(ordered.tolist()) / count}
    for level in _LEVELS:
        found[f"p{level}"] = float(np.percentile(ordered, level))
    if count < SMALL:
        for level in _LEVELS:
            low, high = interval_ranks(count, level / 100)
            value = float(np.percentile(ordered, level))
            # Of a few samples the interpolated value may lie outside; a wider interval is no less sure.
            found[f"p{level}_interval"] = [
                None if low is None else min(value, float(ordered[low])),
                None if high is None else max(value, float(ordered[high])),
            ]
    return found


def by_size(values: Floats, jobs: Jobs) -> dict[str, Figures]:
    """`spread` of all jobs with devices, and of each class of sizes."""
    return {size: spread(values[jobs.of_size(size)]) for size in ("all", *(name for name, _, _ in SIZES))}


@lru_cache(maxsize=4096)
def interval_ranks(count: int, level: float, confidence: float = 0.95) -> tuple[int | None, int | None]:
    """Ranks (from 0) of the samples around the true percentile; None where no sample bounds that side.

    >>> interval_ranks(10, 0.5), interval_ranks(10, 0.99)
    ((1, 8), (8, None))
    """
    tail = (1.0 - confidence) / 2
    logs = np.array(
        [
            math.lgamma(count + 1)
            - math.lgamma(k + 1)
            - math.lgamma(count - k + 1)
            + k * math.log(level)
            + (count - k) * math.log1p(-level)
            for k in range(count + 1)
        ]
    )
    below = np.cumsum(np.exp(logs))
    # Sample number r (from 1) lies above the percentile with probability P(Binomial <= r - 1).
    low = int(np.searchsorted(below, tail, side="right"))
    high = int(np.searchsorted(below, 1.0 - tail, side="left")) + 1
    return (low - 1 if low >= 1 else None), (high - 1 if high <= count else None)


def cdf(values: Floats) -> list[list[float]]:
    """At most 101 points [value, share of samples at most that], the smallest and the largest among them."""
    ordered = np.sort(values[np.isfinite(values)])
    if not len(ordered):
        return []
    at = np.unique(np.linspace(0, len(ordered) - 1, min(_POINTS, len(ordered))).round().astype(int))
    return [[float(ordered[i]), round((int(i) + 1) / len(ordered), 6)] for i in at]


def gini(amounts: NDArray[np.float64] | NDArray[np.int64]) -> float | None:
    """0: everybody has the same; towards 1: one has all.

    >>> gini(np.array([1.0, 1.0])), gini(np.array([0.0, 1.0]))
    (0.0, 0.5)
    """
    ordered = np.sort(amounts)
    total = float(ordered.sum())
    if not total:
        return None
    ranks = np.arange(1, len(ordered) + 1)
    return float(2 * (ranks * ordered).sum() / (len(ordered) * total) - (len(ordered) + 1) / len(ordered))
