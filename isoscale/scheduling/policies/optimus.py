"""Optimus: one device for everybody, then device by device to whoever saves most time.

    gain of one more device = remaining steps * (step_s(k) - step_s(k + 1))

with the batch the owner asked for. Jobs that know their end are predicted exactly ("Optimus+Oracle" in Pollux's paper);
here work must be declared, in steps, and step times come from the job's speed model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.allocation import decisions_for
from isoscale.scheduling.greedy import share_by_gain
from isoscale.scheduling.policies.counting import by_kind, capacity_of, place_counts
from isoscale.scheduling.policy import register
from isoscale.scheduling.state import ClusterState, Decision, JobView, SpeedModel, packed_shape

__all__ = ["Optimus"]


@register("optimus", summary="Optimus: greedy by time saved per device")
class Optimus:
    """Elastic in the number of devices, with the requested batch; placed as Pollux's simulator does."""

    interval_s = 60.0
    oracle = True
    watches_time = True
    gang = False

    def __init__(self) -> None:
        #: step times by job, worked out once per speed model
        self._steps: dict[str, tuple[SpeedModel, NDArray[np.float64]]] = {}

    def decide(self, state: ClusterState) -> list[Decision]:
        counts: dict[str, int] = {}
        ordered: list[JobView] = []
        for kind, jobs in by_kind(state).items():
            counts |= self._share_out(state, kind, jobs)
            ordered += jobs
        self._steps = {job.name: self._steps[job.name] for job in ordered if job.name in self._steps}
        targets = place_counts(
            state,
            ordered,
            counts,
            batch=lambda job, _: job.request.requested_batch,
            first="smallest",
            most_free_first=True,
        )
        return decisions_for(state, targets)

    def _share_out(self, state: ClusterState, kind: str, jobs: list[JobView]) -> dict[str, int]:
        left = capacity_of(state, kind)
        size = max(1, state.cluster.node_size(kind))
        started = jobs[:left]
        seconds = [
            -max(1.0, state.remaining.get(job.name, 1.0)) * self._step_times(job, kind, size, left) for job in started
        ]
        sizes = share_by_gain(seconds, [1] * len(started), left - len(started))
        return {job.name: size for job, size in zip(started, sizes, strict=True)}

    def _step_times(self, job: JobView, kind: str, node_size: int, capacity: int) -> NDArray[np.float64]:
        """Seconds of a step on 0..max packed devices, with infinity for none."""
        known = self._steps.get(job.name)
        if known is None or known[0] is not job.speed:
            most = min(job.request.max_devices, capacity)
            batch = job.request.requested_batch
            seconds = [job.speed.step_s(packed_shape(kind, k, node_size), batch) for k in range(1, most + 1)]
            known = (job.speed, np.array([np.inf, *seconds]))
            self._steps[job.name] = known
        return known[1]
