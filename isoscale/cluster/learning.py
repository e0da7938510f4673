"""How fast a job is, learned from what its coordinator tells: seconds of a turn by kind, of a step by device set.

A model is told anew only when it says something else: 5 % is within the noise of a machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from isoscale.protocol.status import JobStatus
from isoscale.scheduling.fit import StepPoint, fit_communication
from isoscale.scheduling.throughput import Communication, LogicalWorkerSpeed

__all__ = ["ENOUGH", "Learner", "Point", "first_guess"]

_WORTH_TELLING = 0.05
#: turns measured before anybody is believed
ENOUGH = 3
#: steps on the same devices before their pace is believed: what a coordinator tells is a mean that forgets slowly, and
#: would pass off the old devices' pace as that of the new ones
_SETTLED = 25
#: seconds of a turn before anything was measured
_GUESS_S = 0.1
#: what is left of a look with every later one, and how much must be left
_KEPT, _BELIEVED = 0.99, 0.5


@dataclass(frozen=True, slots=True)
class Point:
    """A step on some devices: seconds, and how many looks it is the mean of."""

    step_s: float
    looks: float


@dataclass(slots=True)
class Learner:
    """Of one job."""

    workers: int
    kinds: tuple[str, ...]
    #: turns of late by kind
    turns: dict[str, list[float]] = field(default_factory=dict)
    #: by number of devices by kind
    points: dict[tuple[tuple[str, int], ...], Point] = field(default_factory=dict)
    _told: LogicalWorkerSpeed | None = None
    #: devices when it was last looked at, and the step at which it was first seen on them
    _devices: tuple[tuple[str, int], ...] = ()
    _since: int = 0

    def look(self, status: JobStatus) -> None:
        """A status of a job that trains; others say nothing."""
        if status["state"] != "training":
            return
        members = [one for one in status["executors"] if one["logical_workers"] is not None]
        for one in members:
            turn = one["turn_s"]
            if turn:
                late = self.turns.setdefault(one["kind"], [])
                late.append(turn)
                del late[:-20]
        devices = devices_of([one["kind"] for one in members])
        if devices != self._devices:
            self._devices, self._since = devices, status["step"]
        rate = status.get("steps_per_s")
        if rate and members and status["step"] - self._since >= _SETTLED:
            self._fade()
            self.learn_point(devices, 1.0 / rate)

    def _fade(self) -> None:
        """What was measured long ago on other devices, perhaps in bad company, is not believed for ever: else a job
        that was slow there once would never be given them again."""
        faded = {devices: Point(one.step_s, one.looks * _KEPT) for devices, one in self.points.items()}
        self.points = {devices: one for devices, one in faded.items() if one.looks >= _BELIEVED}

    def learn_point(self, devices: tuple[tuple[str, int], ...], step_s: float, looks: float = 1) -> None:
        """The newest looks count most: a job's steps change with its data and its neighbours."""
        before = self.points.get(devices)
        if before is None:
            self.points[devices] = Point(step_s, looks)
        else:
            share = max(0.1, 1.0 / (before.looks + 1))
            self.points[devices] = Point(before.step_s + (step_s - before.step_s) * share, before.looks + looks)

    def model(self) -> LogicalWorkerSpeed | None:
        """What is known, if that is something, and something new."""
        turn_s = self._turn_s()
        if not turn_s and self.points:
            # Of an earlier service: steps only.
            turn_s = {}
            for devices, point in self.points.items():
                kind = devices[0][0]
                rounds = math.ceil(self.workers / max(1, sum(n for _, n in devices)))
                turn_s[kind] = min(turn_s.get(kind, math.inf), point.step_s / rounds)
        if not turn_s:
            return None
        # A kind that nobody has measured is taken for the slowest that somebody has.
        turns = {kind: turn_s.get(kind, max(turn_s.values())) for kind in {*self.kinds, *turn_s}}
        model = LogicalWorkerSpeed(
            num_logical_workers=self.workers, turn_s=turns, communication=fit_communication(self._steps(turns))
        )
        if self._told is not None and _like(self._told, model, list(self.points)):
            return None
        self._told = model
        return model

    def communication(self) -> Communication:
        """What steps take beyond turns."""
        return fit_communication(self._steps(self._turn_s()))

    def _turn_s(self) -> dict[str, float]:
        return {kind: median(late) for kind, late in self.turns.items() if len(late) >= ENOUGH}

    def _steps(self, turns: Mapping[str, float]) -> list[StepPoint]:
        steps = []
        for devices, point in self.points.items():
            count = sum(n for _, n in devices)
            compute = math.ceil(self.workers / count) * max(turns.get(kind, 0.0) for kind, _ in devices)
            steps.append(
                StepPoint(
                    num_nodes=1,
                    num_devices=count,
                    local_batch=1,
                    compute_s=compute,
                    exchange_s=max(0.0, point.step_s - compute),
                )
            )
        return steps


def devices_of(kinds: Sequence[str]) -> tuple[tuple[str, int], ...]:
    return tuple((kind, kinds.count(kind)) for kind in dict.fromkeys(sorted(kinds)))


def first_guess(workers: int, kinds: Sequence[str]) -> LogicalWorkerSpeed:
    """Before anything was measured: shares are known, seconds are not."""
    return LogicalWorkerSpeed(num_logical_workers=workers, turn_s=dict.fromkeys(kinds, _GUESS_S))


def _like(one: LogicalWorkerSpeed, other: LogicalWorkerSpeed, shapes: Sequence[tuple[tuple[str, int], ...]]) -> bool:
    asked = [*shapes, *(((kind, 1),) for kind in other.turn_s)]
    for shape in asked:
        before, after = one.step_s(shape), other.step_s(shape)
        if not math.isfinite(before) or abs(after - before) > _WORTH_TELLING * before:
            return False
    return True
