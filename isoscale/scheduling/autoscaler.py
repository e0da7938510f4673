"""How many devices each job gets: the dynamic program of Effective Elastic Scaling, exact, and two faster exact paths.

    maximise  sum_j T_j(k_j)   subject to  sum_j k_j <= K,  1 <= k_j <= kmax_j

where T_j(k) is the job's value on k devices (its scaling factor with the best batch for k, say), -inf where it cannot
run. `allocate` picks the path: greedy by marginal value where every table is concave, else Lagrangian reduction of the
choices followed by the recurrence over what is left. `allocate_by_recurrence` is the paper's recurrence as it stands.
The module knows no jobs, nodes or batches: tables in, numbers out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["allocate", "allocate_by_recurrence", "allocate_concave", "is_concave", "total_value"]

Table = NDArray[np.float64]

# Elements of a step's matrix up to which building it whole is faster than going size by size.
_AT_ONCE = 40_000
# Steps of the recurrence below which it is faster than reducing the choices first.
_WORTH_REDUCING = 2_000_000


def allocate(tables: Sequence[Table], num_devices: int) -> tuple[int, ...] | None:
    """Devices per job with the highest total value, None if there is none (more jobs than devices, say).

    `tables[j][k]` is the value of k devices to job j. Entry 0 must be -inf if the job has to run; a finite entry 0
    means that it may be left out at that value. Ties go to fewer devices.

    >>> tables = [np.array([-np.inf, 1.0, 1.9, 2.7]), np.array([-np.inf, 1.0, 1.5])]
    >>> allocate(tables, 4), allocate(tables, 2), allocate(tables, 1)
    ((3, 1), (1, 1), None)
    """
    if not tables:
        return ()
    values = _stacked(tables, num_devices)
    able = values > -np.inf
    if not able.any(axis=1).all() or int(able.argmax(axis=1).sum()) > num_devices:
        return None
    best = values.argmax(axis=1)
    if int(best.sum()) <= num_devices:
        return tuple(best.tolist())  # enough for everybody
    if _all_concave(values, able):
        return _take_largest_gains(values, able, num_devices)
    if values.size * num_devices <= _WORTH_REDUCING:
        return allocate_by_recurrence(list(values), num_devices)
    return _allocate_reduced(list(values), num_devices)


def allocate_by_recurrence(tables: Sequence[Table], num_devices: int) -> tuple[int, ...] | None:
    """The recurrence itself, vectorised over k: O(J * K * kmax) time, O(J * K) memory.

    P(0, k) = 0;  P(j, k) = max over g of T_j(g) + P(j-1, k-g); devices may stay unused.
    """
    rows = [np.zeros(num_devices + 1)]
    for table in tables:
        table = table[: num_devices + 1]
        step = _step_at_once if table.size * (num_devices + 1) <= _AT_ONCE else _step_by_size
        rows.append(step(rows[-1], table))
    if rows[-1][num_devices] == -np.inf:
        return None
    # The rows are kept instead of the choices: looking one up again costs kmax, once per job.
    chosen: list[int] = []
    left = num_devices
    for j in range(len(tables) - 1, -1, -1):
        table = tables[j][: left + 1]
        g = int(np.argmax(table + rows[j][left - np.arange(len(table))]))
        chosen.append(g)
        left -= g
    return tuple(reversed(chosen))


def _step_by_size(before: Table, table: Table) -> Table:
    """max over g of table[g] + before[k - g], for all k; one pass over k per g."""
    row, room = np.full(len(before), -np.inf), np.empty(len(before))
    for g in np.flatnonzero(table > -np.inf).tolist():
        shifted = room[: len(before) - g]
        np.add(before[: len(before) - g], table[g], out=shifted)
        np.maximum(row[g:], shifted, out=row[g:])
    return row


def _step_at_once(before: Table, table: Table) -> Table:
    """The same with all g in one matrix: fewer calls, which is what small cases spend their time on."""
    padded = np.concatenate([np.full(len(table) - 1, -np.inf), before])
    shifted = np.lib.stride_tricks.sliding_window_view(padded, len(before))[::-1]
    return np.asarray((shifted + table[:, None]).max(axis=0))


def allocate_concave(tables: Sequence[Table], num_devices: int) -> tuple[int, ...] | None:
    """The same answer when each further device is worth less than the one before: take the largest gains first."""
    values = _stacked(tables, num_devices)
    able = values > -np.inf
    if not able.any(axis=1).all() or int(able.argmax(axis=1).sum()) > num_devices:
        return None
    return _take_largest_gains(values, able, num_devices)


def is_concave(table: Table) -> bool:
    """Whether gains never grow from one device to the next, over the sizes at which the job can run."""
    values = np.asarray(table, dtype=np.float64)[None]
    return _all_concave(values, values > -np.inf)


def total_value(tables: Sequence[Table], chosen: Sequence[int]) -> float:
    return float(sum(table[k] for table, k in zip(tables, chosen, strict=True)))


def _allocate_reduced(tables: Sequence[Table], num_devices: int) -> tuple[int, ...] | None:
    """Exact for any tables. With a price per device, most choices turn out unable to be in any best allocation.

    For a price mu >= 0, sum_j max_k (T_j(k) - mu k) + mu K bounds every allocation from above; forcing job j to k
    lowers that by what j loses against its own best. If it falls below an allocation in hand, (j, k) is struck out.
    """
    hulls = [_concave_hull(table) for table in tables]
    chosen = allocate_concave(hulls, num_devices)
    if chosen is None:
        return None
    incumbent = _repair(tables, chosen, num_devices)
    if incumbent is None:
        return allocate_by_recurrence(tables, num_devices)
    low = total_value(tables, incumbent)
    price = _price(hulls, chosen, num_devices)
    reduced = [table - price * np.arange(len(table)) for table in tables]
    best = np.array([values.max() for values in reduced])
    slack = float(best.sum()) + price * num_devices - low
    slack += 1e-9 * max(1.0, abs(low))  # rounding must not strike out a best choice
    kept = [np.flatnonzero(values >= top - slack) for values, top in zip(reduced, best, strict=True)]
    open_jobs = [j for j, choices in enumerate(kept) if len(choices) > 1]
    fixed = {j: int(choices[0]) for j, choices in enumerate(kept) if len(choices) == 1}
    # Every open job takes at least its smallest choice: only what goes beyond is left to distribute.
    least = {j: int(kept[j][0]) for j in open_jobs}
    left = num_devices - sum(fixed.values()) - sum(least.values())
    if left < 0:
        return incumbent
    span = min(left, sum(int(kept[j][-1]) - least[j] for j in open_jobs))
    small = [_only(tables[j], kept[j], least[j]) for j in open_jobs]
    answer = allocate_by_recurrence(small, span)
    if answer is None:
        return incumbent
    result = dict(fixed) | {j: least[j] + g for j, g in zip(open_jobs, answer, strict=True)}
    return tuple(result[j] for j in range(len(tables)))


def _stacked(tables: Sequence[Table], num_devices: int) -> NDArray[np.float64]:
    """One row per job, at most `num_devices` long, without sizes beyond the best one."""
    width = min(max(map(len, tables)), num_devices + 1)
    values = np.full((len(tables), width), -np.inf)
    for row, table in zip(values, tables, strict=True):
        row[: len(table)] = table[:width]
    values[np.arange(width) > values.argmax(axis=1)[:, None]] = -np.inf
    return values


def _all_concave(values: NDArray[np.float64], able: NDArray[np.bool_]) -> bool:
    # No holes: as many changes between able and unable as one run of able sizes makes.
    padded = np.pad(able, ((0, 0), (1, 1)))
    if (padded[:, 1:] != padded[:, :-1]).sum() != 2 * len(values):
        return False
    with np.errstate(invalid="ignore"):
        bends = np.diff(values, n=2, axis=1)
    # Equal gains that differ in the last bit are no reason for the slow path; greedy choice loses no more than that.
    limit = 1e-12 * max(1.0, float(np.abs(values[able]).max()))
    return not (bends[able[:, :-2] & able[:, 2:]] > limit).any()


def _take_largest_gains(values: NDArray[np.float64], able: NDArray[np.bool_], num_devices: int) -> tuple[int, ...]:
    first = able.argmax(axis=1)
    left = num_devices - int(first.sum())
    with np.errstate(invalid="ignore"):
        gains = np.diff(values, axis=1)
    owner, step = np.nonzero(able[:, :-1] & (gains > 0))
    if len(owner) > left:
        # Stable: among equal gains the earlier job, and within a job the earlier device, come first.
        owner = owner[np.argsort(-gains[owner, step], kind="stable")[:left]]
    return tuple((first + np.bincount(owner, minlength=len(values))).tolist())


def _concave_hull(table: Table) -> Table:
    """The smallest concave table that is nowhere below; -inf up to the first size that can run."""
    sizes = np.flatnonzero(table > -np.inf)
    corners: list[int] = []
    for k in sizes:
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            if (table[b] - table[a]) * (k - a) > (table[k] - table[a]) * (b - a):
                break
            corners.pop()
        corners.append(int(k))
    hull = np.full(len(table), -np.inf)
    span = np.arange(corners[0], len(table))
    hull[span] = np.interp(span, corners, table[corners])
    return hull


def _repair(tables: Sequence[Table], chosen: Sequence[int], num_devices: int) -> tuple[int, ...] | None:
    """A real allocation near the hull's: sizes the hull invented go down to one that can run, then spare devices go
    where they are worth most."""
    sizes = []
    for table, k in zip(tables, chosen, strict=True):
        good = np.flatnonzero(table[: k + 1] > -np.inf)
        if not len(good):
            return None
        sizes.append(int(good[np.argmax(table[good])]))
    left = num_devices - sum(sizes)
    while left > 0:
        best_gain, best_job, best_size = 0.0, -1, 0
        for j, table in enumerate(tables):
            reach = table[sizes[j] + 1 : sizes[j] + left + 1]
            if len(reach):
                step = int(np.argmax(reach))
                gain = (reach[step] - table[sizes[j]]) / (step + 1)
                if gain > best_gain:
                    best_gain, best_job, best_size = float(gain), j, sizes[j] + step + 1
        if best_job < 0:
            break
        left -= best_size - sizes[best_job]
        sizes[best_job] = best_size
    return tuple(sizes)


def _price(hulls: Sequence[Table], chosen: Sequence[int], num_devices: int) -> float:
    """What the next device would be worth to the hulls; 0 if some are left over."""
    if sum(chosen) < num_devices:
        return 0.0
    gains = [hull[k + 1] - hull[k] for hull, k in zip(hulls, chosen, strict=True) if k + 1 < len(hull)]
    return max(0.0, float(max(gains, default=0.0)))


def _only(table: Table, choices: NDArray[np.int64], least: int) -> Table:
    kept = np.full(int(choices[-1]) - least + 1, -np.inf)
    kept[choices - least] = table[choices]
    return kept
