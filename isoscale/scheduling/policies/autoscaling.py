"""The autoscaler of Effective Elastic Scaling: as much normalised throughput as the cluster can give, batch included.

Every decision solves, exactly, max sum_j T_j(k_j) with at least one device for every admitted job, where

    T_j(k) = rate(k devices, best batch for k) / rate(1 device, best batch)

Jobs are admitted first come, first served, as long as all admitted ones can run at once; the rest wait or are dropped.
The baselines are the same autoscaler with each job's batch held at its largest, smallest or a random value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.allocation import decisions_for
from isoscale.scheduling.autoscaler import allocate
from isoscale.scheduling.policies.counting import by_kind, capacity_of, place_counts, rate_table
from isoscale.scheduling.policy import register
from isoscale.scheduling.state import ClusterState, Decision, JobView, SpeedModel, packed_shape

__all__ = ["Autoscaler"]

Batch = Literal["best", "max", "min", "random"]


class _Known(NamedTuple):
    """A job's scaling factors under a speed model and a capacity, and the fewest devices it can run on (0: none)."""

    speed: SpeedModel
    capacity: int
    values: NDArray[np.float64]
    least: int


@register("autoscaler", summary="Effective Elastic Scaling: exact, chooses batches")
class Autoscaler:
    """`mode` "queue" lets jobs that do not fit wait for the next decision, "drop" rejects them."""

    interval_s = 600.0
    oracle = False
    watches_time = False
    gang = False

    def __init__(self, mode: Literal["queue", "drop"] = "queue", batch: Batch = "best", seed: int = 0) -> None:
        self._mode = mode
        self._batch: Batch = batch
        self._seed = seed
        #: what was worked out for the jobs admitted last
        self._known: dict[str, _Known] = {}

    def decide(self, state: ClusterState) -> list[Decision]:
        counts: dict[str, int] = {}
        ordered: list[JobView] = []
        rejected: dict[str, str] = {}
        known: dict[str, _Known] = {}
        for kind, jobs in by_kind(state).items():
            capacity = capacity_of(state, kind)
            admitted = self._admit(state, kind, jobs)
            kept = {job.name: self._known[job.name] for job in admitted}
            sizes = allocate([one.values for one in kept.values()], capacity)
            assert sizes is not None, "admitted jobs fit by construction"
            counts |= dict(zip(kept, sizes, strict=True))
            known |= kept
            ordered += admitted
            if self._mode == "drop":
                dropped = {job.name for job in jobs if not job.allocation} - counts.keys()
                rejected |= dict.fromkeys(dropped, "no device left for it at its first decision")
        self._known = known
        sizes_of = {kind: max(1, state.cluster.node_size(kind)) for kind in state.cluster.kinds}

        def batch(job: JobView, count: int) -> int:
            if job.num_devices == count:  # same devices: the batch in use stays, or the job would restart for it
                return job.batch
            kind = job.request.kinds[0] if job.request.kinds else state.cluster.kinds[0]
            fixed = self._fixed_batch(job)
            return fixed or job.speed.best_batch(packed_shape(kind, count, sizes_of[kind]))

        return decisions_for(state, place_counts(state, ordered, counts, batch=batch), rejected=rejected)

    def _admit(self, state: ClusterState, kind: str, jobs: Sequence[JobView]) -> list[JobView]:
        """Running jobs, then waiting ones in order until the first that does not fit; in order of submission.

        Nobody looks at those behind it: a long line costs nothing.
        """
        admitted: list[JobView] = []
        left = capacity_of(state, kind)
        for job in sorted(jobs, key=lambda job: (not job.allocation, -job.request.priority, job.order)):
            least = self._know(state, job, kind).least
            if not least:
                continue
            if least > left:
                if job.allocation:
                    continue  # capacity shrank under a running job; it is paused, others may still fit
                break
            left -= least
            admitted.append(job)
        return sorted(admitted, key=lambda job: job.order)

    def _know(self, state: ClusterState, job: JobView, kind: str) -> _Known:
        known, capacity = self._known.get(job.name), capacity_of(state, kind)
        if known is None or known.speed is not job.speed or known.capacity != capacity:
            values = self._scaling_factors(state, job, kind)
            known = self._known[job.name] = _Known(job.speed, capacity, values, int(np.argmax(values > -np.inf)))
        return known

    def _scaling_factors(self, state: ClusterState, job: JobView, kind: str) -> NDArray[np.float64]:
        rates = rate_table(state, job, kind, batch=self._fixed_batch(job))
        best = rate_table(state, job, kind) if self._batch != "best" else rates
        able = best > 0
        if not able.any():
            return np.full(len(rates), -np.inf)
        return np.where(rates > 0, rates / best[np.argmax(able)], -np.inf)

    def _fixed_batch(self, job: JobView) -> int:
        request = job.request
        if self._batch == "best" or not request.max_batch:
            return 0
        if self._batch == "random":
            # By the job's number, so that it keeps its batch and no other job's draw matters.
            draw = np.random.default_rng([self._seed, job.order])
            return int(draw.integers(max(1, request.min_batch), request.max_batch + 1))
        return request.max_batch if self._batch == "max" else max(1, request.min_batch)


@register("fixed-batch-max", summary="elastic in devices, batch held at each job's largest")
def _largest(mode: Literal["queue", "drop"] = "queue") -> Autoscaler:
    return Autoscaler(mode, "max")


@register("fixed-batch-min", summary="elastic in devices, batch held at each job's smallest")
def _smallest(mode: Literal["queue", "drop"] = "queue") -> Autoscaler:
    return Autoscaler(mode, "min")


@register("fixed-batch-random", summary="elastic in devices, batch drawn once per job")
def _random(mode: Literal["queue", "drop"] = "queue", seed: int = 0) -> Autoscaler:
    return Autoscaler(mode, "random", seed)
