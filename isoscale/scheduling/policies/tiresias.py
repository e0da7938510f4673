"""Tiresias (two queues by attained service, gangs) and EDL's Elastic-Tiresias on top of it.

Attained service is time with devices times devices asked for. A job that reaches the threshold goes from the first
queue to the end of the second. Every round gives devices to the first queue's jobs in order of arrival, then to the
second's in order of demotion, skipping those that do not fit; whoever is not chosen is paused.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.allocation import decisions_for
from isoscale.scheduling.greedy import share_by_gain
from isoscale.scheduling.policies.counting import (
    active_jobs,
    by_kind,
    capacity_of,
    fill_gangs,
    place_counts,
    rate_table,
)
from isoscale.scheduling.policy import register
from isoscale.scheduling.state import ClusterState, Decision, JobView, SpeedModel

__all__ = ["ElasticTiresias", "Tiresias"]

#: device-seconds after which a job leaves the first queue, as in Pollux's simulator
QUEUE_THRESHOLD_S = 16 * 3600.0


@register("tiresias", summary="two-queue Tiresias, gangs, preemptive")
class Tiresias:
    """Discretised two-dimensional least attained service. `starvation` promotes a demoted job that has waited longer
    than so many times what it ran; 0 never does, as in Pollux's simulator."""

    interval_s = 60.0
    oracle = False
    watches_time = True
    gang = True

    def __init__(self, threshold_s: float = QUEUE_THRESHOLD_S, starvation: float = 0.0) -> None:
        self._threshold_s = threshold_s
        self._starvation = starvation
        #: demoted jobs in order of demotion, and the running time at which counting began anew for promoted ones
        self._demoted: dict[str, None] = {}
        self._forgiven: dict[str, float] = {}

    def decide(self, state: ClusterState) -> list[Decision]:
        queues = self._queues(state)
        jobs = [job for queue in queues for job in queue]
        targets = place_counts(
            state, jobs, fill_gangs(state, jobs), batch=_requested, first="given", most_free_first=True
        )
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

    def __init__(self, threshold_s: float = QUEUE_THRESHOLD_S, starvation: float = 0.0, crowd: int = 10) -> None:
        super().__init__(threshold_s, starvation)
        self._crowd = crowd
        #: speed-ups by job, worked out once per speed model and capacity
        self._known: dict[str, tuple[SpeedModel, int, NDArray[np.float64]]] = {}

    def decide(self, state: ClusterState) -> list[Decision]:
        queues = self._queues(state)
        counts = fill_gangs(state, [job for queue in queues for job in queue])
        if sum(len(queue) for queue in queues) - len(counts) > self._crowd:
            for job in queues[1]:
                if job.name in counts:
                    counts[job.name] = min(counts[job.name], max(1, job.request.min_devices))
        self._known = {
            name: self._known[name] for name in self._known if name in state.running or name in state.waiting
        }
        for kind, jobs in by_kind(state).items():
            self._expand(state, kind, jobs, counts)
        jobs = [job for queue in queues for job in queue]
        return decisions_for(state, place_counts(state, jobs, counts, batch=_requested))

    def _expand(self, state: ClusterState, kind: str, jobs: list[JobView], counts: dict[str, int]) -> None:
        left = capacity_of(state, kind) - sum(counts.get(job.name, 0) for job in jobs)
        if left <= 0:
            return
        sizes = share_by_gain(
            [self._speedups(state, job, kind) for job in jobs],
            [counts.get(job.name, 0) for job in jobs],
            left,
            [job.request.min_devices for job in jobs],
        )
        counts |= {job.name: size for job, size in zip(jobs, sizes, strict=True) if size}

    def _speedups(self, state: ClusterState, job: JobView, kind: str) -> NDArray[np.float64]:
        known, capacity = self._known.get(job.name), capacity_of(state, kind)
        if known is None or known[0] is not job.speed or known[1] != capacity:
            rates = rate_table(state, job, kind, batch=job.request.requested_batch)
            one = rates[np.argmax(rates > 0)]
            known = self._known[job.name] = (job.speed, capacity, rates / one if one > 0 else rates)
        return known[2]


def _requested(job: JobView, count: int) -> int:
    return job.request.requested_batch
