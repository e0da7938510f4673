"""First come, first served, for gangs: a job gets all the devices it asked for, of its preferred kind, or waits.

Never preempts and never resizes. With one line per cluster the first job that does not fit holds up the rest; with one
line per kind only those behind it that want the same kind; with backfill nobody (and large jobs may starve).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from isoscale.scheduling.allocation import Pool, Target, begin, held_by_tenant
from isoscale.scheduling.policy import register
from isoscale.scheduling.quotas import least_wanted, others_want
from isoscale.scheduling.state import Allocation, ClusterState, Decision, JobView, packed_shape, shape_of

__all__ = ["Fifo"]

#: what a job that does not fit holds up
Blocking = Literal["all", "kind", "none"]


@register("fifo", summary="gang FIFO, strict order")
class Fifo:
    """Gang FIFO; higher priority first, then by submission. `locality_s` asks for as few nodes as possible, and relaxes
    that after so many seconds of waiting (the Philly cluster's rule); 0 takes whatever is free.

    `run_s` makes locality a price instead: a job that would be x times slower scattered over what is free than packed
    loses x * `run_s` seconds if it runs as long as that, so it waits that long for better, and no longer.
    """

    interval_s = 0.0
    oracle = False
    gang = True

    def __init__(self, blocking: Blocking = "all", locality_s: float = 0.0, run_s: float = 0.0) -> None:
        self._blocking = blocking
        self._locality_s = locality_s
        self._run_s = run_s
        #: only a relaxation that comes with time makes time matter
        self.watches_time = locality_s > 0 or run_s > 0

    def decide(self, state: ClusterState) -> list[Decision]:
        decisions: list[Decision] = []
        if not state.waiting:
            return decisions
        pool = Pool(state.cluster, state.free, state.free_of)
        held = held_by_tenant(state.running.values()) if state.quotas else {}
        least = least_wanted(state.waiting.values(), gang=True) if state.quotas else {}
        blocked: set[str] = set()
        #: smallest number of devices that could not be had, by kind
        too_many: dict[str, int] = {}
        left = pool.total
        for job in in_order(state):
            if not left or "" in blocked:
                break
            wanted, kind = job.request.requested_devices, preferred_kind(job, pool)
            if kind in blocked or (state.quotas and _held_back(job, held, least, state.quotas)):
                continue
            nodes = self._max_nodes(state, job, kind) if self._locality_s > 0 else None
            taken = None if wanted >= too_many.get(kind, wanted + 1) else pool.take(wanted, kind, max_nodes=nodes)
            if taken is not None and self._run_s and not self._is_worth(state, job, kind, taken):
                pool.give(taken)
                nodes, taken = len(taken) - 1, None
            if taken is not None:
                decisions.append(begin(job, Target(taken, job.request.requested_batch)))
                left -= wanted
                if state.quotas:
                    held[job.request.tenant] = held.get(job.request.tenant, 0) + wanted
                continue
            if nodes is None:
                too_many[kind] = min(wanted, too_many.get(kind, wanted))
            if self._blocking != "none":
                blocked.add("" if self._blocking == "all" else kind)
        return decisions

    def _is_worth(self, state: ClusterState, job: JobView, kind: str, taken: Allocation) -> bool:
        """Whether to start on these devices now; what they lack in speed is weighed against the time already waited."""
        wanted, size = job.request.requested_devices, max(1, state.cluster.node_size(kind))
        if len(taken) <= -(-wanted // size):
            return True
        here = job.speed.rate(shape_of(state.cluster, taken), job.batch)
        packed = job.speed.rate(packed_shape(kind, wanted, size), job.batch)
        slower = packed / here - 1.0 if here > 0 else math.inf
        return slower * self._run_s <= state.now - job.request.submitted_s

    def _max_nodes(self, state: ClusterState, job: JobView, kind: str) -> int | None:
        if self._locality_s <= 0 or state.now - job.request.submitted_s >= self._locality_s:
            return None
        return -(-job.request.requested_devices // max(1, state.cluster.node_size(kind)))


@register("fifo-per-kind", summary="gang FIFO, one line per device kind")
def _fifo_per_kind(locality_s: float = 0.0, run_s: float = 0.0) -> Fifo:
    return Fifo("kind", locality_s, run_s)


@register("fifo-backfill", summary="gang FIFO, whoever fits goes ahead")
def _fifo_backfill(locality_s: float = 0.0, run_s: float = 0.0) -> Fifo:
    return Fifo("none", locality_s, run_s)


def _held_back(job: JobView, held: Mapping[str, int], least: Mapping[str, int], quotas: Mapping[str, int]) -> bool:
    """Whether its quota keeps a job from running, so that it must not hold up others; the rule is that of `quotas`."""
    tenant = job.request.tenant
    over = held.get(tenant, 0) + job.request.requested_devices > quotas.get(tenant, math.inf)
    return over and others_want(tenant, least, held, quotas)


def in_order(state: ClusterState) -> Iterable[JobView]:
    """Waiting jobs, higher priority first, then by submission."""
    if not state.has_priorities:
        return state.waiting.values()
    return sorted(state.waiting.values(), key=lambda job: -job.request.priority)


def preferred_kind(job: JobView, pool: Pool) -> str:
    """The kind that a rigid job runs on: its first choice, or the cluster's only or emptiest kind if it has none."""
    if job.request.kinds:
        return job.request.kinds[0]
    return max(pool.kinds, key=lambda kind: pool.free_of[kind])
