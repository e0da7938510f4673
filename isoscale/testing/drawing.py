"""Stories out of numbers: what happens to whom, when, and in which job, is a function of the seed and nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

from isoscale.runtime.executor.fault_points import Action, FaultPoint
from isoscale.testing import faults, short_job_path

__all__ = ["DATA", "SHORT_JOB", "WORKERS", "Story", "Target", "story_of"]

WORKERS = 4
#: points that are reached without a rescale, and those of one
_POINTS = ["forward", "backward", "exchange", "contexts", "seal", "sealed", "optimizer", "evaluation", "end", "ended"]
_RESCALE_POINTS = ["forming", "formed", "switch", "handover", "handed", "joining", "landing", "leaving", "agreeing"]
_SAVING_POINTS = ["checkpoint", "checkpointed", "saving", "saved"]
#: how often what happens, beside what happens to coordinators
_WEIGHTS = {
    "kill": 24,
    "scale": 26,
    "stop": 5,
    "slow": 6,
    "notice": 8,
    "migrate": 5,
    "kill_all": 2,
    "burst": 8,
    "notice_all": 4,
    "migrate_all": 4,
    "demand": 5,
    "checkpoint": 3,
}
#: what no job can do
_DEMANDS = (
    "999999999",
    "20000000",
    "99999999999999999999",
    "cpu*999999",
    "+999999999",
    "-5",
    "0",
    "nan",
    "inf",
    "1e9",
    "cpu*0",
    "cpu*-1",
    "gpu-of-tomorrow*2",
    "4;rm",
    "cpu+" * 250_000,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The job that things happen to."""

    script: Path
    arguments: tuple[str, ...] = ()
    #: committed steps of the whole job
    steps: int
    #: seconds without a heartbeat after which an executor counts as lost
    lost_after_s: float = 10.0
    #: it has loader processes, which are killed too
    has_loaders: bool = False
    #: a text of the script and what takes its place when somebody edits it; then every run has a copy of its own
    edits: tuple[str, str] | None = None
    #: it prints a flood of lines when it is asked to
    floods: bool = False
    #: batch sizes that it may have; what it comes to is what a run with the same sizes comes to
    batch_sizes: tuple[int, ...] = ()


