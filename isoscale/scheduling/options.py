"""Which sets of devices are worth considering for a job on a cluster of several kinds.

A set is a vector of counts, one per kind. A set is left out if another one with no more devices of any kind is as fast:
of the thousands of vectors a few hundred remain. Jobs of logical workers may mix kinds; others run on one kind. Where
there are too many vectors, sets of at most two kinds in rounded numbers stand for all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.state import Cluster, JobRequest, SpeedModel
from isoscale.scheduling.throughput import Communication, LogicalWorkerSpeed

__all__ = ["DeviceOptions", "device_options", "table_options"]

#: sets up to which all are looked at: of up to three kinds, and of more
_MOST_SETS, _MOST_OF_MANY = 10_000, 2_500


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """Row i of `counts` gives `rates[i]`; row 0 is no device at all."""

    counts: NDArray[np.int64]
    rates: NDArray[np.float64]

    def index_of(self, counts: Sequence[int] | NDArray[np.int64]) -> int:
        """The row with exactly these counts; -1 if it was left out."""
        found = np.flatnonzero((self.counts == np.asarray(counts)).all(axis=1))
        return int(found[0]) if len(found) else -1


def device_options(
    cluster: Cluster,
    capacity_of: Mapping[str, int],
    request: JobRequest,
    speed: SpeedModel,
    *,
    most: int = 0,
    mix: bool = True,
) -> DeviceOptions:
    """The sets worth considering, of at most `most` devices if that is given; kinds in the cluster's order.

    Without `mix` a job that may use several kinds uses one of them at a time.
    """
    most = min(request.max_devices, most or request.max_devices)
    allowed = [kind for kind in cluster.kinds if not request.kinds or kind in request.kinds]
    if mix and request.mixes_kinds and len(allowed) > 1 and isinstance(speed, LogicalWorkerSpeed):
        turns = tuple(speed.turn_s.get(kind, np.inf) if kind in allowed else np.inf for kind in cluster.kinds)
        caps = tuple(min(capacity_of.get(kind, 0), most) for kind in cluster.kinds)
        sizes = tuple(cluster.node_size(kind) for kind in cluster.kinds)
        # Of many kinds and devices there are too many sets to look at each: then sets of at most two kinds.
        limit = _MOST_SETS if len(caps) <= 3 else _MOST_OF_MANY
        find = _mixed if math.prod(cap + 1 for cap in caps) <= limit else _paired
        whole = find(speed.num_logical_workers, turns, caps, sizes, most, speed.communication)
    else:
        whole = _one_kind(cluster, capacity_of, allowed, speed, most)
    enough = whole.counts.sum(axis=1) >= request.min_devices
    enough[0] = True
    return DeviceOptions(counts=whole.counts[enough], rates=whole.rates[enough])


def table_options(
    kinds: Sequence[str], tables: Mapping[str, NDArray[np.float64]], held: Mapping[str, int] | None = None
) -> DeviceOptions:
    """Sets of one kind each from rates by number of devices; sizes that are no faster than smaller ones are left out,
    unless they are what the job holds.

    >>> table_options(["T4", "V100"], {"V100": np.array([0.0, 2.0, 2.0, 3.0])}).counts.tolist()
    [[0, 0], [0, 1], [0, 3]]
    """
    counts, rates = [np.zeros((1, len(kinds)), dtype=np.int64)], [np.zeros(1)]
    for axis, kind in enumerate(kinds):
        table = tables.get(kind)
        if table is None or len(table) < 2:
            continue
        better = table[1:] > np.maximum.accumulate(table)[:-1]
        if held and len(held) == 1 and 0 < held.get(kind, 0) < len(table) and table[held[kind]] > 0:
            better[held[kind] - 1] = True
        sizes = np.flatnonzero(better) + 1
        rows = np.zeros((len(sizes), len(kinds)), dtype=np.int64)
        rows[:, axis] = sizes
        counts.append(rows)
        rates.append(table[sizes])
    return DeviceOptions(counts=np.concatenate(counts), rates=np.concatenate(rates))


def _one_kind(
    cluster: Cluster, capacity_of: Mapping[str, int], allowed: Sequence[str], speed: SpeedModel, most: int
) -> DeviceOptions:
    tables = {
        kind: speed.rates(kind, min(most, capacity_of.get(kind, 0)), max(1, cluster.node_size(kind)))
        for kind in allowed
    }
    return table_options(cluster.kinds, tables)


@lru_cache(maxsize=4096)
def _mixed(
    num_logical_workers: int,
    turns: tuple[float, ...],
    caps: tuple[int, ...],
    node_sizes: tuple[int, ...],
    most: int,
    communication: Communication,
) -> DeviceOptions:
    """All vectors at once: a step time T suffices where the devices have room for N turns within T."""
    grid = np.stack(np.meshgrid(*(np.arange(cap + 1) for cap in caps), indexing="ij"), axis=-1)
    total = grid.sum(axis=-1)
    seconds = np.full(total.shape, np.inf)
    steps = {share * turn for turn in turns if turn < np.inf for share in range(1, num_logical_workers + 1)}
    for step in sorted(steps, reverse=True):
        # A hair more than `step`, so that share * turn / turn is not rounded below share.
        room = [int(step * (1 + 1e-12) / turn) for turn in turns]
        seconds[grid @ np.array(room) >= num_logical_workers] = step
    nodes = -(-grid // np.maximum(node_sizes, 1))
    exchange = np.where(
        nodes.sum(axis=-1) > 1,
        communication.cross_fixed_s + communication.cross_per_device_s * np.maximum(total - 2, 0),
        communication.local_fixed_s + communication.local_per_device_s * np.maximum(total - 2, 0),
    )
    rates = 1.0 / (seconds + np.where(total > 1, exchange, 0.0))
    rates[(total > most) | (total == 0)] = 0.0
    worth = _undominated(rates, range(len(caps)))
    worth[(0,) * len(caps)] = True
    return DeviceOptions(counts=grid[worth], rates=rates[worth])


@lru_cache(maxsize=4096)
def _paired(
    num_logical_workers: int,
    turns: tuple[float, ...],
    caps: tuple[int, ...],
    node_sizes: tuple[int, ...],
    most: int,
    communication: Communication,
) -> DeviceOptions:
    """Sets of one or two kinds whose numbers are 1, 2, 3, 4, 6, 8, 12, 16, ..., or all that there are."""
    kinds = [axis for axis, turn in enumerate(turns) if turn < np.inf and caps[axis]]
    pairs = list(itertools.combinations(kinds, 2)) or [(axis, axis) for axis in kinds]
    none = np.zeros((1, len(turns)), dtype=np.int64)
    if not pairs:
        return DeviceOptions(counts=none, rates=np.zeros(1))
    sizes = np.unique(np.concatenate([_rounded(caps[axis]) for axis in kinds]))
    first, second = np.array(pairs).T
    # [pair, number of the one, number of the other, kind]
    counts = np.zeros((len(pairs), len(sizes), len(sizes), len(turns)), dtype=np.int64)
    numbers = np.arange(len(pairs))
    counts[numbers, :, :, second] = sizes[None, None, :]
    counts[numbers, :, :, first] = sizes[None, :, None]
    total = counts.sum(axis=-1)
    seconds = _least_seconds(counts[..., kinds], np.array([turns[k] for k in kinds]), num_logical_workers)
    nodes = (-(-counts // np.maximum(node_sizes, 1))).sum(axis=-1)
    exchange = np.where(
        nodes > 1,
        communication.cross_fixed_s + communication.cross_per_device_s * np.maximum(total - 2, 0),
        communication.local_fixed_s + communication.local_per_device_s * np.maximum(total - 2, 0),
    )
    rates = 1.0 / (seconds + np.where(total > 1, exchange, 0.0))
    rates[(total > min(most, num_logical_workers)) | (total == 0) | (counts > np.array(caps)).any(axis=-1)] = 0.0
    worth = _undominated(rates, axes=(1, 2))
    # Sets of one kind come with every pair that the kind is in: the first has them.
    seen: set[int] = set()
    for number, (one, other) in enumerate(pairs):
        for axis, place in ((one, (number, slice(1, None), 0)), (other, (number, 0, slice(1, None)))):
            if axis in seen:
                worth[place] = False
        seen |= {one, other}
    return DeviceOptions(counts=np.concatenate([none, counts[worth]]), rates=np.concatenate([[0.0], rates[worth]]))


def _rounded(most: int) -> NDArray[np.int64]:
    """0, 1, 2, 3, 4, 6, 8, 12, 16, ... and `most`."""
    powers = 2 ** np.arange(int(most).bit_length() + 1)
    sizes = np.unique(np.concatenate([[0, most], powers, 3 * powers]))
    return np.asarray(sizes[sizes <= most], dtype=np.int64)


def _least_seconds(
    counts: NDArray[np.int64], turns: NDArray[np.float64], num_logical_workers: int
) -> NDArray[np.float64]:
    """The shortest step in which each set of devices has room for all turns, by bisection over the possible ones."""
    shares = np.arange(1, num_logical_workers + 1)
    steps = np.append(np.unique(np.multiply.outer(turns, shares)), np.inf)
    room = np.floor(np.append(steps[:-1], 0.0)[:, None] * (1 + 1e-12) / turns)
    low = np.zeros(counts.shape[:-1], dtype=np.int64)
    high = np.full(counts.shape[:-1], len(steps) - 1)
    while (low < high).any():
        middle = (low + high) // 2
        enough = (counts * room[middle]).sum(axis=-1) >= num_logical_workers
        high = np.where(enough, middle, high)
        low = np.where(enough, low, np.minimum(middle + 1, high))
    return np.asarray(steps[low])


def _undominated(rates: NDArray[np.float64], axes: Sequence[int]) -> NDArray[np.bool_]:
    """Where no set with fewer devices of some kind and no more of another is as fast; kinds are along these axes."""
    reach = rates
    for axis in axes:
        reach = np.maximum.accumulate(reach, axis=axis)
    worth = rates > 0
    for axis in axes:
        before = np.roll(reach, 1, axis=axis)
        before[(slice(None),) * axis + (0,)] = 0.0
        worth &= rates > before * (1 + 1e-12)
    return worth
