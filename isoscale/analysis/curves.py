"""Long series made short: enough points to draw, no spike lost. Pure NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoscale.analysis.values import Curve

__all__ = ["decimate", "rate"]

Floats = NDArray[np.float64]

#: a figure is about this many pixels wide; more points cannot be seen
MAX_POINTS = 1200


def decimate(t: Floats, value: Floats, limit: int = MAX_POINTS) -> Curve:
    """At most `limit` points, stretches of equal time; values that are not finite are left out.

    `t` ascends. Up to `limit` points come back as they are.
    """
    finite = np.isfinite(value)
    t, value = t[finite], value[finite]
    if len(t) <= limit:
        return _curve(t, value, value, value)
    span = max(float(t[-1] - t[0]), np.finfo(float).tiny)
    bins = np.minimum(((t - t[0]) / span * limit).astype(np.int64), limit - 1)
    starts = np.flatnonzero(np.diff(bins, prepend=-1))
    counts = np.diff(starts, append=len(t))
    # Divided before they are added: a sum of huge losses must not overflow.
    weight = np.repeat(1.0 / counts, counts)
    mean = np.add.reduceat(value * weight, starts)
    middle = t[0] + np.add.reduceat((t - t[0]) * weight, starts)
    return _curve(middle, mean, np.minimum.reduceat(value, starts), np.maximum.reduceat(value, starts))


def rate(t: Floats, limit: int = 240) -> Curve:
    """Steps per second, given the times at which steps were committed, in stretches of equal time.

    Each value holds from its time to the next; the last one only ends the curve. A stretch holds four steps on
    average, at least. The count of steps is taken as growing evenly between two of them, so that a stretch of 3.5
    steps is not drawn as 3 or 4 in turn, and a pause shows as low as it was.
    """
    if len(t) < 2 or t[-1] <= t[0]:
        return Curve()
    stretches = int(np.clip(len(t) // 4, 1, limit))
    edges = np.linspace(t[0], t[-1], stretches + 1)
    width = (t[-1] - t[0]) / stretches
    rates = np.diff(np.interp(edges, t, np.arange(len(t), dtype=np.float64))) / width
    rates = np.append(rates, rates[-1])
    return _curve(edges, rates, rates, rates)


def _curve(t: Floats, value: Floats, low: Floats, high: Floats) -> Curve:
    def plain(array: Any) -> tuple[float, ...]:
        return tuple(array.tolist())

    return Curve(t=plain(t), value=plain(value), low=plain(low), high=plain(high))
