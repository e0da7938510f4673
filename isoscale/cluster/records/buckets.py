"""A series of any length in bounded memory: values in order, in buckets of equally many; no spike is lost.

A bucket keeps where it begins, and the mean and the extremes of its values. When there are too many buckets, neighbours
are merged, so a series of a million values costs what one of ten thousand does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Axis", "Buckets", "Curve", "thinned"]

Floats = NDArray[np.float64]
#: over committed steps, or over unix seconds
Axis = Literal["step", "time"]

#: buckets are merged when there are twice as many
MOST = 8192
_X, _T, _LOW, _HIGH, _SUM, _COUNT, _LAST_X, _LAST_T = range(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points of a curve: where each begins, its mean, its extremes."""

    x: tuple[float, ...] = ()
    value: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


class Buckets:
    """Of one series. `x` (steps) and `t` (seconds) must not fall; `rewind` goes back."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._width = 1
        self._full: Floats = np.empty((0, 8))
        #: values of the bucket that is not full yet, one a row
        self._rest: Floats = np.empty((0, 8))

    @property
    def num_bytes(self) -> int:
        return self._full.nbytes + self._rest.nbytes

    @property
    def num_values_per_bucket(self) -> int:
        return self._width

    def extend(self, x: Floats, t: Floats, value: Floats) -> None:
        """Finite values, in order."""
        if not len(x):
            return
        ones = np.ones(len(x))
        self._rest = np.concatenate([self._rest, np.column_stack([x, t, value, value, value, ones, x, t])])
        self._fill()
        while len(self._full) >= 2 * self._most:
            self._width *= 2
            odd = len(self._full) % 2
            kept = self._full[: len(self._full) - odd]
            # One bucket that has no neighbour: its rows cannot be had back, so it waits as one row.
            self._rest = np.concatenate([self._full[len(kept) :], self._rest])
            self._full = _merged(kept, 2)
            self._fill()

    def rewind(self, x: float) -> None:
        """Forget what begins at `x` or after it: it is done again."""
        self._full = self._full[self._full[:, _X] < x]
        self._rest = self._rest[self._rest[:, _X] < x]

    def window(self, begin: float, end: float, by: Axis) -> Floats:
        """Rows of buckets that reach into [begin, end]."""
        rows = np.concatenate([self._full, self._rest])
        first, last = (_X, _LAST_X) if by == "step" else (_T, _LAST_T)
        return rows[(rows[:, last] >= begin) & (rows[:, first] <= end)]

    def _fill(self) -> None:
        counts = np.cumsum(self._rest[:, _COUNT])
        if not len(counts) or counts[-1] < self._width:
            return
        # Rows are single values, but for one that was merged before: it ends a bucket early.
        if self._rest[0, _COUNT] > 1:
            take = int(np.searchsorted(counts, self._width, side="left")) + 1
            self._full = np.concatenate([self._full, _merged(self._rest[:take], take)])
            self._rest = self._rest[take:]
        whole = len(self._rest) // self._width * self._width
        if whole:
            self._full = np.concatenate([self._full, _merged(self._rest[:whole], self._width)])
            self._rest = self._rest[whole:]


def thinned(rows: Floats, points: int, by: Axis) -> Curve:
    """At most `points` points."""
    if len(rows) > points:
        each = -(-len(rows) // points)
        whole = len(rows) // each * each
        rows = np.concatenate([_merged(rows[:whole], each), _merged(rows[whole:], max(1, len(rows) - whole))])
    first = rows[:, _X if by == "step" else _T]
    return Curve(
        x=tuple(np.maximum.accumulate(first).tolist()) if len(first) else (),
        value=_shown(rows[:, _SUM] / rows[:, _COUNT]),
        low=_shown(rows[:, _LOW]),
        high=_shown(rows[:, _HIGH]),
    )


def rates(rows: Floats, points: int, by: Axis) -> Curve:
    """From buckets of seconds per step: steps per second, pauses included, which the mean of seconds leaves out."""
    curve = thinned(rows, points, by)
    if len(rows) < 2:
        return Curve()
    if len(rows) > points:
        each = -(-len(rows) // points)
        rows = rows[::each]
    steps, seconds = np.diff(rows[:, _X]), np.diff(rows[:, _T])
    value = np.divide(steps, seconds, out=np.zeros_like(steps), where=seconds > 0)
    value = np.append(value, value[-1])
    with np.errstate(divide="ignore"):
        low, high = 1.0 / np.array(curve.high), 1.0 / np.array(curve.low)
    high = np.where(np.isfinite(high), high, value)
    low = np.where(np.isfinite(low), low, value)
    return Curve(
        x=curve.x,
        value=_shown(value),
        low=_shown(np.minimum(low, value)),
        high=_shown(np.maximum(high, value)),
    )


def _shown(values: Floats) -> tuple[float, ...]:
    """Seven digits: more than a chart has pixels, and half as long to send."""
    return tuple(float(f"{value:.7g}") for value in values.tolist())


def _merged(rows: Floats, each: int) -> Floats:
    """Every `each` rows as one; their number is a multiple of it."""
    if not len(rows):
        return rows
    groups = rows.reshape(-1, each, 8)
    made = groups[:, 0].copy()
    made[:, _LOW] = groups[:, :, _LOW].min(axis=1)
    made[:, _HIGH] = groups[:, :, _HIGH].max(axis=1)
    made[:, _SUM] = groups[:, :, _SUM].sum(axis=1)
    made[:, _COUNT] = groups[:, :, _COUNT].sum(axis=1)
    made[:, _LAST_X] = groups[:, -1, _LAST_X]
    made[:, _LAST_T] = groups[:, -1, _LAST_T]
    return made
