"""Pollux's objective, solved exactly instead of by a genetic algorithm.

    minimise  sum_j 1 / (speedup_j(k) * f_j(k) * nodes / K + 0.001)

where speedup_j is the goodput relative to that on a fair share, ceil(K / J) devices, and f_j(k) prices a restart when k
differs from what the job holds: (age - restarts * delay) / (age + delay). The power mean with exponent -1 is separable,
so the autoscaler's exact program solves it in numbers of devices; nodes are chosen afterwards.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.autoscaler import allocate
from isoscale.scheduling.placement import decisions_for
from isoscale.scheduling.policies.counting import by_kind, capacity_of, place_counts, rate_table
from isoscale.scheduling.policy import register
from isoscale.scheduling.state import ClusterState, Decision, JobView

__all__ = ["Pollux", "explored"]


@register("pollux", summary="Pollux's goodput objective, solved exactly")
class Pollux:
    """Goodput fairness. A job's batch is its own affair: it tunes it to its devices (decisions carry batch 0)."""

    interval_s = 60.0
    oracle = False
    watches_time = True

    def __init__(self, restart_s: float = 30.0) -> None:
        self._restart_s = restart_s
        self._largest: dict[str, int] = {}

    def decide(self, state: ClusterState) -> list[Decision]:
        counts: dict[str, int] = {}
        ordered: list[JobView] = []
        self._largest = explored(self._largest, state)
        for kind, jobs in by_kind(state).items():
            capacity = capacity_of(state, kind)
            tables = [self._values(state, job, kind, capacity, len(jobs)) for job in jobs]
            sizes = allocate(tables, capacity)
            assert sizes is not None, "every job may be left out"
            counts |= {job.name: size for job, size in zip(jobs, sizes, strict=True) if size}
            ordered += jobs
        return decisions_for(state, place_counts(state, ordered, counts))

    def _values(
        self, state: ClusterState, job: JobView, kind: str, capacity: int, num_jobs: int
    ) -> NDArray[np.float64]:
        rates = rate_table(state, job, kind)
        fair = min(-(-capacity // num_jobs), len(rates) - 1)
        base = rates[fair] or rates.max() or 1.0
        rates = rates[: 2 * self._largest.get(job.name, 0) + 1 if self._largest.get(job.name) else 2]
        age = state.now - job.request.submitted_s
        factor = max(age - job.num_restarts * self._restart_s, 0.0) / (age + self._restart_s)
        factors = np.full(len(rates), factor)
        if job.num_devices < len(rates):
            factors[job.num_devices] = 1.0
        num_nodes = sum(node.kind == kind for node in state.cluster.nodes)
        return np.asarray(-1.0 / (rates / base * factors * num_nodes / capacity + 1e-3))


def explored(largest: dict[str, int], state: ClusterState) -> dict[str, int]:
    """The most devices each active job has held: nobody knows how it scales far beyond that."""
    held = {name: max(job.num_devices, largest.get(name, 0)) for name, job in state.running.items()}
    return held | {name: largest[name] for name in state.waiting if name in largest}
