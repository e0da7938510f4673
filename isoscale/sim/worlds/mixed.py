"""A generated world of several kinds: applications that differ in how much a fast kind helps them.

Six applications, drawn once by `seed`. On k devices of a kind, over n nodes,

    rate = f * k / (1 + a (k - 1) + b (n - 1)),       f = (the kind's nominal speed)^e

with its own a (exchange among devices), b (across nodes) and e: e near 0 hardly gains by a fast kind, e above 1 gains
more than the nominal speeds say. Large applications take longer to restart. Jobs start knowing nominal speeds only, and
measure where they run; nobody knows how long a job runs. Measured tables (Gavel's, Sia's) look like this; these are not
measured, and say how policies fare in such a world, not on your devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isoscale.errors import UserError
from isoscale.scheduling.measured import MeasuredSpeed
from isoscale.scheduling.state import Cluster, JobRequest, Shape, SpeedModel, packed_shape
from isoscale.sim.costs import Costs
from isoscale.sim.job import ConstantPace, Pace, SimJob
from isoscale.sim.traces.record import TraceJob

__all__ = ["NOMINAL", "MeasuringTruth", "Mixed", "ScaledSpeed"]

#: nominal speeds of kinds by name; others are 1
NOMINAL = {"K80": 0.5, "T4": 1.0, "P100": 1.4, "V100": 2.5, "A100": 5.0, "H100": 9.0}
_MOST = 64
_SHARES = (0.3, 0.25, 0.2, 0.1, 0.1, 0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledSpeed:
    """The truth of one application: the equation above."""

    factors: Mapping[str, float]
    exchange: float
    crossing: float
    most: int = _MOST

    def rate(self, shape: Shape, batch: int = 0) -> float:
        count, slowest = sum(n for _, n in shape), min((self.factors.get(kind, 0.0) for kind, _ in shape), default=0.0)
        if not 0 < count <= self.most:
            return 0.0
        return slowest * count / (1.0 + self.exchange * (count - 1) + self.crossing * (len(shape) - 1))

    def step_s(self, shape: Shape, batch: int = 0) -> float:
        rate = self.rate(shape)
        return 1.0 / rate if rate > 0 else math.inf

    def best_batch(self, shape: Shape) -> int:
        return 0

    def rates(self, kind: str, max_devices: int, node_size: int) -> NDArray[np.float64]:
        count = np.arange(max_devices + 1, dtype=np.float64)
        nodes = np.ceil(count / max(1, node_size))
        rates = self.factors.get(kind, 0.0) * count
        rates = rates / (1.0 + self.exchange * np.maximum(count - 1, 0) + self.crossing * np.maximum(nodes - 1, 0))
        return np.where((count > 0) & (count <= self.most), rates, 0.0)


class MeasuringTruth:
    """Truth by a speed model; the job knows the rates of the sets of devices that it has run on."""

    def __init__(self, model: SpeedModel, total_work: float, prior: MeasuredSpeed | None) -> None:
        self.total_work = total_work
        self._model = model
        self._prior = prior
        self._seen: dict[tuple[str, int], float] = {}
        self._learned: MeasuredSpeed | None = None

    def fresh(self) -> MeasuringTruth:
        return MeasuringTruth(self._model, self.total_work, self._prior)

    def pace(self, shape: Shape, batch: int, done: float = 0.0, now: float = 0.0) -> Pace:
        rate = self._model.rate(shape, batch)
        alone = sum(count * self._model.rate(((kind, 1),), batch) for kind, count in shape)
        kinds = {kind for kind, _ in shape}
        key = (next(iter(kinds)), sum(count for _, count in shape)) if len(kinds) == 1 else None
        if self._prior is not None and key and rate > 0 and self._seen.get(key) != rate:
            self._seen[key] = rate
            self._learned = MeasuredSpeed(
                points=dict(self._seen),
                relative=self._prior.relative,
                kinds=self._prior.kinds,
                assumed=self._prior.assumed,
            )
        return ConstantPace(rate, min(1.0, rate / alone) if alone > 0 else 1.0)

    def step_s(self, shape: Shape, batch: int) -> float:
        return self._model.step_s(shape, batch)

    def learned(self, done: float) -> SpeedModel | None:
        return self._learned

    def remaining(self, done: float) -> float:
        return max(0.0, self.total_work - done)


class Mixed:
    """A `World`. `learned` False lets policies know the true speeds; `restarts` scales the applications' restarts."""

    def __init__(self, seed: int = 0, learned: bool = True, restarts: float = 1.0) -> None:
        rng = np.random.default_rng([seed, 17])
        self._applications = [
            (float(rng.uniform(0.3, 1.3)), float(rng.uniform(0.01, 0.12)), float(rng.uniform(0.0, 0.25)), restart_s)
            for restart_s in (10.0, 20.0, 20.0, 45.0, 60.0, 120.0)
        ]
        self._seed = seed
        self._learned = learned
        self._restarts = restarts

    def jobs(self, trace: Sequence[TraceJob], cluster: Cluster, *, seed: int = 0) -> list[SimJob]:
        rng = np.random.default_rng([self._seed, seed, 18])
        return [self._job(record, cluster, int(rng.choice(6, p=_SHARES))) for record in trace]

    def _job(self, record: TraceJob, cluster: Cluster, number: int) -> SimJob:
        sharpness, exchange, crossing, restart_s = self._applications[number]
        nominal = {kind: NOMINAL.get(kind, 1.0) for kind in cluster.kinds}
        counts = cluster.by_kind([node.num_devices for node in cluster.nodes])
        kinds = tuple(kind for kind in cluster.kinds if counts[kind] >= record.devices)
        if not kinds:
            raise UserError(
                field=f"--trace job {record.name}",
                value=record.devices,
                problem="no kind has so many devices",
                remedy="give a larger cluster, or a smaller `largest` to the generator",
            )
        speed = ScaledSpeed(
            factors={kind: nominal[kind] ** sharpness for kind in kinds}, exchange=exchange, crossing=crossing
        )
        prior = MeasuredSpeed(points={}, relative=nominal, kinds=kinds)
        # A recorded duration is one on devices of speed 1.
        size = cluster.node_size(kinds[0])
        one = ScaledSpeed(factors={kinds[0]: 1.0}, exchange=exchange, crossing=crossing)
        work = max(1.0, record.duration_s or record.steps or 1.0) * one.rate(
            packed_shape(kinds[0], record.devices, size)
        )
        shape = packed_shape(kinds[0], record.devices, size)
        request = JobRequest(
            name=record.name,
            submitted_s=record.submit_s,
            requested_devices=record.devices,
            max_devices=min(_MOST, 4 * record.devices, max(counts.values())),
            kinds=kinds,
            tenant=record.tenant,
            priority=record.priority,
            restart_s=restart_s * self._restarts,
            application=f"application-{number}",
            deadline_s=record.deadline_s,
        )
        cost = restart_s * self._restarts
        return SimJob(
            request=request,
            declared=prior if self._learned else speed,
            truth=MeasuringTruth(speed, work, prior if self._learned else None),
            isolated_s=work / speed.rate(shape),
            costs=Costs(start_s=cost, resume_s=cost, rescale_s=cost),
        )
