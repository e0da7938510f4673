"""Devices one by one to whoever gains most from the next: what Optimus and Elastic-Tiresias do with devices left over.

Worked out for all devices at once. Whoever hands out devices one by one takes a job's step as soon as the smallest gain
up to that step is the largest on offer: a step that gains more than the one before it follows at once. So steps sorted
by that smallest gain come in the order in which they would have been taken.

Several kinds of devices (`share_over_kinds`, ours): every job is on one kind; within a kind devices are handed out as
above, and a job moves to a kind with devices left over if it gains by that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Seeker", "share_by_gain", "share_over_kinds"]

Table = NDArray[np.float64]
#: moves between kinds in one round, per job; each moves one job to where it gains most
_MOVES_PER_JOB = 2


@dataclass(slots=True, kw_only=True)
class Seeker:
    """A job among kinds: `tables[kind][k]` is what k devices of a kind are worth to it, -inf where it cannot run."""

    tables: Mapping[str, Table]
    #: devices that it has so far
    kind: str = ""
    size: int = 0
    #: devices of a first step
    first_step: int = 1
    #: what a move from `kind` to another leaves of the value there (`changes.change_factor`)
    factor: float = 1.0


def share_by_gain(
    tables: Sequence[Table], sizes: Sequence[int], left: int, first_steps: Sequence[int] | None = None
) -> list[int]:
    """Sizes when `left` more devices have been handed out; `tables[j][k]` is the value of k devices to job j.

    A job's first step from 0 is `first_steps[j]` devices at once (its minimum; 1 if nothing is said) and counts by its
    gain per device. Nobody is given a step that gains nothing. Among equal gains the earlier job comes first.

    >>> root = np.sqrt(np.arange(5))
    >>> share_by_gain([root, 2 * root], [1, 0], 3)
    [1, 3]
    """
    held = np.array(sizes, dtype=np.int64)
    if left <= 0 or not len(tables):
        return list(sizes)
    steps = np.ones_like(held)
    if first_steps is not None:
        steps = np.where(held > 0, 1, np.maximum(1, np.array(first_steps, dtype=np.int64)))
    values = np.full((len(tables), max(map(len, tables))), -np.inf)
    for row, table in zip(values, tables, strict=True):
        row[: len(table)] = table
    owners, costs = _in_order(values, held, steps)
    if (steps == 1).all():
        return [int(size) for size in held + np.bincount(owners[:left], minlength=len(held))]
    return _one_by_one(list(sizes), owners.tolist(), costs.tolist(), left)


def _in_order(
    values: NDArray[np.float64], held: NDArray[np.int64], steps: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The job and the devices of every step that gains something, in the order in which they would be taken."""
    reached = held + steps
    with np.errstate(invalid="ignore"):
        gains = np.nan_to_num(np.diff(values, axis=1), nan=-np.inf, neginf=-np.inf)  # [:, k - 1]: from k - 1 to k
    # A first step of several devices stands where it leads to; what it leaps over is no step.
    gains[np.arange(1, values.shape[1]) < reached[:, None]] = np.inf
    jobs = np.flatnonzero(reached < values.shape[1])
    gains[jobs, reached[jobs] - 1] = (values[jobs, reached[jobs]] - values[jobs, held[jobs]]) / steps[jobs]
    smallest = np.minimum.accumulate(gains, axis=1)
    owners, columns = np.nonzero((smallest > 0) & (smallest < np.inf))
    # Stable: among equal gains the earlier job, and within a job the earlier step, come first.
    order = np.argsort(-smallest[owners, columns], kind="stable")
    owners, columns = owners[order], columns[order]
    return owners, np.where(columns + 1 == reached[owners], steps[owners], 1)


def _one_by_one(sizes: list[int], owners: list[int], costs: list[int], left: int) -> list[int]:
    """Steps in order; a job whose step does not fit any more is passed over from then on."""
    passed: set[int] = set()
    for job, cost in zip(owners, costs, strict=True):
        if left <= 0:
            break
        if cost > left:
            passed.add(job)
        elif job not in passed:
            sizes[job] += cost
            left -= cost
    return sizes


