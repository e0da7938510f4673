"""Shortest remaining time first, for gangs: an oracle's rigid schedule, against which elastic ones are measured.

A job runs on its preferred kind, as its owner asked; with `kinds="choose"` on the fastest one with room (ours).
"""

from __future__ import annotations

import math

from isoscale.scheduling.allocation import decisions_for
from isoscale.scheduling.changes import movable_part
from isoscale.scheduling.policies.counting import Kinds, active_jobs, fill_gangs, place_counts, requested_rate
from isoscale.scheduling.policy import register
from isoscale.scheduling.state import ClusterState, Decision, JobView

__all__ = ["Srtf"]


@register("srtf", summary="shortest remaining time first, gangs, preemptive (oracle)")
class Srtf:
    """Gives each job what it asked for, those nearest to their end first, skipping those that do not fit."""

    interval_s = 60.0
    oracle = True
    watches_time = True
    gang = True

    def __init__(self, kinds: Kinds = "preferred") -> None:
        self._kinds: Kinds = kinds

    def decide(self, state: ClusterState) -> list[Decision]:
        state = movable_part(state)
        jobs = sorted(active_jobs(state), key=lambda job: (remaining_s(state, job), job.order))
        planned = fill_gangs(state, jobs, self._kinds)
        targets = place_counts(state, jobs, planned, batch=lambda job, _: job.request.requested_batch)
        return decisions_for(state, targets)


def remaining_s(state: ClusterState, job: JobView) -> float:
    """Seconds to the end with what the owner asked for; infinite if nobody knows."""
    rate = requested_rate(state, job)
    return state.remaining.get(job.name, math.inf) / rate if rate > 0 else math.inf
