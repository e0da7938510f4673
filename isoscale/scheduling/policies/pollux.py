"""Pollux's objective, solved exactly instead of by a genetic algorithm.

    minimise  sum_j 1 / (speedup_j(k) * f_j(k) * nodes / K + 0.001)

where speedup_j is the goodput relative to that on a fair share, ceil(K / J) devices, and f_j(k) prices a restart when k
differs from what the job holds: (age - restarts * delay) / (age + delay). The power mean with exponent -1 is separable,
so the autoscaler's exact program solves it in numbers of devices; nodes are chosen afterwards.

Pollux knows one kind of device. On a mixed cluster (ours; Sia chooses like this, by another objective) a job's options
are numbers of devices of each kind that it may use, one kind at a time, `choice` takes the best of them for all jobs
together, and the fair share is the mean over kinds, weighted by their devices, of the goodput on ceil(K / J) of each.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.allocation import Target, decisions_for
from isoscale.scheduling.autoscaler import allocate
from isoscale.scheduling.changes import batch_for, movable_part
from isoscale.scheduling.choice import Choices, choose
from isoscale.scheduling.options import table_options
from isoscale.scheduling.packing import Counts, Packer
from isoscale.scheduling.policies.counting import Kinds, active_jobs, by_kind, capacity_of, kinds_of, rate_table
from isoscale.scheduling.policy import register
from isoscale.scheduling.state import Allocation, ClusterState, Decision, JobView, held_by_kind, shape_of
from isoscale.scheduling.throughput import trusted_devices

__all__ = ["Pollux"]

Floats = NDArray[np.float64]

#: seconds over which a better placement has to pay for the restart that it takes
HORIZON_S = 600.0


@register("pollux", summary="Pollux's goodput objective, solved exactly")
class Pollux:
    """Goodput fairness. A job tunes its batch to its devices itself (decisions carry batch 0), unless it can only be
    told one of a few sizes: then the best of them on its devices.

    `kinds` "preferred" plans every job on its preferred kind, each kind by itself.
    """

    interval_s = 60.0
    oracle = False
    watches_time = True
    gang = False

    def __init__(self, restart_s: float = 30.0, kinds: Kinds = "choose") -> None:
        self._restart_s = restart_s
        self._kinds: Kinds = kinds

    def decide(self, state: ClusterState) -> list[Decision]:
        state = movable_part(state)
        plan = self._over_kinds if self._kinds == "choose" and len(state.cluster.kinds) > 1 else self._by_kind
        sizes, worth = plan(state)
        packer = Packer(state=state, worth=worth, horizon_s=HORIZON_S)
        jobs = [job for job in active_jobs(state) if job.name in worth]
        placed = packer.pack(jobs, sizes)
        views = {job.name: job for job in jobs}
        targets = {name: Target(where, _batch(state, views[name], where)) for name, where in placed.items()}
        return decisions_for(state, targets)

    def _by_kind(self, state: ClusterState) -> tuple[dict[str, Counts], dict[str, float]]:
        """Each kind by itself: devices of each job, and the worth of a unit of its work."""
        sizes: dict[str, Counts] = {}
        worth: dict[str, float] = {}
        for kind, jobs in by_kind(state).items():
            capacity = capacity_of(state, kind)
            if not capacity:
                continue
            rates = [rate_table(state, job, kind) for job in jobs]
            num_nodes = sum(node.kind == kind for node in state.cluster.nodes)
            tables = []
            for job, table in zip(jobs, rates, strict=True):
                fair = min(-(-capacity // len(jobs)), len(table) - 1)
                base = float(table[fair] or table.max() or 1.0)
                table = table[: _most(job) + 1]
                factors = np.full(len(table), self._factor(state, job))
                if job.num_devices < len(table):
                    factors[job.num_devices] = 1.0
                tables.append(_values(table, base, factors, num_nodes / capacity))
            chosen = allocate(tables, capacity)
            assert chosen is not None, "every job may be left out"
            sizes |= {job.name: ((kind, size),) for job, size in zip(jobs, chosen, strict=True) if size}
            worth |= {job.name: _worth(table) for job, table in zip(jobs, rates, strict=True)}
        return sizes, worth

    def _over_kinds(self, state: ClusterState) -> tuple[dict[str, Counts], dict[str, float]]:
        """The same with every job on whichever of its kinds is best for all together."""
        kinds, total = state.cluster.kinds, max(1, sum(state.capacity_of.values()))
        jobs = active_jobs(state)
        options, choices, worth = [], [], {}
        for job in jobs:
            tables = {kind: rate_table(state, job, kind) for kind in kinds_of(state, job, "choose")}
            base = _fair_rate(state, tables, -(-total // len(jobs)))
            held = held_by_kind(state.cluster, job.allocation)
            one = table_options(kinds, {kind: table[: _most(job) + 1] for kind, table in tables.items()}, held)
            factors = np.full(len(one.rates), self._factor(state, job))
            same = one.index_of([held.get(kind, 0) for kind in kinds])
            if same >= 0:
                factors[same] = 1.0
            options.append(one)
            value = _values(one.rates, base, factors, len(state.cluster.nodes) / total)
            choices.append(Choices(one.counts, value - value[0], same if job.allocation else -1))
            worth[job.name] = 1.0 / max(1e-12, max((table.max(initial=0.0) for table in tables.values()), default=0.0))
        capacity = [state.capacity_of[kind] for kind in kinds]
        chosen, _ = choose(choices, capacity)
        sizes = {}
        for job, one, row in zip(jobs, options, chosen, strict=True):
            if row:
                sizes[job.name] = tuple((k, int(n)) for k, n in zip(kinds, one.counts[row], strict=True) if n)
        return sizes, worth

    def _factor(self, state: ClusterState, job: JobView) -> float:
        """What a restart leaves; not quite 0, or a job that has just come (age 0) would see no use in a free device."""
        cost = self._restart_s if job.request.restart_s is None else job.request.restart_s
        age = state.now - job.request.submitted_s
        return max(max(age - job.num_restarts * cost, 0.0) / max(age + cost, 1e-9), 1e-2)


def _batch(state: ClusterState, job: JobView, allocation: Allocation) -> int:
    if not job.request.batch_sizes:
        return 0
    return batch_for(state, job, shape_of(state.cluster, allocation), moves=allocation != job.allocation)


def _values(rates: Floats, base: float, factors: Floats, nodes_per_device: float) -> Floats:
    return np.asarray(-1.0 / (rates / base * factors * nodes_per_device + 1e-3))


def _most(job: JobView) -> int:
    """How many devices may be tried: twice what was measured, and what the job needs at least."""
    trusted = trusted_devices(job.speed)
    return max(trusted, job.request.min_devices) if trusted else job.request.max_devices


def _worth(rates: Floats) -> float:
    return 1.0 / max(1e-12, float(rates.max(initial=0.0)))


def _fair_rate(state: ClusterState, tables: Mapping[str, Floats], fair: int) -> float:
    """Goodput on a fair share of every kind, averaged by what there is of each; the best of all where that is none."""
    weights = {kind: capacity_of(state, kind) for kind in tables}
    mean = sum(weights[kind] * float(table[min(fair, len(table) - 1)]) for kind, table in tables.items())
    best = max((float(table.max(initial=0.0)) for table in tables.values()), default=0.0)
    return mean / max(1, sum(weights.values())) or best or 1.0
