"""What running jobs hold beyond their minimum, and who gives of it: the one with the most to spare first."""

from __future__ import annotations

from collections.abc import Set

from isoscale.scheduling.changes import is_changing
from isoscale.scheduling.state import Allocation, ClusterState, Decision, JobView, Resize, num_devices

__all__ = ["Surplus"]


class Surplus:
    def __init__(self, state: ClusterState, busy: Set[str] = frozenset()) -> None:
        """Of jobs that may be changed now; `busy` ones were changed in this round."""
        self._nodes = state.cluster.nodes
        self._jobs: dict[str, JobView] = {
            name: job
            for name, job in state.running.items()
            if job.request.preemptible and name not in busy and not is_changing(state, job)
        }
        self._held: dict[str, Allocation] = {name: job.allocation for name, job in self._jobs.items()}
        #: of all of them together, whatever their kinds and priorities: nobody gets more
        self.most = sum(max(0, job.num_devices - max(1, job.request.min_devices)) for job in self._jobs.values())
        #: jobs that gave something
        self.shrunk: dict[str, None] = {}

    def give(self, kind: str, count: int, priority: int) -> Allocation | None:
        """Gives up so many devices of a kind, all or none: None if there are not so many. Jobs of a higher priority
        than `priority` give nothing."""
        if count > self.most:
            return None
        held, given, shrunk = dict(self._held), dict[int, int](), dict(self.shrunk)
        for _ in range(count):
            spare = {
                name: num_devices(held[name]) - max(1, job.request.min_devices)
                for name, job in self._jobs.items()
                if job.request.priority <= priority and self._last(held[name], kind) is not None
            }
            # Of equals the latest one gives.
            name = max(spare, key=lambda one: (spare[one], self._jobs[one].order), default="")
            if not name or spare[name] <= 0:
                return None
            node = self._last(held[name], kind)
            assert node is not None
            held[name] = tuple((n, c - (n == node)) for n, c in held[name] if c > (n == node))
            given[node] = given.get(node, 0) + 1
            shrunk[name] = None
        self._held, self.shrunk, self.most = held, shrunk, self.most - max(0, count)
        return tuple(sorted(given.items()))

    def decisions(self) -> list[Decision]:
        return [Resize(name, self._held[name], self._jobs[name].batch) for name in self.shrunk]

    def _last(self, allocation: Allocation, kind: str) -> int | None:
        """Of the nodes of this kind, the one where it holds least."""
        nodes = [(count, -node) for node, count in allocation if self._nodes[node].kind == kind]
        return -min(nodes)[1] if nodes else None