def share_over_kinds(seekers: Sequence[Seeker], left: Mapping[str, int]) -> list[tuple[str, int]]:
    """The kind and number of devices of each job when the devices `left` of each kind have been handed out.

    Who has nothing takes a first step, in the order given, on the kind where that is worth most. Then each kind's
    devices go to the jobs on it (`share_by_gain`), and jobs move to what is left over elsewhere, whoever gains most
    first; what such a job leaves goes to those who stay.

    >>> fast, slow = np.array([-np.inf, 2.0, 3.0]), np.array([-np.inf, 1.0, 1.5])
    >>> share_over_kinds([Seeker(tables={"V100": fast, "T4": slow}) for _ in range(3)], {"V100": 2, "T4": 3})
    [('V100', 1), ('V100', 1), ('T4', 2)]
    """
    kinds = [seeker.kind for seeker in seekers]
    sizes = [seeker.size for seeker in seekers]
    room = dict(left)
    _first_steps(seekers, kinds, sizes, room)
    for kind in room:
        _share_one(seekers, kinds, sizes, room, kind)
    if len(room) > 1:
        _move_between(seekers, kinds, sizes, room)
    return list(zip(kinds, sizes, strict=True))


def _first_steps(seekers: Sequence[Seeker], kinds: list[str], sizes: list[int], room: dict[str, int]) -> None:
    for j, seeker in enumerate(seekers):
        if not sizes[j]:
            kinds[j] = _first_kind(seeker, room)
            if kinds[j]:
                sizes[j] = seeker.first_step
                room[kinds[j]] -= sizes[j]


def _first_kind(seeker: Seeker, room: Mapping[str, int]) -> str:
    step = seeker.first_step
    worth = {
        kind: float(table[step])
        for kind, table in seeker.tables.items()
        if step < len(table) and room.get(kind, 0) >= step and table[step] > -np.inf
    }
    return max(worth, key=worth.__getitem__, default="")


def _share_one(
    seekers: Sequence[Seeker], kinds: Sequence[str], sizes: list[int], room: dict[str, int], kind: str
) -> None:
    members = [j for j, at in enumerate(kinds) if at == kind and sizes[j]]
    if not members or room[kind] <= 0:
        return
    shared = share_by_gain([seekers[j].tables[kind] for j in members], [sizes[j] for j in members], room[kind])
    for j, size in zip(members, shared, strict=True):
        room[kind] -= size - sizes[j]
        sizes[j] = size


def _move_between(seekers: Sequence[Seeker], kinds: list[str], sizes: list[int], room: dict[str, int]) -> None:
    best = {kind: _best_within(seekers, kind) for kind in room}
    for _ in range(_MOVES_PER_JOB * len(seekers)):
        gain, job, goal = 0.0, -1, ""
        now = np.array([s.tables[k][n] if n else -np.inf for s, k, n in zip(seekers, kinds, sizes, strict=True)])
        for kind, within in best.items():
            if room[kind] <= 0:
                continue
            column = within[:, min(room[kind], within.shape[1] - 1)]
            able = np.array([at not in ("", kind) for at in kinds]) & (now > -np.inf) & (column > -np.inf)
            gains = np.zeros(len(now))
            gains[able] = column[able] - now[able]
            top = int(np.argmax(gains))
            if gains[top] > gain + 1e-9 * abs(now[top]):
                gain, job, goal = float(gains[top]), top, kind
        if job < 0:
            return
        old = kinds[job]
        room[old] += sizes[job]
        kinds[job], sizes[job] = goal, int(np.argmax(seekers[job].tables[goal][: room[goal] + 1]))
        room[goal] -= sizes[job]
        _first_steps(seekers, kinds, sizes, room)
        for kind in (old, goal):
            _share_one(seekers, kinds, sizes, room, kind)


def _best_within(seekers: Sequence[Seeker], kind: str) -> NDArray[np.float64]:
    """[j, k]: the most that up to k devices of the kind are worth to job j after a move there."""
    tables = [seeker.tables.get(kind) for seeker in seekers]
    width = max((len(table) for table in tables if table is not None), default=1)
    values = np.full((len(seekers), width), -np.inf)
    for row, seeker, table in zip(values, seekers, tables, strict=True):
        if table is not None:
            row[: len(table)] = _after_move(table, seeker.factor)
    return np.maximum.accumulate(values, axis=1)


def _after_move(table: Table, factor: float) -> Table:
    """Worth less a move: a gain shrinks, a cost (optimus counts seconds, below 0) grows."""
    if factor >= 1.0:
        return table
    return np.where(table > 0, table * factor, table / max(factor, 1e-9))
