"""The autoscaler of Effective Elastic Scaling: as much normalised throughput as the cluster can give, batch included.

Every decision solves, exactly, max sum_j T_j(k_j) with at least one device for every admitted job, where

    T_j(k) = rate(k devices, best batch for k) / rate(1 device, best batch)

Jobs are admitted first come, first served, as long as all admitted ones can run at once; the rest wait or are dropped.
The baselines are the same autoscaler with each job's batch held at its largest, smallest or a random value.

Three extensions are ours. A change of devices is priced (`changes`): decided every ten minutes, as in the paper, they
are few; every minute they would eat up what they gain. Whoever fits passes a job that waits for more devices than are
left. And on a mixed cluster a job's options are numbers of devices of each kind that it may use, one kind at a time;
T_j is then relative to one device of the kind on which it is fastest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.allocation import decisions_for
from isoscale.scheduling.autoscaler import allocate
from isoscale.scheduling.changes import batch_for, change_factor, movable_part
from isoscale.scheduling.choice import Choices, choose
from isoscale.scheduling.options import DeviceOptions, table_options
from isoscale.scheduling.policies.counting import (
    Kinds,
    Planned,
    active_jobs,
    by_kind,
    capacity_of,
    kinds_of,
    place_counts,
    rate_table,
)
from isoscale.scheduling.policy import register
from isoscale.scheduling.state import ClusterState, Decision, JobView, SpeedModel, held_by_kind, packed_shape

__all__ = ["Autoscaler"]

Batch = Literal["best", "max", "min", "random"]


class _Known(NamedTuple):
    """A job's scaling factors on a kind under a speed model and a capacity, and the fewest devices it can run on
    (0: none)."""

    speed: SpeedModel
    capacity: int
    values: NDArray[np.float64]
    least: int


# What running at all is worth to a job on a mixed cluster: more than all that others could gain by its devices.
_RUNS = 1e4


@register("autoscaler", summary="Effective Elastic Scaling: exact, chooses batches")
class Autoscaler:
    """`mode` "queue" lets jobs that do not fit wait for the next decision, "drop" rejects them. `paper` True is the
    paper's: changes for any gain, and nobody passes; `kinds` "preferred" plans every job on its preferred kind."""

    interval_s = 600.0
    oracle = False
    watches_time = True
    gang = False

    def __init__(
        self,
        mode: Literal["queue", "drop"] = "queue",
        batch: Batch = "best",
        seed: int = 0,
        paper: bool = False,
        kinds: Kinds = "choose",
    ) -> None:
        self._mode = mode
        self._batch: Batch = batch
        self._seed = seed
        self._paper = paper
        self._kinds: Kinds = kinds
        #: what was worked out for the jobs admitted last, by job and kind
        self._known: dict[tuple[str, str], _Known] = {}

    def decide(self, state: ClusterState) -> list[Decision]:
        if not self._paper:
            state = movable_part(state)
        planned: dict[str, Planned] = {}
        ordered: list[JobView] = []
        rejected: dict[str, str] = {}
        self._known = dict(self._known)
        chooses = self._kinds == "choose" and len(state.cluster.kinds) > 1
        groups = {"": active_jobs(state)} if chooses else by_kind(state)
        for kind, jobs in groups.items():
            if chooses:
                admitted = self._admit_anywhere(state, jobs)
                planned |= self._best_kinds(state, admitted)
            else:
                admitted = self._admit(state, kind, jobs)
                tables = [self._with_price(state, job, kind) for job in admitted]
                sizes = allocate(tables, capacity_of(state, kind))
                assert sizes is not None, "admitted jobs fit by construction"
                planned |= {job.name: (kind, size) for job, size in zip(admitted, sizes, strict=True)}
            ordered += admitted
            if self._mode == "drop":
                dropped = {job.name for job in jobs if not job.allocation} - planned.keys()
                rejected |= dict.fromkeys(dropped, "no device left for it at its first decision")
        names = {job.name for job in ordered}
        self._known = {key: known for key, known in self._known.items() if key[0] in names}
        sizes_of = {kind: max(1, state.cluster.node_size(kind)) for kind in state.cluster.kinds}

        def batch(job: JobView, devices: Planned) -> int:
            kind, count = devices
            stays = held_by_kind(state.cluster, job.allocation) == {kind: count}
            if stays and not job.request.batch_sizes:
                return job.batch  # same devices: the batch in use stays, or the job would restart for it
            if fixed := self._fixed_batch(job):
                return fixed
            shape = packed_shape(kind, count, sizes_of[kind])
            if self._paper or not job.request.batch_sizes:
                return job.speed.best_batch(shape)
            return batch_for(state, job, shape, moves=not stays)

        return decisions_for(state, place_counts(state, ordered, planned, batch=batch), rejected=rejected)

    def _admit(self, state: ClusterState, kind: str, jobs: Sequence[JobView]) -> list[JobView]:
        """Running jobs, then waiting ones in order as they fit (`paper`: until the first that does not); in order of
        submission. Once nothing is left nobody looks at those behind: a long line costs nothing."""
        admitted: list[JobView] = []
        left = capacity_of(state, kind)
        for job in sorted(jobs, key=_in_line):
            if not left:
                break
            least = self._know(state, job, kind).least
            if not least:
                continue
            if least > left:
                # Capacity that shrank under a running job pauses it; others may still fit.
                if job.allocation or not self._paper:
                    continue
                break
            left -= least
            admitted.append(job)
        return sorted(admitted, key=lambda job: job.order)

    def _admit_anywhere(self, state: ClusterState, jobs: Sequence[JobView]) -> list[JobView]:
        """On a mixed cluster: whoever fits on a kind that it may use."""
        admitted: list[JobView] = []
        left = dict(state.capacity_of)
        for job in sorted(jobs, key=_in_line):
            if not any(left.values()):
                break
            least = {kind: self._know(state, job, kind).least for kind in kinds_of(state, job, "choose")}
            room = [kind for kind, count in least.items() if 0 < count <= left[kind]]
            held = held_by_kind(state.cluster, job.allocation)
            if not room:
                continue
            # Where it runs, else where most is left in proportion: whoever comes next should still find something.
            kind = max(room, key=lambda kind: (kind in held, left[kind] / max(1, capacity_of(state, kind))))
            left[kind] -= least[kind]
            admitted.append(job)
        return sorted(admitted, key=lambda job: job.order)

    def _best_kinds(self, state: ClusterState, jobs: Sequence[JobView]) -> dict[str, Planned]:
        kinds = state.cluster.kinds
        options = [self._options(state, job) for job in jobs]
        choices = []
        for job, one in zip(jobs, options, strict=True):
            values = one.rates * self._factors(state, job, one)
            held = held_by_kind(state.cluster, job.allocation)
            row = one.index_of([held.get(kind, 0) for kind in kinds]) if held else -1
            choices.append(Choices(one.counts, np.where(one.rates > 0, values + _RUNS, 0.0), row))
        chosen, _ = choose(choices, [state.capacity_of[kind] for kind in kinds])
        planned: dict[str, Planned] = {}
        for job, one, row in zip(jobs, options, chosen, strict=True):
            if row:
                axis = int(one.counts[row].argmax())
                planned[job.name] = (kinds[axis], int(one.counts[row, axis]))
        return planned

    def _options(self, state: ClusterState, job: JobView) -> DeviceOptions:
        """Sets of devices with T_j as their rates."""
        values = {kind: self._know(state, job, kind).values for kind in kinds_of(state, job, "choose")}
        tables = {kind: np.where(table > -np.inf, table, 0.0) for kind, table in values.items()}
        return table_options(state.cluster.kinds, tables, held_by_kind(state.cluster, job.allocation))

    def _factors(self, state: ClusterState, job: JobView, options: DeviceOptions) -> NDArray[np.float64]:
        factors = np.full(len(options.rates), 1.0 if self._paper else change_factor(state, job))
        held = held_by_kind(state.cluster, job.allocation)
        same = options.index_of([held.get(kind, 0) for kind in state.cluster.kinds])
        if same >= 0:
            factors[same] = 1.0
        return factors

    def _with_price(self, state: ClusterState, job: JobView, kind: str) -> NDArray[np.float64]:
        """T_j on one kind, less what a change costs."""
        values = self._know(state, job, kind).values
        factor = 1.0 if self._paper else change_factor(state, job)
        if factor >= 1.0:
            return values
        priced = np.asarray(values * max(factor, 1e-6))
        held = held_by_kind(state.cluster, job.allocation).get(kind, 0)
        if 0 < held < len(values):
            priced[held] = values[held]
        return priced

    def _know(self, state: ClusterState, job: JobView, kind: str) -> _Known:
        known, capacity = self._known.get((job.name, kind)), capacity_of(state, kind)
        if known is None or known.speed is not job.speed or known.capacity != capacity:
            values = self._scaling_factors(state, job, kind)
            known = _Known(job.speed, capacity, values, int(np.argmax(values > -np.inf)))
            self._known[job.name, kind] = known
        return known

    def _scaling_factors(self, state: ClusterState, job: JobView, kind: str) -> NDArray[np.float64]:
        rates = rate_table(state, job, kind, batch=self._fixed_batch(job))
        if self._kinds == "choose" and len(state.cluster.kinds) > 1:
            one = _first_rates(rate_table(state, job, other) for other in kinds_of(state, job, "choose"))
        else:
            one = _first_rates([rate_table(state, job, kind) if self._batch != "best" else rates])
        if one <= 0:
            return np.full(len(rates), -np.inf)
        return np.where(rates > 0, rates / one, -np.inf)

    def _fixed_batch(self, job: JobView) -> int:
        request = job.request
        if self._batch == "best" or not request.max_batch:
            return 0
        if self._batch == "random":
            # By the job's number, so that it keeps its batch and no other job's draw matters.
            draw = np.random.default_rng([self._seed, job.order])
            if request.batch_sizes:
                return int(draw.choice(request.batch_sizes))
            return int(draw.integers(max(1, request.min_batch), request.max_batch + 1))
        return request.max_batch if self._batch == "max" else max(1, request.min_batch)


