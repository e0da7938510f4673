"""Who held how many devices from when to when, and how busy they were. Written by the backend, read by results.

Appends tuples and computes nothing while the simulation runs: adding up is a matter of arrays afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ledger", "level_over_time"]

Array = NDArray[np.float64]


class Ledger:
    """Intervals of one simulation; times in seconds, ends after beginnings."""

    def __init__(self) -> None:
        #: (job number, begin, end, devices): devices that a job held
        self.held: list[tuple[int, float, float, int]] = []
        #: (begin, end, devices x busy share): time in which a job made progress
        self.ran: list[tuple[float, float, float]] = []
        #: job number -> device-seconds in which its devices computed
        self.busy: dict[int, float] = {}
        #: (time, devices that work and are ours): the first entry is the beginning
        self.capacity: list[tuple[float, int]] = []
        #: (job, from, to, kind, devices), where devices are rented
        self.rented: list[tuple[int, float, float, str, int]] = []
        #: (time, devices wanted back, seconds until the last one was free)
        self.reclaims: list[tuple[float, int, float]] = []

    def device_seconds(self) -> float:
        """Allocated device-seconds."""
        # Exact sums: whoever reads the log gets the same, in whatever order.
        return math.fsum((end - begin) * devices for _, begin, end, devices in self.held)

    def busy_seconds(self) -> float:
        """Device-seconds in which devices computed."""
        return math.fsum(self.busy.values())

    def capacity_seconds(self, begin: float, end: float) -> float:
        """Device-seconds that there were between two times."""
        total = 0.0
        edges = [*self.capacity[1:], (float("inf"), 0)]
        for (since, devices), (until, _) in zip(self.capacity, edges, strict=True):
            total += devices * max(0.0, min(until, end) - max(since, begin))
        return total


def level_over_time(begins: Sequence[float], ends: Sequence[float], levels: Sequence[float], edges: Array) -> Array:
    """Mean height of the intervals' sum in each bin between `edges`.

    >>> level_over_time([0.0, 5.0], [10.0, 20.0], [4.0, 2.0], np.array([0.0, 10.0, 20.0]))
    array([5., 2.])
    """
    # The integral up to x of one interval is level * clip(x - begin, 0, end - begin): two ramps. All ramps together are
    # a piecewise linear function whose value at the edges follows from sorted cumulative sums.
    points = np.concatenate([np.asarray(begins, dtype=float), np.asarray(ends, dtype=float)])
    slopes = np.concatenate([np.asarray(levels, dtype=float), -np.asarray(levels, dtype=float)])
    order = np.argsort(points, kind="stable")
    points, slopes = points[order], slopes[order]
    slope_sum = np.concatenate([[0.0], np.cumsum(slopes)])
    moment_sum = np.concatenate([[0.0], np.cumsum(slopes * points)])
    upto = np.searchsorted(points, edges, side="right")
    integral = slope_sum[upto] * edges - moment_sum[upto]
    result: Array = np.diff(integral) / np.diff(edges)
    return result
