"""Distributions of percentages in bounded memory: exact counts in steps of 0.1 %, exact sums in thousandths.

Utilisation comes in hundreds of millions of samples. Each is a percentage with few digits, so a histogram says what a
list would: quantiles are exact where all samples are multiples of 0.1, else off by less than one step, which
`exact` tells. Sums are of whole thousandths and exact up to 2**53.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["BINS", "SCALE", "Sketches", "Utilisation"]

#: 0, 0.1, ... 100 %
BINS = 1001
#: samples are whole numbers of 1/SCALE percent
SCALE = 1000
_STEP = SCALE * 100 // (BINS - 1)

Ints = NDArray[np.int64]


class Sketches:
    """Histograms of several groups of samples."""

    __slots__ = ("counts", "inexact", "sums")

    def __init__(self, groups: int) -> None:
        self.counts: Ints = np.zeros((groups, BINS), dtype=np.int64)
        #: thousandths of a percent
        self.sums: Ints = np.zeros(groups, dtype=np.int64)
        #: samples between two steps
        self.inexact = 0

    def add(self, group: Ints, value: Ints) -> None:
        """Samples in thousandths of a percent, 0 to 100,000, each with its group."""
        groups = len(self.sums)
        bins, between = np.divmod(value, _STEP)
        self.inexact += int(np.count_nonzero(between))
        self.counts += np.bincount(group * BINS + bins, minlength=groups * BINS).reshape(groups, BINS)
        self.sums += np.bincount(group, weights=value, minlength=groups).astype(np.int64)

    def figures(self, groups: NDArray[np.bool_] | slice = slice(None)) -> dict[str, float | int | None]:
        """Count, mean and percentiles of the chosen groups together, in percent."""
        counts = self.counts[groups].sum(axis=0)
        count = int(counts.sum())
        if not count:
            return {"count": 0, "mean": None, "p50": None, "p90": None, "p95": None, "p99": None}
        levels = {f"p{level}": self._quantile(counts, count, level / 100) for level in (50, 90, 95, 99)}
        return {"count": count, "mean": int(self.sums[groups].sum()) / SCALE / count, **levels}

    def cdf(self, groups: NDArray[np.bool_] | slice = slice(None)) -> list[list[float]]:
        """[percent, share of samples at most that], in whole percents."""
        counts = self.counts[groups].sum(axis=0)
        total = int(counts.sum())
        if not total:
            return []
        steps = (BINS - 1) // 100
        below = np.cumsum(counts)[::steps] / total
        return [[float(percent), round(float(share), 6)] for percent, share in enumerate(below)]

    def _quantile(self, counts: Ints, count: int, level: float) -> float:
        """As np.percentile: linear between the two samples around the place."""
        place = level * (count - 1)
        below = np.cumsum(counts)
        low, high = (int(np.searchsorted(below, rank, side="right")) for rank in (math.floor(place), math.ceil(place)))
        share = place - math.floor(place)
        # Whole steps are multiplied first: 0.1 * 3 is not 0.3.
        return (low * _STEP * (1 - share) + high * _STEP * share) / SCALE


@dataclass(slots=True)
class Utilisation:
    """Samples of devices and hosts, joined with the attempts that held the devices."""

    #: by group of attempts; group 0 is devices that nobody held
    devices: Sketches
    #: group of each attempt, for subjects to choose by
    group_of_attempt: Ints
    #: per attempt: thousandths of a percent summed up, and samples
    attempt_sums: NDArray[np.float64]
    attempt_counts: Ints
    #: attempts whose devices shared their machine with another job for most of their time
    shared: NDArray[np.bool_]
    #: by hour since the trace's zero: thousandths summed up, and samples
    hour_sums: NDArray[np.float64]
    hour_counts: Ints
    first_hour: int
    #: group 0 processor, group 1 memory of hosts
    hosts: Sketches = field(default_factory=lambda: Sketches(2))
    #: seconds that one sample stands for
    every_s: float = 60.0
    #: samples of devices that said NA
    offline: int = 0
    #: of machines that no list and no attempt names
    unknown_machines: int = 0
