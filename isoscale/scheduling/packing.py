"""Nodes for numbers of devices when crossing nodes costs speed: small jobs whole, large jobs in what is left.

A job that fits on one node suffers most from being scattered; one that needs several nodes anyway suffers little from
one more. So small jobs are placed first, whole; large ones fill up. Where a small job still has to be scattered, a
large one swaps devices with it, if what the small one gains by it is worth more than what the move costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isoscale.scheduling.allocation import Pool
from isoscale.scheduling.changes import restart_s
from isoscale.scheduling.state import Allocation, Cluster, ClusterState, JobView, num_devices, shape_of

__all__ = ["Counts", "Packer"]

#: devices by kind, in the cluster's order of kinds
Counts = tuple[tuple[str, int], ...]


@dataclass(slots=True, kw_only=True)
class Packer:
    """One round's placement. `worth` is what a unit of each job's work is worth; jobs without an entry are not moved.

    A job whose devices stay the same in number keeps them, unless a swap pays within `horizon_s`.
    """

    state: ClusterState
    worth: Mapping[str, float]
    horizon_s: float
    _pool: Pool = field(init=False)
    _placed: dict[str, Allocation] = field(init=False, default_factory=dict)
    #: jobs that are restarted anyway: moving them once more costs nothing
    _restarting: set[str] = field(init=False, default_factory=set)
    #: who is on each node, known once all are placed, and the order in which they were
    _on_node: dict[int, set[str]] = field(init=False, default_factory=dict)
    _rank: dict[str, int] = field(init=False, default_factory=dict)

    def pack(self, jobs: Sequence[JobView], sizes: Mapping[str, Counts]) -> dict[str, Allocation]:
        """Allocations for `sizes` by job name; sizes must fit the capacity, kind by kind."""
        cluster = self.state.cluster
        self._pool = Pool(cluster, self.state.capacity, self.state.capacity_of)
        moving: list[JobView] = []
        for job in jobs:
            wanted = sizes.get(job.name, ())
            if wanted and _counts(cluster, job.allocation) == wanted and self._pool.grab(job.allocation):
                self._placed[job.name] = job.allocation
            elif wanted:
                moving.append(job)
        moving.sort(key=lambda job: (self._is_large(sizes[job.name]), -sum(n for _, n in sizes[job.name]), job.order))
        for job in moving:
            parts = [self._pool.take(count, kind) for kind, count in sizes[job.name]]
            assert all(parts), f"{job.name}: {sizes[job.name]} were planned and are not there"
            self._placed[job.name] = tuple(sorted(pair for part in parts if part for pair in part))
            self._restarting.add(job.name)
        views = {job.name: job for job in jobs}
        scattered = [
            views[name]
            for name, where in self._placed.items()
            if len(where) > 1 and len(sizes[name]) == 1 and not self._is_large(sizes[name])
        ]
        if scattered:
            self._rank = {name: number for number, name in enumerate(self._placed)}
            for name, where in self._placed.items():
                self._note(name, where)
        for job in sorted(scattered, key=lambda job: (-self.worth.get(job.name, 0.0), job.order)):
            self._gather(job, views)
        return self._placed

    def _note(self, name: str, where: Allocation) -> None:
        for node, _ in where:
            self._on_node.setdefault(node, set()).add(name)

    def _is_large(self, counts: Counts) -> bool:
        return any(count > self.state.cluster.node_size(kind) for kind, count in counts)

    def _gather(self, job: JobView, views: Mapping[str, JobView]) -> None:
        """Puts a scattered job on one node if there is room, or if one large job can make room at a profit."""
        cluster, where = self.state.cluster, self._placed[job.name]
        kind, count = cluster.nodes[where[0][0]].kind, num_devices(where)
        gain = self.worth.get(job.name, 0.0) * self.horizon_s
        gain *= job.speed.rate(((kind, count),)) - job.speed.rate(shape_of(cluster, where))
        gain -= self._move_cost(job)
        if gain <= 0:
            return
        best: tuple[float, int, str] | None = None
        own = dict(where)
        for node in cluster.nodes_of[kind]:
            missing = count - own.get(node, 0) - self._pool.free[node]
            if missing <= 0:
                best = (0.0, node, "")
                break
            for other in sorted(self._on_node.get(node, ()), key=self._rank.__getitem__):
                held = self._placed[other]
                if other != job.name and len(held) > 1 and dict(held).get(node, 0) >= missing:
                    cost = self._move_cost(views[other])
                    if cost < gain and (best is None or cost < best[0]):
                        best = (cost, node, other)
        if best is not None:
            self._swap(job.name, best[1], best[2], kind, count)

    def _swap(self, name: str, node: int, other: str, kind: str, count: int) -> None:
        """Moves `name` to `node`; `other`, if any, gives up devices there and gets as many of those left behind."""
        pool, placed = self._pool, self._placed
        for one in filter(None, (name, other)):
            for at, _ in placed[one]:
                self._on_node[at].discard(one)
        pool.give(placed[name])
        if other:
            missing = count - pool.free[node]
            pool.give(((node, missing),))
            rest = {n: c - missing if n == node else c for n, c in placed[other]}
            pool.grab(((node, count),))
            regrown = pool.grow(tuple((n, c) for n, c in rest.items() if c), missing, kind)
            assert regrown is not None, "the devices that the small job left are free"
            placed[other] = regrown
            self._restarting.add(other)
        else:
            pool.grab(((node, count),))
        placed[name] = ((node, count),)
        self._restarting.add(name)
        for one in filter(None, (name, other)):
            self._note(one, placed[one])

    def _move_cost(self, job: JobView) -> float:
        """Work lost to one restart, at its worth; infinite for a job that must not be moved."""
        if job.name in self._restarting:
            return 0.0
        if job.name not in self.worth or not job.request.preemptible:
            return float("inf")
        rate = job.speed.rate(shape_of(self.state.cluster, self._placed[job.name]), job.batch)
        return self.worth[job.name] * rate * restart_s(self.state, job)


def _counts(cluster: Cluster, allocation: Allocation) -> Counts:
    held: dict[str, int] = {}
    for node, count in allocation:
        held[cluster.nodes[node].kind] = held.get(cluster.nodes[node].kind, 0) + count
    return tuple((kind, held[kind]) for kind in cluster.kinds if kind in held)
