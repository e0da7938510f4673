"""What the simulator has to know, measured before anything is compared: speeds, and what changes cost.

Every recipe trains under the service on one device alone, on one device beside a neighbour that does the same, and on
both devices. Then one job is shrunk, grown, paused and resumed. Nothing here looks at the workload or at a policy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.cluster import live
from benchmarks.cluster.workload import STEP_S, Job
from isoscale.cluster.client import Client
from isoscale.testing.served import Served

_LIMIT_S = 120.0
#: the first steps after a change are not its pace
_WARM = 5


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds. A step by recipe on one device alone, on one beside a neighbour, and on two."""

    alone_s: dict[str, float]
    beside_s: dict[str, float]
    both_s: dict[str, float]
    #: by recipe, from the decision to the first step, less a step: some import more than others
    start_s: dict[str, float]
    #: from the last step to the end
    end_s: float
    #: of the recipe whose devices were changed: from the decision to the first step after a pause
    changed: str
    resume_s: float
    #: from a decision that takes devices until they are free: of a job that shrinks, and of one that is paused
    shrink_s: float
    pause_s: float
    #: from a decision that gives devices to the first step with them, and how long training stood still meanwhile
    ready_s: float
    rescale_s: float

    @property
    def interference(self) -> float:
        """Share of its speed that a job loses to a neighbour."""
        return max(0.0, mean(1 - self.alone_s[one] / self.beside_s[one] for one in self.alone_s))

    def in_words(self) -> str:
        starts = sorted(self.start_s.values())
        return (
            f"start {starts[0]:.2f} to {starts[-1]:.2f} s, end {self.end_s:.2f} s, resume {self.resume_s:.2f} s, "
            f"shrink {self.shrink_s:.2f} s, pause {self.pause_s:.2f} s, grow {self.ready_s:.2f} s of which "
            f"{self.rescale_s:.2f} s stand still; a neighbour costs {100 * self.interference:.1f} %"
        )

    def as_row(self) -> dict[str, Any]:
        return {"kind": "profile", "policy": "", "repetition": 0, **asdict(self)}


Speeds = tuple[dict[str, float], dict[str, float], dict[str, float], dict[str, float], float]


def measure_speeds(
    served: Served,
    client: Client,
    packed: live.Bundles,
    recipes: Sequence[str],
    seconds: float,
    say: Callable[[str], None],
) -> Speeds:
    """Under a policy that gives a job all that it asks for. `seconds`: about how long every recipe trains each time."""
    alone: dict[str, float] = {}
    beside: dict[str, float] = {}
    both: dict[str, float] = {}
    starts: dict[str, list[float]] = {}
    ends: list[float] = []

    def train(jobs: Sequence[Job]) -> list[float]:
        ids = [live.submit(client, packed, job) for job in jobs]
        live.wait(client, ids)
        found = []
        for id_, job in zip(ids, jobs, strict=True):
            steps = live.steps_of(served.directory(id_))
            pace = _pace(steps)
            times = {event.event: event.t for event in client.job_events(id_)}
            starts.setdefault(job.recipe, []).append(steps[0][1] - times["job_started"] - pace)
            ends.append(times["job_finished"] - steps[-1][1])
            found.append(pace)
        return found

    for recipe in recipes:
        steps = max(3 * _WARM, round(seconds / STEP_S[recipe]))
        alone[recipe] = train([Job("alone", recipe, 0.0, steps, 1)])[0]
        beside[recipe] = mean(train([Job(f"beside-{number}", recipe, 0.0, steps, 1) for number in range(2)]))
        both[recipe] = train([Job("both", recipe, 0.0, steps, 2)])[0]
        say(
            f"{recipe}: a step takes {alone[recipe] * 1e3:.1f} ms alone, {beside[recipe] * 1e3:.1f} ms beside a "
            f"neighbour, {both[recipe] * 1e3:.1f} ms on both devices"
        )
    return alone, beside, both, {recipe: median(found) for recipe, found in starts.items()}, median(ends)


def _pace(steps: Sequence[tuple[int, float, int]]) -> float:
    """Seconds of a step, whatever belongs to it: evaluations between epochs count."""
    (first, begun, _), (last, ended, _) = steps[_WARM], steps[-1]
    return (ended - begun) / (last - first)


def measure_changes(
    served: Served, client: Client, packed: live.Bundles, recipe: str, *, times: int, grows: bool
) -> dict[str, Any]:
    """One long job whose devices its owner changes; it ends by being cancelled. `grows`: the policy gives devices to a
    job that runs; without, growth is not measured."""
    job = live.submit(client, packed, Job("changes", recipe, 0.0, 10**6, 2))
    directory = served.directory(job)
    shrink, pause, resume, ready, still = [], [], [], [0.0] * (not grows), [0.0] * (not grows)
    _until(lambda: _trains(directory, 2))
    for _ in range(times):
        begun = time.time()
        client.scale(job, 1)
        _until(lambda: _free(client) == 1)
        shrink.append(time.time() - begun)
        _until(lambda: _trains(directory, 1))
        before = len(live.steps_of(directory))
        client.scale(job, 2)
        if grows:
            _until(lambda: _trains(directory, 2))
            steps = live.steps_of(directory)
            switch = next(number for number in range(before, len(steps)) if steps[number][2] == 2)
            ready.append(steps[switch][1] - _decided_s(client, job, "job_resized"))
            gap = steps[switch][1] - steps[switch - 1][1]
            still.append(gap - (steps[-1][1] - steps[switch][1]) / max(1, len(steps) - 1 - switch))
        begun = time.time()
        client.pause(job)
        _until(lambda: _free(client) == 2)
        pause.append(time.time() - begun)
        before = len(live.steps_of(directory))
        client.resume(job)
        _until(partial(_trains, directory, 2, after=before))
        resume.append(live.steps_of(directory)[before][1] - _decided_s(client, job, "job_resumed"))
    client.cancel(job)
    _until(lambda: _free(client) == 2)
    return {
        "changed": recipe,
        "resume_s": median(resume),
        "shrink_s": median(shrink),
        "pause_s": median(pause),
        "ready_s": median(ready),
        "rescale_s": max(0.0, median(still)),
    }


def _decided_s(client: Client, job: str, event: str) -> float:
    """When the newest such event was."""
    return [one.t for one in client.job_events(job) if one.event == event][-1]


def _free(client: Client) -> int:
    return sum(device.state == "free" for node in client.devices() for device in node.devices)


def _trains(directory: Path, executors: int, after: int = 0) -> bool:
    """A few steps on so many executors are there, beyond the first `after` ones."""
    if not (directory / "events.jsonl").exists():
        return False
    late = live.steps_of(directory)[after:][-2 * _WARM :]
    return len(late) == 2 * _WARM and all(size == executors for _, _, size in late)


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not done():
        if time.monotonic() > deadline:
            raise live.JobFailedError(f"not in {_LIMIT_S:g} s")
        time.sleep(0.02)
