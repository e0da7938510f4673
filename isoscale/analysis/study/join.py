"""Joins samples of devices with the attempts that held them: which job's device was how busy.

An attempt holds devices of machines from its start to its end. All stays on one device are sorted by time, those of
all devices lie behind one another in one array of keys (device, time), and a sample finds its attempt by bisection.
Where the log has two attempts on one device at once, the later start counts while it lasts.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from isoscale.analysis.study.sketch import Sketches, Utilisation
from isoscale.analysis.study.trace import Trace

__all__ = ["Joiner", "shared_machines"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: devices of a machine that have room in a key, and seconds
_SLOTS = 64
_SPAN = 1 << 34
_HOUR = 3600
#: exact numbers of machines up to here are told apart
_MOST_MACHINES = 32


class Joiner:
    """Takes samples block by block; gives the utilisation at the end."""

    def __init__(self, trace: Trace) -> None:
        self._codes = {name: code for code, name in enumerate(trace.machines.names) if name}
        self._known = len(self._codes)
        self._next = len(trace.machines.names)
        attempts = trace.attempts
        shared = shared_machines(trace)
        groups = _groups(trace, shared)
        count = len(attempts)
        self._used = Utilisation(
            devices=Sketches(int(groups.max(initial=0)) + 1),
            group_of_attempt=groups,
            attempt_sums=np.zeros(count),
            attempt_counts=np.zeros(count, dtype=np.int64),
            shared=shared,
            hour_sums=np.zeros(0),
            hour_counts=np.zeros(0, dtype=np.int64),
            first_hour=0,
        )
        self._unknown: set[int] = set()
        self._sort_stays(trace)

    def machine(self, name: str) -> int:
        """The code of a machine; one that no job ran on gets a new one."""
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = max(1, self._next)
            self._next = code + 1
            self._used.unknown_machines += 1
        return code

    def add(self, times: Ints, machines: Ints, values: Ints) -> None:
        """Samples: one line per time and machine, one column per device; below 0 is offline."""
        there = values >= 0
        self._used.offline += int(there.size - np.count_nonzero(there))
        lines, device = np.nonzero(there)
        value = values[lines, device]
        t = times[lines]
        slot = machines[lines] * _SLOTS + device
        attempt = self._holder(slot, t)
        held = attempt >= 0
        group = (
            np.where(held, self._used.group_of_attempt[np.where(held, attempt, 0)], 0)
            if len(self._used.group_of_attempt)
            else np.zeros(len(value), dtype=np.int64)
        )
        self._used.devices.add(group, value)
        if held.any():
            which, amount = attempt[held], value[held]
            self._used.attempt_sums += np.bincount(which, weights=amount, minlength=len(self._used.attempt_sums))
            self._used.attempt_counts += np.bincount(which, minlength=len(self._used.attempt_counts))
        self._add_hours(t // _HOUR, value)

    def add_host(self, group: int, values: Ints) -> None:
        """Samples of processors (0) or memory (1); below 0 is none."""
        known = values[values >= 0]
        self._used.hosts.add(np.full(len(known), group, dtype=np.int64), known)

    def utilisation(self) -> Utilisation:
        return self._used

    def _holder(self, slot: Ints, t: Ints) -> Ints:
        """The attempt that held each device then; -1 for none."""
        if not len(self._keys):
            return np.full(len(slot), -1, dtype=np.int64)
        at = np.searchsorted(self._keys, slot * _SPAN + t, side="right") - 1
        found = np.maximum(at, 0)
        fits = (at >= 0) & (self._slot[found] == slot) & (t < self._ends[found])
        return np.where(fits, self._attempt[found], -1)

    def _sort_stays(self, trace: Trace) -> None:
        places, attempts = trace.places, trace.attempts
        columns: list[tuple[Ints, Ints]] = []
        for device in range(_SLOTS - 1):
            which = np.flatnonzero(places.mask >> device & 1)
            if len(which):
                columns.append((places.attempt[which], places.machine[which] * _SLOTS + device))
        attempt = np.concatenate([one for one, _ in columns]) if columns else np.zeros(0, dtype=np.int64)
        slot = np.concatenate([one for _, one in columns]) if columns else np.zeros(0, dtype=np.int64)
        start, end = attempts.start_s[attempt], attempts.end_s[attempt]
        known = np.isfinite(start) & np.isfinite(end) & (end > start)
        order = np.flatnonzero(known)[np.lexsort((attempt[known], start[known], slot[known]))]
        stays = _apart(slot[order], start[order], end[order], attempt[order])
        self._slot, begins, self._ends, self._attempt = stays
        # A sample at second t belongs to who holds the device in it: from the second that begins at or after a start.
        self._keys = self._slot * _SPAN + np.ceil(begins).astype(np.int64)

    def _add_hours(self, hours: Ints, values: Ints) -> None:
        used = self._used
        low, high = int(hours.min(initial=1 << 62)), int(hours.max(initial=-(1 << 62)))
        if low > high or high - low > 1 << 20:
            return
        if not len(used.hour_counts):
            used.first_hour = low
        first, last = min(low, used.first_hour), max(high, used.first_hour + len(used.hour_counts) - 1)
        if last - first > 1 << 20:  # a date that is out of this world
            return
        if first < used.first_hour or last >= used.first_hour + len(used.hour_counts):
            before, after = used.first_hour - first, last - used.first_hour - len(used.hour_counts) + 1
            used.hour_sums = np.pad(used.hour_sums, (before, max(0, after)))
            used.hour_counts = np.pad(used.hour_counts, (before, max(0, after)))
            used.first_hour = first
        place = hours - used.first_hour
        used.hour_sums += np.bincount(place, weights=values, minlength=len(used.hour_sums))
        used.hour_counts += np.bincount(place, minlength=len(used.hour_counts))


def _apart(slot: Ints, start: Floats, end: Floats, attempt: Ints) -> tuple[Ints, Floats, Floats, Ints]:
    """Stays, sorted by device and start, cut so that no two on a device overlap."""
    same = slot[1:] == slot[:-1]
    # The latest end so far on the same device: ends are raised by device, so that a new device begins anew.
    raised = slot * _SPAN + np.ceil(end).astype(np.int64)
    latest = np.maximum.accumulate(raised) - slot * _SPAN
    crowded = np.unique(slot[1:][same & (start[1:] < latest[:-1])])
    if not len(crowded):
        return slot, start, end, attempt
    alone = ~np.isin(slot, crowded)
    columns: list[list[float]] = [[], [], [], []]
    bounds = np.searchsorted(slot, crowded, side="left"), np.searchsorted(slot, crowded, side="right")
    for device, first, last in zip(crowded.tolist(), *(bound.tolist() for bound in bounds), strict=True):
        for begin, until, who in _cut(start[first:last].tolist(), end[first:last].tolist()):
            for column, value in zip(columns, (device, begin, until, int(attempt[first + who])), strict=True):
                column.append(value)
    slots = np.concatenate([slot[alone], np.array(columns[0], dtype=np.int64)])
    starts = np.concatenate([start[alone], np.array(columns[1])])
    order = np.lexsort((starts, slots))
    ends = np.concatenate([end[alone], np.array(columns[2])])
    attempts = np.concatenate([attempt[alone], np.array(columns[3], dtype=np.int64)])
    return slots[order], starts[order], ends[order], attempts[order]


def _cut(starts: list[float], ends: list[float]) -> Iterator[tuple[float, float, int]]:
    """(begin, end, number) of pieces in which the stay with the latest start counts; starts ascend."""
    times = sorted({*starts, *ends})
    waiting: list[tuple[float, int]] = []
    nearest = 0
    for begin, until in itertools.pairwise(times):
        while nearest < len(starts) and starts[nearest] <= begin:
            heapq.heappush(waiting, (-starts[nearest], -nearest))
            nearest += 1
        while waiting and ends[-waiting[0][1]] <= begin:
            heapq.heappop(waiting)
        if waiting:
            yield begin, until, -waiting[0][1]


def _groups(trace: Trace, shared: NDArray[np.bool_]) -> Ints:
    """Attempts that subjects never tell apart have one number, from 1: status, devices, machines, shared or not."""
    attempts = trace.attempts
    if not len(attempts):
        return np.zeros(0, dtype=np.int64)
    keys = np.stack(
        [
            trace.jobs.status[attempts.job],
            np.ceil(attempts.devices).astype(np.int64),
            np.minimum(attempts.machines, _MOST_MACHINES),
            shared.astype(np.int64),
        ]
    )
    _, groups = np.unique(keys, axis=1, return_inverse=True)
    numbered: Ints = groups.reshape(-1).astype(np.int64) + 1
    return numbered


def shared_machines(trace: Trace) -> NDArray[np.bool_]:
    """Which attempts had another job beside them on one of their machines for more than half of their time there."""
    places, attempts = trace.places, trace.attempts
    together, alone = np.zeros(len(attempts)), np.zeros(len(attempts))
    if not len(places):
        return np.zeros(len(attempts), dtype=np.bool_)
    start, end = attempts.start_s[places.attempt], attempts.end_s[places.attempt]
    known = np.flatnonzero(np.isfinite(start) & np.isfinite(end) & (end > start))
    order = known[np.argsort(places.machine[known], kind="stable")]
    bounds = np.flatnonzero(np.diff(places.machine[order], prepend=-1))
    for rows in np.split(order, bounds[1:]) if len(order) else []:
        begins, ends = start[rows], end[rows]
        times = np.concatenate([begins, ends])
        steps = np.repeat(np.array([1, -1]), len(rows))
        by_time = np.argsort(times, kind="stable")
        times = times[by_time]
        crowded = np.cumsum(steps[by_time]) > 1
        area = np.concatenate([[0.0], np.cumsum(crowded[:-1] * np.diff(times))])
        shared_s = np.interp(ends, times, area) - np.interp(begins, times, area)
        np.add.at(together, places.attempt[rows], shared_s)
        np.add.at(alone, places.attempt[rows], ends - begins)
    return together > alone / 2