def _in_line(job: JobView) -> tuple[bool, int, int]:
    return not job.allocation, -job.request.priority, job.order


def _first_rates(tables: Iterable[NDArray[np.float64]]) -> float:
    """The highest of the rates that the tables' smallest sets give; 0 if there is none."""
    return max((float(table[np.argmax(table > 0)]) for table in tables if (table > 0).any()), default=0.0)


@register("fixed-batch-max", summary="elastic in devices, batch held at each job's largest")
def _largest(mode: Literal["queue", "drop"] = "queue", paper: bool = False, kinds: Kinds = "choose") -> Autoscaler:
    return Autoscaler(mode, "max", paper=paper, kinds=kinds)


@register("fixed-batch-min", summary="elastic in devices, batch held at each job's smallest")
def _smallest(mode: Literal["queue", "drop"] = "queue", paper: bool = False, kinds: Kinds = "choose") -> Autoscaler:
    return Autoscaler(mode, "min", paper=paper, kinds=kinds)


@register("fixed-batch-random", summary="elastic in devices, batch drawn once per job")
def _random(
    mode: Literal["queue", "drop"] = "queue", seed: int = 0, paper: bool = False, kinds: Kinds = "choose"
) -> Autoscaler:
    return Autoscaler(mode, "random", seed, paper=paper, kinds=kinds)
