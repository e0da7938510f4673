"""What policies that think in numbers of devices share: the kinds of a job, value tables, numbers to nodes.

Such a policy gives a job devices of one kind at a time. Papers that know one kind only say nothing about which; the
extension here is ours. With `kinds="preferred"` a job is planned on the kind that it prefers, each kind by itself; with
`kinds="choose"` on any kind that it may use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.allocation import Pool, Target
from isoscale.scheduling.changes import pays
from isoscale.scheduling.state import ClusterState, JobView, packed_shape

__all__ = [
    "Kinds",
    "Planned",
    "active_jobs",
    "by_kind",
    "capacity_of",
    "fill_gangs",
    "held_kind",
    "kind_of",
    "kinds_of",
    "place_counts",
    "rate_table",
    "requested_rate",
]

#: whether a policy chooses among the kinds that a job may use, or takes the preferred one
Kinds = Literal["choose", "preferred"]
#: what a job is to get: devices of one kind
Planned = tuple[str, int]


def active_jobs(state: ClusterState) -> list[JobView]:
    """Running and waiting jobs in order of submission."""
    return sorted([*state.running.values(), *state.waiting.values()], key=lambda job: job.order)


def kind_of(state: ClusterState, job: JobView) -> str:
    """The kind a job prefers: its first one, else what it runs on, else the cluster's most numerous."""
    kinds = job.request.kinds or state.cluster.kinds
    if len(kinds) == 1 or job.request.kinds:
        return kinds[0]
    return held_kind(state, job) or max(kinds, key=lambda kind: capacity_of(state, kind))


def held_kind(state: ClusterState, job: JobView) -> str:
    """The kind of the job's devices (of its first node if it mixes kinds); "" if it has none."""
    return state.cluster.nodes[job.allocation[0][0]].kind if job.allocation else ""


def kinds_of(state: ClusterState, job: JobView, kinds: Kinds) -> tuple[str, ...]:
    """The kinds that a job may be planned on and that there are devices of, the preferred one first."""
    if kinds == "preferred":
        return (kind_of(state, job),)
    wanted = job.request.kinds or state.cluster.kinds
    return tuple(kind for kind in wanted if capacity_of(state, kind) > 0)


def capacity_of(state: ClusterState, kind: str) -> int:
    return state.capacity_of.get(kind, 0)


def by_kind(state: ClusterState) -> dict[str, list[JobView]]:
    """Active jobs by the kind they prefer, kinds in the cluster's order, jobs in order of submission."""
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


def requested_rate(state: ClusterState, job: JobView, kind: str = "") -> float:
    """Work per second with what the owner asked for, on a kind or on the preferred one."""
    kind = kind or kind_of(state, job)
    shape = packed_shape(kind, job.request.requested_devices, max(1, state.cluster.node_size(kind)))
    return job.speed.rate(shape, job.request.requested_batch)


def fill_gangs(state: ClusterState, jobs: Iterable[JobView], kinds: Kinds = "preferred") -> dict[str, Planned]:
    """What each job asked for, in the order given, skipping those that do not fit; by priority first.

    Where kinds are chosen, a job that waits takes the fastest kind with room. One that runs stays where it is; once
    everybody has had a turn it moves to a faster kind with room left if that pays, and others get what it leaves.
    """
    ordered = list(jobs)
    if state.has_priorities:
        ordered.sort(key=lambda job: -job.request.priority)
    left = dict(state.capacity_of)
    planned: dict[str, Planned] = {}
    _take_turns(state, ordered, planned, left, kinds)
    if kinds == "choose" and len(state.cluster.kinds) > 1 and _move_up(state, ordered, planned, left):
        _take_turns(state, ordered, planned, left, kinds)
    return planned


def _take_turns(
    state: ClusterState, jobs: Sequence[JobView], planned: dict[str, Planned], left: dict[str, int], kinds: Kinds
) -> None:
    """Whoever has nothing yet takes its gang from the first kind with room."""
    for job in jobs:
        wanted = job.request.requested_devices
        if job.name in planned or wanted > max(left.values(), default=0):
            continue
        for kind in _gang_kinds(state, job, kinds):
            if wanted <= left.get(kind, 0):
                left[kind] -= wanted
                planned[job.name] = (kind, wanted)
                break


def _gang_kinds(state: ClusterState, job: JobView, kinds: Kinds) -> Sequence[str]:
    """Where to look for a gang's devices, in this order."""
    if kinds == "preferred" or len(state.cluster.kinds) == 1:
        return (kind_of(state, job),)
    rates = {kind: requested_rate(state, job, kind) for kind in kinds_of(state, job, kinds)}
    held = held_kind(state, job)
    return sorted((kind for kind, rate in rates.items() if rate > 0), key=lambda kind: (kind != held, -rates[kind]))


def _move_up(state: ClusterState, jobs: Sequence[JobView], planned: dict[str, Planned], left: dict[str, int]) -> bool:
    """Running gangs to faster kinds that have room; whether any moved."""
    moved = False
    for job in jobs:
        wanted, here = job.request.requested_devices, held_kind(state, job)
        if not here or planned.get(job.name) != (here, wanted):
            continue
        room = [kind for kind in kinds_of(state, job, "choose") if kind != here and left.get(kind, 0) >= wanted]
        best = max(room, key=lambda kind: requested_rate(state, job, kind), default="")
        if best and pays(state, job, requested_rate(state, job, here), requested_rate(state, job, best)):
            left[here] += wanted
            left[best] -= wanted
            planned[job.name] = (best, wanted)
            moved = True
    return moved


def place_counts(
    state: ClusterState,
    jobs: Sequence[JobView],
    planned: Mapping[str, Planned],
    *,
    batch: Callable[[JobView, Planned], int] | None = None,
    first: Literal["largest", "smallest", "given"] = "largest",
    most_free_first: bool = False,
) -> dict[str, Target]:
    """Nodes for what was planned: a job whose kind and number stay keeps its devices, the others are placed afresh.

    `batch(job, planned)` is the batch on such devices (None: not ours to choose). Placed first are the largest jobs, so
    that they find whole nodes, unless `first` says otherwise; `most_free_first` is `Pool.take`'s.
    """
    pool = Pool(state.cluster, state.capacity, state.capacity_of)
    targets: dict[str, Target] = {}
    moving: list[JobView] = []
    for job in jobs:
        kind, count = planned.get(job.name, ("", 0))
        stays = count and job.num_devices == count and _is_on(state, job, kind)
        if stays and pool.grab(job.allocation):
            targets[job.name] = Target(job.allocation, batch(job, (kind, count)) if batch else 0)
        elif count:
            moving.append(job)
    sign = {"largest": -1, "smallest": 1, "given": 0}[first]
    moving.sort(key=lambda job: sign * planned[job.name][1])
    for job in moving:
        kind, count = planned[job.name]
        taken = pool.take(count, kind, most_free_first=most_free_first)
        if taken is None:
            raise AssertionError(f"{job.name}: {count} devices of {kind} were planned and are not there")
        targets[job.name] = Target(taken, batch(job, (kind, count)) if batch else 0)
    return targets


def _is_on(state: ClusterState, job: JobView, kind: str) -> bool:
    return all(state.cluster.nodes[node].kind == kind for node, _ in job.allocation)