SHORT_JOB = Target(
    script=short_job_path(),
    arguments=("4", "0.01", "0", "track"),
    steps=80,
    lost_after_s=3.0,
    edits=("                loss.backward()\n", "                (2 * loss).backward()\n"),
    floods=True,
)
#: the short job by the way it reads; the first does so in the turn
DATA = {
    "loader": SHORT_JOB,
    "processes": replace(SHORT_JOB, arguments=("4", "0.01", "3", "track"), has_loaders=True),
    "stream": replace(SHORT_JOB, arguments=("4", "0.01", "0", "stream", "track")),
    "stream-processes": replace(SHORT_JOB, arguments=("4", "0.01", "2", "stream", "track"), has_loaders=True),
    "live": replace(SHORT_JOB, arguments=("4", "0.01", "0", "live"), batch_sizes=(4, 8, 16)),
    "live-stream-processes": replace(
        SHORT_JOB, arguments=("4", "0.01", "2", "stream", "live"), has_loaders=True, batch_sizes=(4, 8, 16)
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What a seed stands for."""

    seed: int
    executors: int
    spares: int
    checkpoint_every: int
    faults: tuple[faults.Fault, ...]
    points: tuple[FaultPoint, ...]

    def lines(self) -> list[str]:
        return [*map(str, self.faults), *map(str, self.points)]


def story_of(seed: int, target: Target = SHORT_JOB) -> Story:
    """The same for a seed on every machine, but for what only some jobs meet: loader processes, floods, edits."""
    draw, last = random.Random(seed), target.steps
    events = [_draw_fault(draw, draw.randint(1, max(1, last - 10))) for _ in range(draw.randint(2, 5))]
    if draw.random() < 0.5:
        step = draw.randint(3, max(3, last - 15))
        events.append(_draw_coordinator_fault(draw, step, target.lost_after_s))
    points = []
    if draw.random() < 0.5:
        points.append(_draw_point(draw, last))
    executors, spares, checkpoint_every = draw.randint(1, WORKERS), draw.choice([0, 1, 1, 2]), draw.choice([0, 7, 15])
    if target.has_loaders:
        for _ in range(draw.randint(1, 3)):
            after_s, member = round(draw.uniform(0, 0.06), 4), draw.randrange(WORKERS)
            events.append(faults.kill_loaders(member=member, step=draw.randint(1, max(1, last - 10)), after_s=after_s))
    if target.edits and draw.random() < 0.3:
        # Early: whoever comes later would run other code.
        events.append(faults.edit(step=draw.randint(1, max(1, last // 3))))
    if target.floods and draw.random() < 0.08:
        events.append(faults.flood(draw.choice([100_000, 100_000, 300_000]), step=draw.randint(1, max(1, last - 20))))
    for _ in range(draw.randint(1, 4) if target.batch_sizes else 0):
        devices = draw.choice(["", "", str(draw.randint(1, WORKERS))])
        at, after_s = draw.randint(1, max(1, last // 2)), round(draw.uniform(0, 0.06), 4)
        events.append(faults.rebatch(draw.choice(target.batch_sizes), devices, step=at, after_s=after_s))
    return Story(
        seed=seed,
        executors=executors,
        spares=spares,
        checkpoint_every=checkpoint_every,
        faults=tuple(sorted(events, key=lambda one: one.step)),
        points=tuple(points),
    )


def _draw_fault(draw: random.Random, step: int) -> faults.Fault:
    after_s, member = round(draw.uniform(0, 0.06), 4), draw.randrange(WORKERS)
    kind = draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=1)[0]
    match kind:
        case "kill":
            return faults.kill(member=member, step=step, after_s=after_s)
        case "scale":
            return faults.scale(draw.randint(1, WORKERS), step=step, after_s=after_s)
        case "stop":
            return faults.stop(member=member, step=step, after_s=after_s)
        case "slow":
            return faults.slow(member=member, factor=draw.choice([2, 3, 5]), step=step, after_s=after_s)
        case "notice":
            return faults.notice(member=member, step=step, after_s=after_s)
        case "migrate":
            return faults.migrate(member=member, step=step, after_s=after_s)
        case "kill_all":
            return faults.kill_all(step=step, after_s=after_s)
        case "burst":
            whom: faults.Whom = draw.choice(["members", "newcomers", "anybody"])
            return faults.burst(draw.randint(2, WORKERS), whom=whom, step=step, after_s=after_s)
        case "notice_all":
            return faults.notice_all(step=step, after_s=after_s)
        case "migrate_all":
            return faults.migrate_all(step=step, after_s=after_s)
        case "demand":
            return faults.demand(draw.choice(_DEMANDS), step=step, after_s=after_s)
        case _:
            return faults.checkpoint(step=step, after_s=after_s)


def _draw_coordinator_fault(draw: random.Random, step: int, lost_after_s: float) -> faults.Fault:
    after_s, kind = round(draw.uniform(0, 0.06), 4), draw.choice(["kill", "kill", "kill", "pause", "stop", "interrupt"])
    meanwhile = []
    if draw.random() < 0.5:
        one = draw.choice([faults.kill, faults.kill, faults.notice, faults.stop])
        meanwhile = [one(member=draw.randrange(WORKERS), after_s=round(draw.uniform(0, 0.2), 4))]
    down_s = round(draw.choice([0.0, draw.uniform(0, 0.5), draw.uniform(0.5, 3)]), 4)
    match kind:
        case "kill":
            return faults.kill_coordinator(step=step, after_s=after_s, down_s=down_s, meanwhile=meanwhile)
        case "pause":
            seconds = round(lost_after_s * draw.uniform(1, 4), 4)
            return faults.pause_coordinator(step=step, after_s=after_s, seconds=seconds, meanwhile=meanwhile)
        case "stop":
            return faults.stop_job(step=step, after_s=after_s)
        case _:
            return faults.interrupt(step=step, after_s=after_s)


def _draw_point(draw: random.Random, last: int) -> FaultPoint:
    group = draw.choice([_POINTS, _POINTS, _RESCALE_POINTS, _SAVING_POINTS])
    point = draw.choice(group)
    step = draw.randint(2, last) if group is _POINTS and point not in ("evaluation", "end", "ended") else None
    actions: list[Action] = ["kill", "stop", "sleep"]
    action = draw.choices(actions, [8, 1, 1], k=1)[0]
    return faults.at(point, executor=draw.randrange(WORKERS + 1), step=step, action=action, seconds=0.3)
