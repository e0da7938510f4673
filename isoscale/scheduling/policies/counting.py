"""What policies that think in numbers of devices share: jobs by kind, value tables, numbers to nodes.

Such a policy plans each kind of device by itself: a job is planned on its preferred kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.allocation import Pool, Target
from isoscale.scheduling.state import ClusterState, JobView, packed_shape, shape_of

__all__ = [
    "active_jobs",
    "by_kind",
    "capacity_of",
    "current_rate",
    "kind_of",
    "place_counts",
    "rate_table",
    "requested_rate",
]


def active_jobs(state: ClusterState) -> list[JobView]:
    """Running and waiting jobs in order of submission."""
    return sorted([*state.running.values(), *state.waiting.values()], key=lambda job: job.order)


def kind_of(state: ClusterState, job: JobView) -> str:
    """The kind a job is planned on: the preferred one, else what it runs on, else the cluster's most numerous."""
    kinds = job.request.kinds or state.cluster.kinds
    if len(kinds) == 1 or job.request.kinds:
        return kinds[0]
    if job.allocation:
        return state.cluster.nodes[job.allocation[0][0]].kind
    return max(kinds, key=lambda kind: capacity_of(state, kind))


def capacity_of(state: ClusterState, kind: str) -> int:
    return state.capacity_of.get(kind, 0)


def by_kind(state: ClusterState) -> dict[str, list[JobView]]:
    """Active jobs by the kind they are planned on, kinds in the cluster's order, jobs in order of submission."""
    groups: dict[str, list[JobView]] = {kind: [] for kind in state.cluster.kinds}
    for job in active_jobs(state):
        groups.setdefault(kind_of(state, job), []).append(job)
    return {kind: jobs for kind, jobs in groups.items() if jobs}


def rate_table(state: ClusterState, job: JobView, kind: str, *, batch: int = 0) -> NDArray[np.float64]:
    """Work per second on 0..max_devices packed devices, 0 below the job's minimum; `batch` 0: the best for each."""
    most = max(0, min(job.request.max_devices, capacity_of(state, kind)))
    size = max(1, state.cluster.node_size(kind))
    if batch:
        rates = np.array([0.0, *(job.speed.rate(packed_shape(kind, k, size), batch) for k in range(1, most + 1))])
    else:
        rates = np.array(job.speed.rates(kind, most, size), dtype=np.float64)
    rates[: min(job.request.min_devices, most + 1)] = 0.0
    return rates


def requested_rate(state: ClusterState, job: JobView) -> float:
    """Work per second with what the owner asked for."""
    kind = kind_of(state, job)
    shape = packed_shape(kind, job.request.requested_devices, max(1, state.cluster.node_size(kind)))
    return job.speed.rate(shape, job.request.requested_batch)


def fill_gangs(state: ClusterState, jobs: Iterable[JobView]) -> dict[str, int]:
    """What each job asked for, in the order given, skipping those that do not fit; by priority first."""
    ordered = list(jobs)
    if state.has_priorities:
        ordered.sort(key=lambda job: -job.request.priority)
    left = dict(state.capacity_of)
    counts: dict[str, int] = {}
    for job in ordered:
        kind, wanted = kind_of(state, job), job.request.requested_devices
        if wanted <= left.get(kind, 0):
            left[kind] -= wanted
            counts[job.name] = wanted
    return counts


def place_counts(
    state: ClusterState,
    jobs: Sequence[JobView],
    counts: Mapping[str, int],
    *,
    batch: Callable[[JobView, int], int] | None = None,
    first: Literal["largest", "smallest", "given"] = "largest",
    most_free_first: bool = False,
) -> dict[str, Target]:
    """Nodes for the numbers chosen: a job whose number stays keeps its devices, the others are placed afresh.

    `batch(job, count)` is the batch for a number of devices (None: not ours to choose). Placed first are the largest
    jobs, so that they find whole nodes, unless `first` says otherwise; `most_free_first` is `Pool.take`'s.
    """
    pool = Pool(state.cluster, state.capacity, state.capacity_of)
    targets: dict[str, Target] = {}
    moving: list[JobView] = []
    for job in jobs:
        count = counts.get(job.name, 0)
        if count and job.num_devices == count and pool.grab(job.allocation):
            targets[job.name] = Target(job.allocation, batch(job, count) if batch else 0)
        elif count:
            moving.append(job)
    sign = {"largest": -1, "smallest": 1, "given": 0}[first]
    moving.sort(key=lambda job: sign * counts[job.name])
    for job in moving:
        count = counts[job.name]
        taken = pool.take(count, kind_of(state, job), most_free_first=most_free_first)
        if taken is None:
            raise AssertionError(f"{job.name}: {count} devices were planned and are not there")
        targets[job.name] = Target(taken, batch(job, count) if batch else 0)
    return targets


def current_rate(state: ClusterState, job: JobView) -> float:
    """Work per second that the model predicts for what the job holds now."""
    return job.speed.rate(shape_of(state.cluster, job.allocation), job.batch) if job.allocation else 0.0
