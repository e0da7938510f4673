"""Whether decisions fit the cluster that they were made for. Looks only: nothing is booked here.

A policy that breaks these rules is a bug, not a full cluster, so the first decision that does is named in a ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence

from isoscale.scheduling.state import Allocation, ClusterState, Decision, JobView, Pause, Reject, Resize, Start

__all__ = ["check_decisions"]


def check_decisions(state: ClusterState, decisions: Sequence[Decision]) -> None:
    """Each decision is possible for its job, and together they give away no more devices than there are.

    All that these decisions free counts as free, in whatever order they come. Raises ValueError.
    """
    free = list(state.free)
    decided: set[str] = set()
    for decision in decisions:
        job = state.running.get(decision.job) or state.waiting.get(decision.job)
        if job is None:
            raise ValueError(f"{decision}: there is no such job")
        if decision.job in decided:
            raise ValueError(f"{decision}: the job was decided about twice in one round")
        decided.add(decision.job)
        _check_status(decision, job)
        _check_allocation(decision, state)
        for node, count in job.allocation:
            free[node] += count
    for decision in decisions:
        for node, count in _granted(decision):
            free[node] -= count
            if free[node] < 0:
                raise ValueError(
                    f"{decision}: the policy gave away {-free[node]} more devices of node "
                    f"{state.cluster.nodes[node].name!r} than there are"
                )


def _granted(decision: Decision) -> Allocation:
    return () if isinstance(decision, Pause | Reject) else decision.allocation


def _check_status(decision: Decision, job: JobView) -> None:
    running = isinstance(decision, Pause | Resize)
    possible = (job.status == "running") == running
    if possible and not running and not isinstance(decision, Reject):
        possible = (job.status == "pending") == isinstance(decision, Start)
    if not possible:
        raise ValueError(f"{decision}: the job is {job.status}")


def _check_allocation(decision: Decision, state: ClusterState) -> None:
    if isinstance(decision, Pause | Reject):
        return
    if len(decision.allocation) == 1:  # one node, as most jobs have: nothing to compare
        [(only, count)] = decision.allocation
        if count >= 1 and 0 <= only < len(state.free):
            return
    nodes = [node for node, _ in decision.allocation]
    if not nodes:
        raise ValueError(f"{decision}: grants no device")
    if len(set(nodes)) < len(nodes) or min(count for _, count in decision.allocation) < 1:
        raise ValueError(f"{decision}: an allocation names each node once, with a positive number of devices")
    if not all(0 <= node < len(state.free) for node in nodes):
        raise ValueError(f"{decision}: the cluster has nodes 0 to {len(state.free) - 1}")
