"""A job in the simulator: what its owner declares, and what really happens.

The controller is told `request`, `declared` and `declared_work`. The truth (how fast the job runs on which devices, how
much of that time they compute) stays in the simulator. Where the owner has profiled the job well, both come from the
same table; they are still asked separately.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from isoscale.scheduling.state import JobRequest, Shape, SpeedModel
from isoscale.sim.costs import Costs

__all__ = ["ConstantPace", "Crash", "ModelTruth", "Pace", "PhasedPace", "SimJob", "Truth"]


class Pace(Protocol):
    """Progress of one job on one set of devices, as long as nothing changes."""

    @property
    def busy(self) -> float:
        """Share of the devices' time in which they compute rather than wait for each other."""
        ...

    def seconds(self, done: float, goal: float) -> float:
        """Seconds from `done` work to `goal`; infinity if it never gets there."""
        ...

    def after(self, done: float, seconds: float) -> float:
        """Work done when `seconds` have passed since `done`."""
        ...


class Truth(Protocol):
    """What really happens to one job. `pace` is asked at every change of devices, so answers should be cached."""

    total_work: float

    def fresh(self) -> Truth:
        """The truth of a job that has not run yet: what it learns in one simulation it must not know in the next."""
        ...

    def pace(self, shape: Shape, batch: int, done: float = 0.0, now: float = 0.0) -> Pace:
        """The pace from here on, after `done` work, at the time `now` of the simulation."""
        ...

    def step_s(self, shape: Shape, batch: int) -> float:
        """Seconds of a step: what a device that must be given back is waited for."""
        ...

    def learned(self, done: float) -> SpeedModel | None:
        """The speed model that measurements up to `done` support; None if it is still the declared one."""
        ...

    def remaining(self, done: float) -> float:
        """Work left, in the unit in which the job's owner declared it."""
        ...


@dataclass(frozen=True, slots=True)
class Crash:
    """The job fails when it has done this much work, with an error of this class."""

    work: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """One job to simulate."""

    request: JobRequest
    declared: SpeedModel
    truth: Truth
    #: total work as its owner declares it; None if the owner does not know
    declared_work: float | None = None
    #: seconds on the requested devices, alone and undisturbed: what fairness is measured against
    isolated_s: float = 0.0
    #: in order of work
    crashes: tuple[Crash, ...] = ()
    #: what this job's changes cost, if not what they cost everybody; policies are told by `request.restart_s`
    costs: Costs | None = None


@dataclass(frozen=True, slots=True)
class ConstantPace:
    """The same rate from beginning to end."""

    rate: float
    busy: float = 1.0

    def seconds(self, done: float, goal: float) -> float:
        return max(0.0, goal - done) / self.rate if self.rate > 0 else math.inf

    def after(self, done: float, seconds: float) -> float:
        return done + self.rate * seconds


class PhasedPace:
    """A rate that changes with progress, such as a statistical efficiency that grows from epoch to epoch.

    Phase i covers work `bounds[i]..bounds[i+1]` at `rates[i]`; the last one goes on for ever.

    >>> pace = PhasedPace([0.0, 10.0], [1.0, 5.0])
    >>> pace.seconds(5.0, 20.0), pace.after(5.0, 7.0)
    (7.0, 20.0)
    """

    __slots__ = ("_at", "_bounds", "_rates", "busy")

    def __init__(self, bounds: Sequence[float], rates: Sequence[float], busy: float = 1.0) -> None:
        self._bounds = list(bounds)
        self._rates = list(rates)
        self.busy = busy
        #: seconds at which each phase begins
        self._at = [0.0]
        for number in range(len(self._bounds) - 1):
            work = self._bounds[number + 1] - self._bounds[number]
            self._at.append(self._at[-1] + work / self._rates[number])

    def seconds(self, done: float, goal: float) -> float:
        return max(0.0, self._moment(goal) - self._moment(done))

    def after(self, done: float, seconds: float) -> float:
        moment = self._moment(done) + seconds
        phase = max(0, bisect_right(self._at, moment) - 1)
        return self._bounds[phase] + (moment - self._at[phase]) * self._rates[phase]

    def _moment(self, work: float) -> float:
        phase = max(0, bisect_right(self._bounds, work) - 1)
        return self._at[phase] + (work - self._bounds[phase]) / self._rates[phase]


class ModelTruth:
    """Truth by a speed model: a constant rate on every shape.

    A single device counts as busy all the time that it trains; several are busy for the share of the time that their
    speeds alone would need: the rest goes into exchanges and into waiting for the slowest.
    """

    def __init__(self, model: SpeedModel, total_work: float) -> None:
        self.total_work = total_work
        self._model = model
        self._paces: dict[tuple[Shape, int], ConstantPace] = {}

    def fresh(self) -> ModelTruth:
        return self

    def pace(self, shape: Shape, batch: int, done: float = 0.0, now: float = 0.0) -> Pace:
        key = (shape, batch)
        pace = self._paces.get(key)
        if pace is None:
            rate = self._model.rate(shape, batch)
            if len(shape) == 1 and shape[0][1] == 1:
                pace = self._paces[key] = ConstantPace(rate)
                return pace
            alone = sum(count * self._model.rate(((kind, 1),), batch) for kind, count in shape)
            pace = self._paces[key] = ConstantPace(rate, min(1.0, rate / alone) if alone > 0 else 1.0)
        return pace

    def step_s(self, shape: Shape, batch: int) -> float:
        return self._model.step_s(shape, batch)

    def learned(self, done: float) -> SpeedModel | None:
        return None

    def remaining(self, done: float) -> float:
        return max(0.0, self.total_work - done)
