"""Optimus: one device for everybody, then device by device to whoever saves most time.

    gain of one more device = remaining steps * (step_s(k) - step_s(k + 1))

with the batch the owner asked for. Jobs that know their end are predicted exactly ("Optimus+Oracle" in Pollux's paper);
here work must be declared, in steps, and step times come from the job's speed model.

Optimus knows one kind of device. On a mixed cluster (ours) a job's first device is of the kind on which it is fastest
and that has one left; a job moves to another kind where the devices left over there save it time.
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
    held_kind,
    kinds_of,
    place_counts,
)
from isoscale.scheduling.policy import register
from isoscale.scheduling.state import ClusterState, Decision, JobView, SpeedModel, packed_shape

__all__ = ["Optimus"]


@register("optimus", summary="Optimus: greedy by time saved per device")
class Optimus:
    """Elastic in the number of devices, with the requested batch; placed as Pollux's simulator does.

    `kinds` "preferred" plans every job on its preferred kind, each kind by itself.
    """

    interval_s = 60.0
    oracle = True
    watches_time = True
    gang = False

    def __init__(self, kinds: Kinds = "choose") -> None:
        self._kinds: Kinds = kinds
        #: step times by job and kind, worked out once per speed model
        self._steps: dict[tuple[str, str], tuple[SpeedModel, NDArray[np.float64]]] = {}

    def decide(self, state: ClusterState) -> list[Decision]:
        state = movable_part(state)
        planned: dict[str, Planned] = {}
        ordered = active_jobs(state)
        if self._kinds == "choose" and len(state.cluster.kinds) > 1:
            planned = self._share_over_kinds(state, ordered)
        else:
            ordered = []
            for kind, jobs in by_kind(state).items():
                planned |= self._share_out(state, kind, jobs)
                ordered += jobs
        names = {job.name for job in ordered}
        self._steps = {key: value for key, value in self._steps.items() if key[0] in names}
        targets = place_counts(
            state,
            ordered,
            planned,
            batch=lambda job, _: job.request.requested_batch,
            first="smallest",
            most_free_first=True,
        )
        return decisions_for(state, targets)

    def _share_out(self, state: ClusterState, kind: str, jobs: list[JobView]) -> dict[str, Planned]:
        left = capacity_of(state, kind)
        started, first = [], []
        for job in jobs:
            least = max(1, job.request.min_devices)
            if least <= left:
                started.append(job)
                first.append(least)
                left -= least
        sizes = share_by_gain([self._seconds(state, job, kind) for job in started], first, left)
        return {job.name: (kind, size) for job, size in zip(started, sizes, strict=True)}

    def _share_over_kinds(self, state: ClusterState, jobs: list[JobView]) -> dict[str, Planned]:
        left = dict(state.capacity_of)
        seekers = []
        # Who runs keeps a first step of its kind, in order of submission like everybody else.
        for job in jobs:
            step, held = max(1, job.request.min_devices), held_kind(state, job)
            tables = {kind: self._seconds(state, job, kind) for kind in kinds_of(state, job, "choose")}
            seeker = Seeker(tables=tables, first_step=step, factor=change_factor(state, job))
            if held in tables and left[held] >= step and tables[held][min(step, len(tables[held]) - 1)] > -np.inf:
                seeker.kind, seeker.size = held, step
                left[held] -= step
            seekers.append(seeker)
        shared = share_over_kinds(seekers, left)
        return {job.name: planned for job, planned in zip(jobs, shared, strict=True) if planned[1]}

    def _seconds(self, state: ClusterState, job: JobView, kind: str) -> NDArray[np.float64]:
        """Less the seconds that the job still takes on 0..max devices; minus infinity below its minimum."""
        size = max(1, state.cluster.node_size(kind))
        steps = self._step_times(job, kind, size, capacity_of(state, kind))
        seconds = max(1.0, state.remaining.get(job.name, 1.0)) * steps
        seconds[: job.request.min_devices] = np.inf
        return -seconds

    def _step_times(self, job: JobView, kind: str, node_size: int, capacity: int) -> NDArray[np.float64]:
        """Seconds of a step on 0..max packed devices, with infinity for none."""
        known = self._steps.get((job.name, kind))
        most = min(job.request.max_devices, capacity)
        if known is None or known[0] is not job.speed or len(known[1]) != most + 1:
            batch = job.request.requested_batch
            seconds = [job.speed.step_s(packed_shape(kind, k, node_size), batch) for k in range(1, most + 1)]
            known = (job.speed, np.array([np.inf, *seconds]))
            self._steps[job.name, kind] = known
        return known[1]
