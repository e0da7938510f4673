"""Tiresias (two queues by attained service, gangs) and EDL's Elastic-Tiresias on top of it.

Attained service is time with devices times devices asked for. A job that reaches the threshold goes from the first
queue to the end of the second. Every round gives devices to the first queue's jobs in order of arrival, then to the
second's in order of demotion, skipping those that do not fit; whoever is not chosen is paused.

Both know one kind of device. On a mixed cluster (ours) a gang takes the fastest of its kinds that has room, stays there
while it runs, and moves to a faster one with room left if that pays; devices left over go to jobs on their kind, and
jobs move to kinds with devices left over if they gain by it. Service is counted in device-seconds of whatever kind.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.allocation import decisions_for
from isoscale.scheduling.changes import change_factor, movable_part
from isoscale.scheduling.greedy import Seeker, share_by_gain, share_over_kinds
from isoscale.scheduling.policies.counting import (
    Kinds,
    Planned,
    active_jobs,
    by_kind,
    capacity_of,
    fill_gangs,
    kind_of,
    kinds_of,
    place_counts,
    rate_table,
)
from isoscale.scheduling.policy import register
from isoscale.scheduling.state import ClusterState, Decision, JobView, SpeedModel, packed_shape

__all__ = ["ElasticTiresias", "Tiresias"]

#: device-seconds after which a job leaves the first queue, as in Pollux's simulator
QUEUE_THRESHOLD_S = 16 * 3600.0


@register("tiresias", summary="two-queue Tiresias, gangs, preemptive")
class Tiresias:
    """Discretised two-dimensional least attained service. `starvation` promotes a demoted job that has waited longer
    than so many times what it ran; 0 never does, as in Pollux's simulator. `kinds` "preferred" leaves every job on its
    preferred kind."""

    interval_s = 60.0
    oracle = False
    watches_time = True
    gang = True

    def __init__(
        self, threshold_s: float = QUEUE_THRESHOLD_S, starvation: float = 0.0, kinds: Kinds = "choose"
    ) -> None:
        self._threshold_s = threshold_s
        self._starvation = starvation
        self._kinds: Kinds = kinds
        #: demoted jobs in order of demotion, and the running time at which counting began anew for promoted ones
        self._demoted: dict[str, None] = {}
        self._forgiven: dict[str, float] = {}

    def decide(self, state: ClusterState) -> list[Decision]:
        queues = self._queues(state)
        state = movable_part(state)
        jobs = _present(state, queues)
        planned = fill_gangs(state, jobs, self._kinds)
        targets = place_counts(state, jobs, planned, batch=_requested, first="given", most_free_first=True)
        return decisions_for(state, targets)

    def _queues(self, state: ClusterState) -> tuple[list[JobView], list[JobView]]:
        jobs = {job.name: job for job in active_jobs(state)}
        self._demoted = {name: None for name in self._demoted if name in jobs}
        self._forgiven = {name: seconds for name, seconds in self._forgiven.items() if name in jobs}
        for name, job in jobs.items():
            ran = job.running_s(state.now) - self._forgiven.get(name, 0.0)
            if name in self._demoted:
                if self._starvation > 0 and not job.allocation and state.now - job.since_s >= ran * self._starvation:
                    del self._demoted[name]
                    self._forgiven[name] = job.running_s(state.now)
            elif job.allocation and ran * job.request.requested_devices >= self._threshold_s:
                self._demoted[name] = None
        return [job for job in jobs.values() if job.name not in self._demoted], [jobs[name] for name in self._demoted]


@register("elastic-tiresias", summary="Tiresias with EDL's compaction and expansion")
class ElasticTiresias(Tiresias):
    """EDL's two rules on top of Tiresias.

    Compaction: while more than `crowd` jobs wait, demoted jobs run on their minimum. Expansion: devices left over go
    one by one to the job, waiting ones included, that gains most speed-up: s(p + 1) - s(p), s(p) = rate(p) / rate(1).
    """

    gang = False

    def __init__(
        self,
        threshold_s: float = QUEUE_THRESHOLD_S,
        starvation: float = 0.0,
        crowd: int = 10,
        kinds: Kinds = "choose",
    ) -> None:
        super().__init__(threshold_s, starvation, kinds)
        self._crowd = crowd
        #: speed-ups by job and kind, worked out once per speed model and capacity
        self._known: dict[tuple[str, str], tuple[SpeedModel, int, NDArray[np.float64]]] = {}

    def decide(self, state: ClusterState) -> list[Decision]:
        queues = self._queues(state)
        whole, state = state, movable_part(state)
        jobs = _present(state, queues)
        planned = fill_gangs(state, jobs, self._kinds)
        if len(jobs) - len(planned) > self._crowd:
            for job in queues[1]:
                if job.name in planned:
                    kind, count = planned[job.name]
                    planned[job.name] = (kind, min(count, max(1, job.request.min_devices)))
        known = {key: value for key, value in self._known.items() if key[0] in whole.running or key[0] in whole.waiting}
        self._known = known
        if self._kinds == "choose" and len(state.cluster.kinds) > 1:
            planned = self._expand_over_kinds(state, jobs, planned)
        else:
            for kind, group in by_kind(state).items():
                self._expand(state, kind, group, planned)
        return decisions_for(state, place_counts(state, jobs, planned, batch=_requested))

    def _expand(self, state: ClusterState, kind: str, jobs: list[JobView], planned: dict[str, Planned]) -> None:
        held = [planned.get(job.name, ("", 0))[1] for job in jobs]
        left = capacity_of(state, kind) - sum(held)
        if left <= 0:
            return
        tables = [self._speedups(state, job, kind) for job in jobs]
        sizes = share_by_gain(tables, held, left, [job.request.min_devices for job in jobs])
        planned |= {job.name: (kind, size) for job, size in zip(jobs, sizes, strict=True) if size}

    def _expand_over_kinds(
        self, state: ClusterState, jobs: list[JobView], planned: dict[str, Planned]
    ) -> dict[str, Planned]:
        left = dict(state.capacity_of)
        for kind, count in planned.values():
            left[kind] -= count
        seekers = []
        for job in jobs:
            kind, count = planned.get(job.name, ("", 0))
            tables = {}
            for one in dict.fromkeys([*([kind] if kind else []), *kinds_of(state, job, "choose")]):
                speedups = self._speedups(state, job, one)
                tables[one] = np.where(speedups > 0, speedups, -np.inf)
            seekers.append(
                Seeker(
                    tables=tables,
                    kind=kind,
                    size=count,
                    first_step=max(1, job.request.min_devices),
                    factor=change_factor(state, job),
                )
            )
        shared = share_over_kinds(seekers, left)
        return {job.name: one for job, one in zip(jobs, shared, strict=True) if one[1]}

    def _speedups(self, state: ClusterState, job: JobView, kind: str) -> NDArray[np.float64]:
        """Rates relative to one device of the preferred kind."""
        known, capacity = self._known.get((job.name, kind)), capacity_of(state, kind)
        if known is None or known[0] is not job.speed or known[1] != capacity:
            rates = rate_table(state, job, kind, batch=job.request.requested_batch)
            one = self._one(state, job, kind, rates)
            known = self._known[job.name, kind] = (job.speed, capacity, rates / one if one > 0 else rates)
        return known[2]

    def _one(self, state: ClusterState, job: JobView, kind: str, rates: NDArray[np.float64]) -> float:
        """The rate on the fewest devices that the job runs on: of its preferred kind, or of this one if it cannot."""
        if self._kinds == "choose" and len(state.cluster.kinds) > 1:
            preferred = kind_of(state, job)
            least = max(1, job.request.min_devices)
            shape = packed_shape(preferred, least, max(1, state.cluster.node_size(preferred)))
            rate = job.speed.rate(shape, job.request.requested_batch)
            if rate > 0:
                return rate
        return float(rates[np.argmax(rates > 0)])


def _present(state: ClusterState, queues: tuple[list[JobView], list[JobView]]) -> list[JobView]:
    """The queues' jobs that are to be planned, in order."""
    return [job for queue in queues for job in queue if job.name in state.running or job.name in state.waiting]


def _requested(job: JobView, planned: Planned) -> int:
    return job.request.requested_batch
