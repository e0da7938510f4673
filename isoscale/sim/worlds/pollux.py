"""Jobs of the Pollux simulator: the truth and the speed models of its six applications on T4 devices."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isoscale.errors import UserError
from isoscale.scheduling.state import JobRequest, Shape, SpeedModel, packed_shape
from isoscale.sim.job import Pace, PhasedPace, SimJob
from isoscale.sim.traces.record import TraceJob
from isoscale.sim.worlds.by_kind import SpeedByKind, TruthByKind
from isoscale.sim.worlds.pollux_agent import PolluxAgent, prior
from isoscale.sim.worlds.pollux_settings import Settings, Spread, counts_of
from isoscale.sim.worlds.pollux_tables import PolluxTables, kinds_in

__all__ = ["PolluxSpeed", "PolluxTruth", "pollux_job", "pollux_tables"]

#: epochs to run, and where a device's memory ends; the rest is in the tables
_EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
_MAX_LOCAL = {"yolov3": 8}
#: trained on one device at one batch only: its batch and its devices are not to be chosen
_FIXED = {"ncf": 32_768}
_MAX_DEVICES = 64
_NODE_SIZE = 4


@lru_cache(maxsize=64)
def pollux_tables(directory: Path, kind: str = "") -> PolluxTables:
    """The tables of one application, on a kind if they are by kind, read once."""
    if not directory.is_dir():
        raise UserError(
            field="--speeds", value=directory, problem="no such directory", remedy="give the Pollux simulator's traces"
        )
    return PolluxTables(
        directory,
        max_epochs=_EPOCHS.get(directory.name, 0),
        max_local_batch=_MAX_LOCAL.get(directory.name, 0),
        kind=kind,
    )


@lru_cache(maxsize=64)
def _kinds_in(directory: Path) -> tuple[str, ...]:
    return kinds_in(directory)


class PolluxSpeed:
    """Speeds of an application in one epoch: exact times, the epoch's gradient noise. A `SpeedModel`."""

    __slots__ = ("_epoch", "_rates", "_settings", "_steps")

    def __init__(self, settings: Settings, epoch: int) -> None:
        self._settings = settings
        self._epoch = epoch
        self._rates: dict[tuple[int, int], NDArray[np.float64]] = {}
        self._steps: dict[tuple[Shape, int], float] = {}

    def step_s(self, shape: Shape, batch: int = 0) -> float:
        found = self._steps.get((shape, batch))
        if found is None:
            spread = self._settings.spread(counts_of(shape), batch, self._epoch) if shape else None
            found = self._steps[shape, batch] = spread.step_s if spread else math.inf
        return found

    def rate(self, shape: Shape, batch: int = 0) -> float:
        return float(self._settings.rates(counts_of(shape), batch)[self._epoch]) if shape else 0.0

    def best_batch(self, shape: Shape) -> int:
        return self._settings.spread(counts_of(shape), 0, self._epoch).batch

    def rates(self, kind: str, max_devices: int, node_size: int) -> NDArray[np.float64]:
        key = (max_devices, node_size)
        found = self._rates.get(key)
        if found is None:
            shapes = (packed_shape(kind, count, node_size) for count in range(max_devices + 1))
            found = self._rates[key] = np.array([self.rate(shape) for shape in shapes])
        return found


class PolluxTruth:
    """One job's progress by epochs. With batch 0 it is the job that chooses, anew in each epoch.

    With `profiled` the controller knows the tables, and the job chooses well. Otherwise both know only what the job has
    measured where it ran: what the Pollux agent knows.
    """

    def __init__(self, settings: Settings, *, profiled: bool, steps_of_batch: int = 0) -> None:
        self.total_work = float(settings.tables.progress[-1])
        self._settings = settings
        self._steps_of_batch = steps_of_batch
        self._agent = None if profiled else PolluxAgent(settings)
        #: the batch in each epoch on the present devices; empty: the same in all
        self._chosen: list[int] = []
        iterations = settings.tables.iterations(steps_of_batch) if steps_of_batch else np.zeros(0)
        #: steps at the owner's batch by the end of each epoch; empty: work is declared as progress
        self._iterations: list[float] = iterations.tolist()
        self._ends: list[float] = settings.tables.progress.tolist()

    def fresh(self) -> PolluxTruth:
        return PolluxTruth(self._settings, profiled=self._agent is None, steps_of_batch=self._steps_of_batch)

    def pace(self, shape: Shape, batch: int, done: float = 0.0, now: float = 0.0) -> Pace:
        counts, epoch = counts_of(shape), self._epoch(done)
        batch = batch or self._settings.fixed_batch
        possible = self._settings.rates(counts, batch)[0] > 0 if batch else bool(self._settings.candidates(counts))
        if not possible:
            raise UserError(
                field="batch",
                value=batch,
                problem=f"{self._settings.tables.name} cannot run with it on {shape}",
                remedy="give fewer devices",
            )
        if self._agent is None:
            return _pace(self._settings, counts, batch)
        if batch:
            spread = self._settings.spread(counts, batch, 0)
            self._agent.observe(shape, spread, epoch)
            self._chosen = [spread.batch]
            return _pace(self._settings, counts, batch)
        spreads = self._agent.choose(shape, epoch)
        # Epochs that are over have a pace, too, which nobody will ask for.
        spreads = spreads[:1] * epoch + spreads
        self._chosen = [spread.batch for spread in spreads]
        return _chosen_pace(self._settings, spreads)

    def step_s(self, shape: Shape, batch: int) -> float:
        return self._settings.spread(counts_of(shape), batch, 0).step_s

    def learned(self, done: float) -> SpeedModel | None:
        epoch = self._epoch(done)
        if self._agent is None:
            return _speed(self._settings, epoch)
        if not self._chosen:
            return None
        return self._agent.model(epoch, self._chosen[min(epoch, len(self._chosen) - 1)])

    def remaining(self, done: float) -> float:
        if not self._iterations:
            return max(0.0, self.total_work - done)
        # As the original counts: without the epoch under way, and never less than one step.
        return max(1.0, self._iterations[-1] - self._iterations[self._epoch(done)])

    def _epoch(self, done: float) -> int:
        return min(max(bisect_right(self._ends, done) - 1, 0), len(self._ends) - 2)


