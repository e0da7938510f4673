"""Which devices a job is granted: from numbers of devices to devices on nodes, and the decisions that lead there.

`Pool` is the one mutable helper of a decision: free devices per node while a policy hands them out. It does not decide
how many devices a job gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from isoscale.scheduling.state import (
    Allocation,
    Cluster,
    ClusterState,
    Decision,
    JobView,
    Pause,
    Reject,
    Resize,
    Resume,
    Start,
)

__all__ = ["Pool", "Target", "begin", "decisions_for", "held_by_tenant"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a job should hold after this round."""

    allocation: Allocation
    batch: int = 0


class Pool:
    """Free devices per node.

    >>> from isoscale.scheduling.state import Node
    >>> cluster = Cluster(nodes=tuple(Node(name=str(i), kind="T4", num_devices=4) for i in range(3)))
    >>> pool = Pool(cluster, [4, 2, 3])
    >>> pool.take(2, "T4"), pool.take(6, "T4"), pool.take(2, "T4"), pool.take(1, "T4")
    (((1, 2),), ((0, 4), (2, 2)), None, ((2, 1),))
    """

    def __init__(self, cluster: Cluster, free: Sequence[int], free_of: Mapping[str, int] | None = None) -> None:
        self.free = list(free)
        self.free_of = cluster.by_kind(free) if free_of is None else dict(free_of)
        self._nodes_of = cluster.nodes_of
        self._largest = cluster.node_sizes
        self._nodes = cluster.nodes

    @property
    def total(self) -> int:
        return sum(self.free_of.values())

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._nodes_of)

    def take(
        self, count: int, kind: str, *, max_nodes: int | None = None, most_free_first: bool = False
    ) -> Allocation | None:
        """`count` devices of one kind, taken out of the pool; None (and nothing taken) if they are not there.

        Packs: the fullest node that has room for all, else whole nodes from the emptiest on and the rest where it fits
        best. `most_free_first` takes from the emptiest node throughout (Pollux's simulator). `max_nodes` is a locality
        constraint: None if more nodes would be needed.
        """
        if count < 1 or self.free_of.get(kind, 0) < count:
            return None
        free = self.free
        taken: dict[int, int] = {}
        fits = not most_free_first and (max_nodes is None or max_nodes > 0)
        if fits and (node := self._tightest(kind, count, taken)) >= 0:
            return self._grab(((node, count),))  # most jobs fit on one node
        left = count
        while left:
            node = -1 if most_free_first else self._tightest(kind, left, taken)
            if node < 0:
                node = self._emptiest(kind, taken)
            taken[node] = min(free[node], left)
            left -= taken[node]
        if max_nodes is not None and len(taken) > max_nodes:
            return None
        return self._grab(tuple(sorted(taken.items())))

    def _tightest(self, kind: str, count: int, taken: Mapping[int, int]) -> int:
        """The fullest node that has `count` free devices, the first of equals; -1 if there is none."""
        free, nodes = self.free, self._nodes_of[kind]
        if taken or len(nodes) < len(free):
            fitting = [i for i in nodes if free[i] >= count and i not in taken]
            return min(fitting, key=free.__getitem__, default=-1)
        # One kind, as in most clusters: a list finds a number faster than we can look at each.
        for room in range(count, self._largest[kind] + 1):
            if room in free:
                return free.index(room)
        return -1

    def _emptiest(self, kind: str, taken: Mapping[int, int]) -> int:
        """The node with the most free devices, the first of equals."""
        free, nodes = self.free, self._nodes_of[kind]
        if taken or len(nodes) < len(free):
            return max(nodes, key=lambda i: 0 if i in taken else free[i])
        return free.index(max(free))

    def give(self, allocation: Allocation) -> None:
        """Puts devices back."""
        for node, count in allocation:
            self.free[node] += count
            self.free_of[self._nodes[node].kind] += count

    def grab(self, allocation: Allocation) -> bool:
        """Takes exactly these devices; False (and nothing taken) if one of them is not free."""
        if any(self.free[node] < count for node, count in allocation):
            return False
        self._grab(allocation)
        return True

    def grow(self, allocation: Allocation, more: int, kind: str) -> Allocation | None:
        """The allocation with `more` devices of `kind` added, on nodes it already uses if possible; None if too few."""
        if self.free_of.get(kind, 0) < more:
            return None
        held = dict(allocation)
        left = more
        for node in sorted(held, key=lambda i: -self.free[i]):
            if self._nodes[node].kind == kind and left and self.free[node]:
                count = min(left, self.free[node])
                self._grab(((node, count),))
                held[node] += count
                left -= count
        if left:
            for node, count in self.take(left, kind) or ():
                held[node] = held.get(node, 0) + count
        return tuple(sorted(held.items()))

    def shrink(self, allocation: Allocation, fewer: int, kind: str) -> Allocation:
        """The allocation with `fewer` devices of `kind` given back, from the nodes where it holds least."""
        held = dict(allocation)
        left = fewer
        for node in sorted((i for i in held if self._nodes[i].kind == kind), key=lambda i: (held[i], -i)):
            count = min(left, held[node])
            held[node] -= count
            left -= count
            self.give(((node, count),))
            if not left:
                break
        return tuple((node, count) for node, count in sorted(held.items()) if count)

    def _grab(self, allocation: Allocation) -> Allocation:
        for node, count in allocation:
            self.free[node] -= count
            self.free_of[self._nodes[node].kind] -= count
        return allocation


def decisions_for(
    state: ClusterState, targets: Mapping[str, Target], *, rejected: Mapping[str, str] | None = None
) -> list[Decision]:
    """The decisions that lead from `state` to `targets`: a running job without a target is paused.

    In the order of the jobs (running, then waiting), whatever the order of `targets`.
    """
    decisions: list[Decision] = []
    for name, job in state.running.items():
        target = targets.get(name)
        if target is None or not target.allocation:
            decisions.append(Pause(name))
        elif (target.allocation, target.batch) != (job.allocation, job.batch):
            decisions.append(Resize(name, target.allocation, target.batch))
    for name, job in state.waiting.items():
        if rejected and name in rejected:
            decisions.append(Reject(name, rejected[name]))
        elif name in targets and targets[name].allocation:
            decisions.append(begin(job, targets[name]))
    return decisions


def begin(job: JobView, target: Target) -> Decision:
    """Start or Resume, whichever a waiting job needs."""
    make = Start if job.status == "pending" else Resume
    return make(job.name, target.allocation, target.batch)


def held_by_tenant(jobs: Iterable[JobView]) -> dict[str, int]:
    """Devices that each tenant's jobs hold."""
    held: dict[str, int] = {}
    for job in jobs:
        held[job.request.tenant] = held.get(job.request.tenant, 0) + job.num_devices
    return held
