"""Long series made short: enough points to draw, no spike lost. Pure NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoscale.timelines.values import Curve

__all__ = ["decimate", "downtime", "rate"]

Floats = NDArray[np.float64]

#: a figure is about this many pixels wide; more points cannot be seen
MAX_POINTS = 1200
#: a step that takes so many times as long as usual, and at least so many seconds, is downtime; of a few nobody can tell
_LONG, _SHORTEST_S, _FEW = 10.0, 1.0, 4


def decimate(t: Floats, value: Floats, limit: int = MAX_POINTS, *, gap: float = np.inf) -> Curve:
    """At most `limit` points, stretches of equal time; values that are not finite are left out.

    `t` ascends. Up to `limit` points come back as they are. Where two of them are more than `gap` apart is a break.
    """
    finite = np.isfinite(value)
    t, value = t[finite], value[finite]
    if len(t) <= limit:
        return _curve(t, value, value, value, gap)
    span = max(float(t[-1] - t[0]), np.finfo(float).tiny)
    bins = np.minimum(((t - t[0]) / span * limit).astype(np.int64), limit - 1)
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    counts = np.diff(starts, append=len(t))
    # Divided before they are added: a sum of huge losses must not overflow.
    weight = np.repeat(1.0 / counts, counts)
    mean = np.add.reduceat(value * weight, starts)
    middle = t[0] + np.add.reduceat((t - t[0]) * weight, starts)
    return _curve(middle, mean, np.minimum.reduceat(value, starts), np.maximum.reduceat(value, starts), gap)


def downtime(t: Floats) -> float:
    """How long a time between two steps is no step any more: nobody trained in most of it. Infinite for few steps."""
    if len(t) < _FEW:
        return float("inf")
    gaps = np.diff(t)
    return max(_LONG * float(np.median(gaps)), 0.02 * float(t[-1] - t[0]), _SHORTEST_S)


def rate(t: Floats, limit: int = 240, *, gap: float = np.inf) -> Curve:
    """Steps per second, given the times at which steps were committed, in stretches of equal time.

    In a time of more than `gap` between two steps there were none, but for the last moment.

    Each value holds from its time to the next; the last one only ends the curve. A stretch holds four steps on
    average, at least. The count of steps is taken as growing evenly between two of them, so that a stretch of 3.5
    steps is not drawn as 3 or 4 in turn, and a pause shows as low as it was.
    """
    if len(t) < 2 or t[-1] <= t[0]:
        return Curve()
    stretches = int(np.clip(len(t) // 4, 1, limit))
    edges = np.linspace(t[0], t[-1], stretches + 1)
    width = (t[-1] - t[0]) / stretches
    counts = np.arange(len(t), dtype=np.float64)
    usual = np.median(np.diff(t))
    late = np.flatnonzero(np.diff(t) > gap)
    times = np.insert(t, late + 1, t[late + 1] - usual)
    rates = np.diff(np.interp(edges, times, np.insert(counts, late + 1, counts[late]))) / width
    rates = np.append(rates, rates[-1])
    return _curve(edges, rates, rates, rates)


def _curve(t: Floats, value: Floats, low: Floats, high: Floats, gap: float = np.inf) -> Curve:
    def plain(array: Any) -> tuple[float, ...]:
        return tuple(array.tolist())

    breaks = np.flatnonzero(np.diff(t) > gap) + 1 if len(t) > 1 else np.array([], dtype=np.int64)
    return Curve(t=plain(t), value=plain(value), low=plain(low), high=plain(high), breaks=tuple(breaks.tolist()))
