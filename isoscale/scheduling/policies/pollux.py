"""Pollux's objective, solved exactly instead of by a genetic algorithm.

    minimise  sum_j 1 / (speedup_j(k) * f_j(k) * nodes / K + 0.001)

where speedup_j is the goodput relative to that on a fair share, ceil(K / J) devices, and f_j(k) prices a restart when k
differs from what the job holds: (age - restarts * delay) / (age + delay). The power mean with exponent -1 is separable,
so the autoscaler's exact program solves it in numbers of devices; nodes are chosen afterwards.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.allocation import Target, decisions_for
from isoscale.scheduling.autoscaler import allocate
from isoscale.scheduling.packing import Counts, Packer
from isoscale.scheduling.policies.counting import by_kind, capacity_of, rate_table
from isoscale.scheduling.policy import register
from isoscale.scheduling.state import ClusterState, Decision, JobView
from isoscale.scheduling.throughput import trusted_devices

__all__ = ["Pollux"]

#: seconds over which a better placement has to pay for the restart that it takes
HORIZON_S = 600.0


@register("pollux", summary="Pollux's goodput objective, solved exactly")
class Pollux:
    """Goodput fairness. A job's batch is its own affair: it tunes it to its devices (decisions carry batch 0)."""

    interval_s = 60.0
    oracle = False
    watches_time = True
    gang = False

    def __init__(self, restart_s: float = 30.0) -> None:
        self._restart_s = restart_s

    def decide(self, state: ClusterState) -> list[Decision]:
        sizes: dict[str, Counts] = {}
        worth: dict[str, float] = {}
        ordered: list[JobView] = []
        for kind, jobs in by_kind(state).items():
            capacity = capacity_of(state, kind)
            if not capacity:
                continue
            tables = [self._values(state, job, kind, capacity, len(jobs)) for job in jobs]
            chosen = allocate(tables, capacity)
            assert chosen is not None, "every job may be left out"
            sizes |= {job.name: ((kind, size),) for job, size in zip(jobs, chosen, strict=True) if size}
            worth |= {job.name: 1.0 / max(1e-12, rate_table(state, job, kind).max(initial=0.0)) for job in jobs}
            ordered += jobs
        packer = Packer(state=state, worth=worth, horizon_s=HORIZON_S)
        placed = packer.pack(ordered, sizes)
        return decisions_for(state, {name: Target(where) for name, where in placed.items()})

    def _values(
        self, state: ClusterState, job: JobView, kind: str, capacity: int, num_jobs: int
    ) -> NDArray[np.float64]:
        rates = rate_table(state, job, kind)
        fair = min(-(-capacity // num_jobs), len(rates) - 1)
        base = rates[fair] or rates.max() or 1.0
        rates = rates[: (trusted_devices(job.speed) or len(rates)) + 1]
        age = state.now - job.request.submitted_s
        # Not quite 0, or a job that has just come (age 0) would see no use in a free device.
        factor = max(max(age - job.num_restarts * self._restart_s, 0.0) / (age + self._restart_s), 1e-2)
        factors = np.full(len(rates), factor)
        if job.num_devices < len(rates):
            factors[job.num_devices] = 1.0
        num_nodes = sum(node.kind == kind for node in state.cluster.nodes)
        return np.asarray(-1.0 / (rates / base * factors * num_nodes / capacity + 1e-3))
