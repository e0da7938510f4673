"""Which sets of devices are worth considering for a job on a cluster of several kinds.

A set is a vector of counts, one per kind. A set is left out if another one with no more devices of any kind is as fast:
of the thousands of vectors a few hundred remain. Jobs of logical workers may mix kinds; others run on one kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from isoscale import limits
from isoscale.errors import UserError
from isoscale.scheduling.state import Cluster, JobRequest, SpeedModel
from isoscale.scheduling.throughput import Communication, LogicalWorkerSpeed

__all__ = ["DeviceOptions", "device_options"]


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
        _check_sets(caps, request)
        whole = _mixed(speed.num_logical_workers, turns, caps, sizes, most, speed.communication)
    else:
        whole = _one_kind(cluster, capacity_of, allowed, speed, most)
    enough = whole.counts.sum(axis=1) >= request.min_devices
    enough[0] = True
    return DeviceOptions(counts=whole.counts[enough], rates=whole.rates[enough])


def _check_sets(caps: Sequence[int], request: JobRequest) -> None:
    """Before they are listed: each is a vector in memory."""
    if math.prod(cap + 1 for cap in caps) > limits.MAX_DEVICE_SETS:
        raise UserError(
            field="job",
            value=request.name,
            problem=f"too many ways to give it up to {request.max_devices} devices of {len(caps)} kinds",
            remedy="lower its max_devices, or let it use one kind (kinds)",
        )


def _one_kind(
    cluster: Cluster, capacity_of: Mapping[str, int], allowed: Sequence[str], speed: SpeedModel, most: int
) -> DeviceOptions:
    counts, rates = [np.zeros((1, len(cluster.kinds)), dtype=np.int64)], [np.zeros(1)]
    for axis, kind in enumerate(cluster.kinds):
        if kind not in allowed:
            continue
        table = speed.rates(kind, min(most, capacity_of.get(kind, 0)), max(1, cluster.node_size(kind)))
        better = np.flatnonzero(table[1:] > np.maximum.accumulate(table)[:-1]) + 1
        rows = np.zeros((len(better), len(cluster.kinds)), dtype=np.int64)
        rows[:, axis] = better
        counts.append(rows)
        rates.append(table[better])
    return DeviceOptions(counts=np.concatenate(counts), rates=np.concatenate(rates))


@lru_cache(maxsize=512)
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
    # Not worth considering: one device fewer of some kind is no slower. Going back along each axis in turn makes
    # `reach` the best of all smaller vectors.
    reach = rates.copy()
    for axis in range(len(caps)):
        reach = np.maximum.accumulate(reach, axis=axis)
    worth = rates > 0
    for axis in range(len(caps)):
        before = np.roll(reach, 1, axis=axis)
        before[(slice(None),) * axis + (0,)] = 0.0
        worth &= rates > before * (1 + 1e-12)
    worth[(0,) * len(caps)] = True
    return DeviceOptions(counts=grid[worth], rates=rates[worth])