def pollux_job(
    job: TraceJob, directory: Path, *, adaptive: bool = True, profiled: bool = False, kinds: tuple[str, ...] = ()
) -> SimJob:
    """The job with its application's tables, on each of the cluster's `kinds` where they are by kind.

    Raises UserError if the tables lack a kind that the cluster has and the job may use.
    """
    by_kind = _kinds_in(directory / job.application)
    if not by_kind:
        return _on_kind(job, directory, "", adaptive=adaptive, profiled=profiled)
    wanted = [kind for kind in kinds if not job.kinds or kind in job.kinds]
    missing = [kind for kind in wanted if kind not in by_kind]
    if missing or not wanted:
        raise UserError(
            field="--speeds",
            value=directory / job.application / "placements.csv",
            problem=f"has no line of kind {', '.join(missing or job.kinds)}, which job {job.name} may use",
            remedy=f"add it, leave it out of the job's kinds, or give a cluster of {', '.join(by_kind)}",
        )
    made = {kind: _on_kind(job, directory, kind, adaptive=adaptive, profiled=profiled) for kind in wanted}
    first = made[job.kind if job.kind in made else wanted[0]]
    request = replace(
        first.request,
        kinds=tuple(sorted(made, key=lambda kind: (kind != job.kind, wanted.index(kind)))),
        max_devices=max(one.request.max_devices for one in made.values()),
    )
    declared = {kind: one.declared for kind, one in made.items()}
    truth = TruthByKind({kind: one.truth for kind, one in made.items()})
    return replace(first, request=request, declared=SpeedByKind(declared), truth=truth)


def _on_kind(job: TraceJob, directory: Path, kind: str, *, adaptive: bool, profiled: bool) -> SimJob:
    """The job on one kind. `adaptive`: its batch may be chosen, work is declared as progress;
    otherwise the owner's batch stays, and work is declared as steps of that batch. Of a fixed batch there is nothing to
    learn, so speeds are those of the tables."""
    tables = pollux_tables(directory / job.application, kind)
    fixed = _FIXED.get(job.application, 0) if adaptive else job.batch
    settings = _settings(tables, fixed)
    most = 1 if job.application in _FIXED else (fixed or tables.max_batch) // tables.min_local_batch
    known = profiled or bool(fixed)
    truth = PolluxTruth(settings, profiled=known, steps_of_batch=0 if adaptive else job.batch)
    request = JobRequest(
        name=job.name,
        submitted_s=job.submit_s,
        requested_devices=job.devices,
        max_devices=min(_MAX_DEVICES, most),
        kinds=job.kinds or ((job.kind,) if job.kind else ()),
        requested_batch=job.batch,
        min_batch=0 if fixed else tables.min_batch,
        max_batch=0 if fixed else tables.max_batch,
        tenant=job.tenant,
        priority=job.priority,
        application=job.application,
        deadline_s=job.deadline_s,
    )
    packed = counts_of(packed_shape("", job.devices, _NODE_SIZE))
    return SimJob(
        request=request,
        declared=_speed(settings, 0) if known else prior(settings),
        truth=truth,
        declared_work=truth.remaining(0.0),
        isolated_s=_pace(settings, packed, job.batch).seconds(0.0, truth.total_work),
    )


@lru_cache(maxsize=256)
def _settings(tables: PolluxTables, fixed_batch: int) -> Settings:
    """Shared by all jobs of an application: what one has looked up, all know."""
    return Settings(tables, fixed_batch)


@lru_cache(maxsize=65_536)
def _speed(settings: Settings, epoch: int) -> PolluxSpeed:
    return PolluxSpeed(settings, epoch)


@lru_cache(maxsize=65_536)
def _pace(settings: Settings, counts: tuple[int, ...], batch: int) -> PhasedPace:
    busy = [settings.spread(counts, batch, epoch).busy for epoch in range(settings.tables.epochs)]
    rates = settings.rates(counts, batch).tolist()
    return PhasedPace(settings.tables.progress[:-1].tolist(), rates, float(np.mean(busy)))


def _chosen_pace(settings: Settings, spreads: list[Spread]) -> PhasedPace:
    """The truth of a job's own choice of batch in each epoch."""
    rates = [float(settings.gains(one.batch)[epoch]) / one.step_s for epoch, one in enumerate(spreads)]
    busy = sum(one.busy for one in spreads) / len(spreads)
    return PhasedPace(settings.tables.progress[:-1].tolist(), rates, busy)
