"""Devices in use over time: step functions from intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isoscale.analysis.study.trace import Trace

__all__ = ["Steps", "in_use", "is_timed"]

Floats = NDArray[np.float64]


class Steps:
    """A level that changes at certain times; 0 before the first."""

    def __init__(self, begins: Floats, ends: Floats, amounts: Floats) -> None:
        times = np.concatenate([begins, ends])
        changes = np.concatenate([amounts, -amounts])
        order = np.argsort(times, kind="stable")
        self.times: Floats = times[order]
        self.levels: Floats = np.cumsum(changes[order])

    def at(self, times: Floats) -> Floats:
        """The level just before each time: what was held when somebody waited up to then."""
        if not len(self.times):
            return np.zeros_like(times)
        place = np.searchsorted(self.times, times, side="left") - 1
        return np.where(place >= 0, self.levels[np.maximum(place, 0)], 0.0)

    @property
    def most(self) -> float:
        """The highest level that lasted."""
        if not len(self.times):
            return 0.0
        lasting = np.diff(self.times, append=np.inf) > 0
        return float(self.levels[lasting].max(initial=0.0))


def is_timed(trace: Trace) -> bool:
    """Whether it is known when devices were held, not only for how long."""
    return bool(np.isfinite(trace.jobs.start_s).any())


def in_use(trace: Trace, jobs: NDArray[np.bool_] | None = None) -> Steps:
    held = trace.holdings
    chosen = np.isfinite(held.begin_s) & np.isfinite(held.end_s)
    if jobs is not None:
        chosen &= jobs[held.job]
    return Steps(held.begin_s[chosen], held.end_s[chosen], held.devices[chosen])
