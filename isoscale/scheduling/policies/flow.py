"""Our own policy: devices where they shorten the sum of completion times most, solved exactly.

Each round works out what every job's work is worth (`flowtime`), then maximises sum_j w_j s_j(k_j) with the autoscaler's
exact program, where a job that keeps its devices also keeps the seconds that a change would cost it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.autoscaler import allocate
from isoscale.scheduling.flowtime import flow_weights
from isoscale.scheduling.packing import pack
from isoscale.scheduling.placement import Target, decisions_for
from isoscale.scheduling.policies.counting import by_kind, capacity_of, place_counts, rate_table
from isoscale.scheduling.policies.pollux import explored
from isoscale.scheduling.policy import register
from isoscale.scheduling.state import ClusterState, Decision, JobView

__all__ = ["Flow"]


@register("flow", summary="ours: least total completion time, exact, restarts priced")
class Flow:
    interval_s = 60.0
    oracle = False
    watches_time = True

    def __init__(self, horizon_s: float = 600.0, explore: float = 2.0, declared: bool = True) -> None:
        self._horizon_s = horizon_s
        self._explore = explore
        self._declared = declared
        self._largest: dict[str, int] = {}

    def decide(self, state: ClusterState) -> list[Decision]:
        counts: dict[str, int] = {}
        ordered: list[JobView] = []
        worth: dict[str, float] = {}
        self._largest = explored(self._largest, state)
        for kind, jobs in by_kind(state).items():
            capacity = capacity_of(state, kind)
            rates = [self._rates(state, job, kind) for job in jobs]
            left = [self._remaining(state, job, table) for job, table in zip(jobs, rates, strict=True)]
            weights = flow_weights(rates, left, capacity)
            tables = [
                self._values(state, job, table, weight, work)
                for job, table, weight, work in zip(jobs, rates, weights, left, strict=True)
            ]
            sizes = allocate(tables, capacity)
            counts |= {job.name: (kind, size) for job, size in zip(jobs, sizes, strict=True) if size}
            worth |= {job.name: float(weight) for job, weight in zip(jobs, weights, strict=True)}
            ordered += jobs
        placed = pack(
            state.cluster, state.capacity, ordered, counts, worth, rescale_s=state.rescale_s, horizon_s=self._horizon_s
        )
        return decisions_for(state, {name: Target(where) for name, where in placed.items()})

    def _rates(self, state: ClusterState, job: JobView, kind: str) -> NDArray[np.float64]:
        rates = rate_table(state, job, kind)
        if self._explore:
            most = self._largest.get(job.name, 0)
            rates = rates[: max(2, int(most * self._explore) + 1)]
        return rates

    def _remaining(self, state: ClusterState, job: JobView, rates) -> float:
        if self._declared and job.name in state.remaining:
            return state.remaining[job.name]
        return max(job.service_s(state.now), 60.0) * (rates[1] if len(rates) > 1 else 1.0)

    def _values(self, state, job, rates, weight, work):
        values = weight * rates
        delay = state.rescale_s or 0.0
        if delay:
            with np.errstate(divide="ignore"):
                span = np.minimum(self._horizon_s, np.where(rates > 0, work / np.maximum(rates, 1e-12), 1.0))
            factor = np.maximum(0.0, 1 - delay / np.maximum(span, delay))
            # starting or changing
            cur = job.num_devices
            f = factor.copy()
            if cur and cur < len(f):
                f[cur] = 1.0
            values = values * f
        return values
