"""Series of a run for a chart: a window of steps or time, at most so many points, no spike lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isoscale.cluster.records.buckets import Axis, Buckets, Curve, rates, thinned
from isoscale.cluster.records.run_log import NOT_LOGGED, RunLog, Series
from isoscale.timelines.fields import instant, items, number, whole

__all__ = ["POINTS", "SeriesShown", "SeriesWindow", "series_window"]

#: of one series, at least and at most
POINTS = (2, 2_000)
#: bytes of the log that a close look reads
_CLOSE_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesShown(Curve):
    name: str
    #: step: of every step · log: what the script logged · batch: changes of the batch size, which hold until the next
    source: str
    last: float | None = None
    #: values that are not finite, and where the last of them are
    num_bad: int = 0
    bad: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesWindow:
    by: Axis
    #: what was asked for, or all there is
    begin: float
    end: float
    first_step: float | None
    last_step: float | None
    first_s: float | None
    last_s: float | None
    #: of the log so far, and its size: less means that reading goes on
    read_bytes: int
    size: int
    num_names: int
    series: tuple[SeriesShown, ...]


def series_window(
    log: RunLog, *, by: Axis, begin: float | None, end: float | None, points: int, names: Sequence[str] = ()
) -> SeriesWindow:
    """The caller holds the log's lock and has updated it."""
    first, last = log.first, log.last
    axis = 0 if by == "step" else 1
    low, high = -math.inf if begin is None else begin, math.inf if end is None else end
    begins = (first[axis] if first else 0.0) if begin is None else begin
    ends = (last[axis] if last else 0.0) if end is None else end
    rate = {"steps_per_s": log.series["step_s"]} if "step_s" in log.series else {}
    every = {**log.series, **rate}
    chosen = {name: one for name, one in every.items() if not names or name in names}
    closer = _closer(log, chosen, by, low, high, points)
    shown = [_shown(name, closer.get(one.name, one), by, low, high, points) for name, one in chosen.items()]
    shown += [one for one in _batches(log, by, begins, ends) if not names or one.name in names]
    return SeriesWindow(
        by=by,
        begin=begins,
        end=ends,
        first_step=first[0] if first else None,
        last_step=last[0] if last else None,
        first_s=first[1] if first else None,
        last_s=last[1] if last else None,
        read_bytes=log.offset,
        size=log.size,
        num_names=len(every),
        series=tuple(one for one in shown if one.x or one.num_bad),
    )


def _shown(name: str, one: Series, by: Axis, low: float, high: float, points: int) -> SeriesShown:
    rows = one.buckets.window(low, high, by)
    is_rate = name == "steps_per_s"
    curve = rates(rows, points, by) if is_rate else thinned(rows, points, by)
    bad = tuple(sorted({pair[0 if by == "step" else 1] for pair in one.bad}))
    value = one.last
    if is_rate:
        value = 1.0 / value if value else None
    return SeriesShown(
        name=name,
        source=one.source,
        x=curve.x,
        value=curve.value,
        low=curve.low,
        high=curve.high,
        last=value if value is not None and math.isfinite(value) else None,
        num_bad=0 if is_rate else one.num_bad,
        bad=() if is_rate else tuple(x for x in bad if low <= x <= high),
    )


def _closer(
    log: RunLog, chosen: dict[str, Series], by: Axis, low: float, high: float, points: int
) -> dict[str, Series]:
    """Where buckets are too coarse for the window: its lines, read again."""
    coarse = [
        one
        for one in chosen.values()
        if one.buckets.num_values_per_bucket > 1 and len(one.buckets.window(low, high, by)) * 4 < points
    ]
    if not coarse:
        return {}
    begin, end = low, high
    if by == "time":
        inside = [one for one in log.stretches if one.last_s >= low and one.first_s <= high]
        begin = min((one.first_step for one in inside), default=0.0)
        end = max((one.last_step for one in inside), default=0.0)
    events = log.raw_steps(begin, end, _CLOSE_BYTES)
    if not events:
        return {}
    columns: dict[str, tuple[list[float], list[float], list[float]]] = {}
    for event in events:
        t, step = instant(event), whole(event, "step")
        if t is None or step is None or (by == "time" and not low <= t <= high):
            continue
        is_step = event["event"] == "step"
        keys = ("loss", "seconds", "executors", "noise_scale") if is_step else event.keys() - NOT_LOGGED
        for key in keys:
            value = number(event, key)
            if value is not None:
                name = "step_s" if is_step and key == "seconds" else key
                for column, one in zip(columns.setdefault(name, ([], [], [])), (float(step), t, value), strict=True):
                    column.append(one)
    made = {}
    for series in coarse:
        if series.name in columns:
            # As it is, without merging: the window is small.
            near = Series(series.name, series.source, Buckets(most=2**30))
            near.extend(*columns[series.name])
            near.last, near.num_bad, near.bad = series.last, series.num_bad, series.bad
            made[series.name] = near
    return made


def _batches(log: RunLog, by: Axis, low: float, high: float) -> list[SeriesShown]:
    """The batch size and the first learning rate: they hold from one change to the next."""
    sizes: dict[float, float] = {}
    rates_: dict[float, float] = {}
    for event in log.batches:
        step, t = whole(event, "step"), instant(event)
        x = step if by == "step" else t
        size, before = number(event, "to"), number(event, "from")
        if x is None or size is None:
            continue
        if not sizes and before is not None and log.first:
            sizes[log.first[0 if by == "step" else 1]] = before
        sizes[x] = size
        found = items(event, "learning_rates")
        if found and isinstance(found[0], int | float):
            rates_[x] = float(found[0])
    shown = []
    for name, values in (("batch_size", sizes), ("learning_rate", rates_)):
        if name in log.series or not values:
            continue
        x_, value = _held(values, low, high)
        shown.append(
            SeriesShown(
                name=name, source="batch", x=x_, value=value, low=value, high=value, last=list(values.values())[-1]
            )
        )
    return shown


def _held(values: dict[float, float], low: float, high: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A point per change in the window, one at its beginning for what held then, and one at its end."""
    x = np.array(sorted(values))
    y = np.array([values[one] for one in x.tolist()])
    begun = int(np.searchsorted(x, low, side="right"))
    inside = (x > low) & (x <= high)
    head = [(low, float(y[begun - 1]))] if begun else []
    points = [*head, *zip(x[inside].tolist(), y[inside].tolist(), strict=True)]
    if points and points[-1][0] < high:
        points.append((high, points[-1][1]))
    return tuple(one[0] for one in points), tuple(one[1] for one in points)
