"""What the simulator has to know: the values of a profile, and how they are read from a job's steps.

Nothing here looks at the workload or at a policy. `pairs` measures speeds and starts, `changes` what moves cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from statistics import mean, median
from typing import Any

from benchmarks.cluster.served import Step

#: the first steps after a start are not its pace: kernels are chosen, caches filled. What they take longer counts as
#: the start's.
WARM = 20
#: steps before and after an epoch's end that say what a step takes then
_NEAR = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Seconds that moves take, of one recipe."""

    changed: str
    #: from the decision to the first step after a pause, less a step
    resume_s: float
    #: from a decision that takes devices until they are free: of a job that shrinks, and of one that is paused
    shrink_s: float
    pause_s: float
    #: from a decision that gives devices to the first step with them, less a step; and how long training stood still
    #: meanwhile
    ready_s: float
    rescale_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """By recipe. A step is one without an evaluation before it."""

    #: seconds of a step on one device, on two, and on one beside each recipe on the other
    alone_s: dict[str, float]
    both_s: dict[str, float]
    beside_s: dict[str, dict[str, float]]
    #: steps of an epoch, and how many steps' time its end takes; 0: none was long enough to be seen
    epoch: dict[str, int]
    evaluation: dict[str, float]
    #: from the decision to the first step, less a step, with what the first steps take longer: on one device and on two
    start_s: dict[str, float]
    start_both_s: dict[str, float]
    #: times as long a start takes beside a job that trains
    start_beside: float
    #: times as long a step takes while the neighbour starts, over the same beside the neighbour that trains: not used
    while_starting: float
    #: from the last step to the end
    end_s: float

    def share(self, recipe: str, neighbour: str) -> float:
        """Of its speed that the one keeps beside the other."""
        return min(1.0, self.alone_s[recipe] / self.beside_s[recipe][neighbour])

    def step_s(self, recipe: str, devices: int, steps: int) -> float:
        """Mean of a job of so many steps: evaluations after its last step are its end's."""
        pace, epoch = (self.alone_s if devices == 1 else self.both_s)[recipe], self.epoch[recipe]
        ends = (steps - 1) // epoch if epoch else 0
        return pace * (1 + ends * self.evaluation[recipe] / steps)

    def in_words(self) -> str:
        shares = [self.share(one, other) for one in self.beside_s for other in self.beside_s[one]]
        starts = sorted(self.start_s.values())
        return (
            f"start {starts[0]:.2f} to {starts[-1]:.2f} s, {self.start_beside:.2f} times as long beside a neighbour; "
            f"end {self.end_s:.2f} s; beside a neighbour {min(shares):.0%} to {max(shares):.0%} of the speed"
        )


def as_row(kind: str, repetition: int, values: Changes | Speeds) -> dict[str, Any]:
    return {"kind": kind, "policy": "", "repetition": repetition, **asdict(values)}


def speeds_of(row: dict[str, Any]) -> Speeds:
    return Speeds(**{one.name: row[one.name] for one in fields(Speeds)})


def changes_of(row: dict[str, Any]) -> Changes:
    return Changes(**{one.name: row[one.name] for one in fields(Changes)})


def pace(steps: Sequence[Step], begin_s: float, end_s: float) -> float:
    """Mean seconds of a step between two moments, without those that follow an epoch's end."""
    found = gaps(steps, begin_s, end_s)
    if not found:
        raise ValueError(f"no step within {end_s - begin_s:.2f} s")
    return mean(found)


def gaps(steps: Sequence[Step], begin_s: float, end_s: float = math.inf) -> list[float]:
    """What every step took between two moments."""
    return [
        later.t - step.t
        for step, later in pairwise(steps)
        if begin_s <= step.t and later.t <= end_s and later.epoch == step.epoch
    ]


def epoch_ends(steps: Sequence[Step]) -> list[float]:
    """Of every epoch that ended after the first steps: how many steps' time more its end took. A step is that of the
    time around: company comes and goes."""
    gaps = [(later.t - step.t, later.epoch != step.epoch) for step, later in pairwise(steps)]
    found = []
    for number, (gap, ends) in enumerate(gaps):
        near = [one for one, other in gaps[max(0, number - _NEAR) : number + _NEAR] if not other]
        if ends and number >= WARM and near:
            found.append(max(0.0, gap / median(near) - 1))
    return found


def epoch_steps(steps: Sequence[Step]) -> int:
    """Steps of the first epoch; 0 if it has not ended."""
    first = sum(step.epoch == steps[0].epoch for step in steps)
    return 0 if first == len(steps) else first


def start_s(steps: Sequence[Step], decided_s: float, step_s: float) -> float:
    """From the decision on: what the first `WARM` steps took, less their pace. Epochs' ends among them are left out."""
    warm = steps[: WARM + 1]
    ends = sum(later.t - step.t - step_s for step, later in pairwise(warm) if later.epoch != step.epoch)
    return warm[-1].t - decided_s - ends - len(warm) * step_s
