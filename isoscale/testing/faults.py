"""Stories of what happens to a job, as values: who, what, and after how many committed steps.

    [faults.kill(executor=1, step=7), faults.scale("4", step=12), faults.kill_coordinator(step=20)]

`play` tells them to a running job in order. An executor is named by its id, or by `member`, its position in the
placement at that time (counted modulo the number of members). `at` is different: a fault at a precise place inside
an executor, given to `testing.start` before the job begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from isoscale.runtime.executor.fault_points import POINTS, Action, FaultPoint
from isoscale.testing.running import PATIENCE_S, JobEndedError, RunningJob

__all__ = [
    "POINTS",
    "Fault",
    "Kind",
    "at",
    "burst",
    "checkpoint",
    "demand",
    "edit",
    "flood",
    "interrupt",
    "kill",
    "kill_all",
    "kill_coordinator",
    "kill_loaders",
    "migrate",
    "migrate_all",
    "notice",
    "notice_all",
    "pause_coordinator",
    "play",
    "rebatch",
    "scale",
    "slow",
    "stop",
    "stop_job",
]

Kind = Literal[
    "kill",
    "stop",
    "slow",
    "notice",
    "scale",
    "migrate",
    "kill_coordinator",
    "kill_all",
    "kill_loaders",
    "pause_coordinator",
    "notice_all",
    "burst",
    "edit",
    "flood",
    "demand",
    "stop_job",
    "interrupt",
    "checkpoint",
    "migrate_all",
    "rebatch",
]
#: whom a burst hits: who trains; who was called up and is not there yet; everybody there is
Whom = Literal["members", "newcomers", "anybody"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    kind: Kind
    #: when so many steps are committed, and so many seconds later
    step: int = 0
    after_s: float = 0.0
    executor: int | None = None
    member: int | None = None
    target: str = ""
    #: how many times slower, and for how many seconds
    factor: float = 1.0
    seconds: float = 0.0
    #: how many executors, or lines
    count: int = 0
    whom: Whom = "members"
    #: what happens while there is no coordinator, or one that does not run
    meanwhile: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        who = f" executor {self.executor}" if self.executor is not None else ""
        who += f" member {self.member}" if self.member is not None else ""
        what = f" {_short(self.target)}" if self.target else ""
        what += f" of {self.count} {self.whom}" if self.kind == "burst" else ""
        what += f" to {self.count}" if self.kind == "rebatch" else ""
        what += f" of {self.count} lines" if self.kind == "flood" else ""
        what += f" for {self.seconds:.1f} s" if self.kind == "pause_coordinator" else ""
        what += f" {self.factor:.1f}x" if self.kind == "slow" else ""
        also = f" ({', '.join(map(str, self.meanwhile))})" if self.meanwhile else ""
        return f"{self.kind}{who}{what} @{self.step}+{self.after_s:.3f}s{also}"


def kill(*, executor: int | None = None, member: int | None = None, step: int = 0, after_s: float = 0.0) -> Fault:
    """`kill -9`."""
    return Fault(kind="kill", executor=executor, member=member, step=step, after_s=after_s)


def kill_loaders(*, member: int | None = None, step: int = 0, after_s: float = 0.0) -> Fault:
    """`kill -9` of an executor's loader processes."""
    return Fault(kind="kill_loaders", member=member, step=step, after_s=after_s)


def stop(*, executor: int | None = None, member: int | None = None, step: int = 0, after_s: float = 0.0) -> Fault:
    """SIGSTOP, for good: it looks alive to the system and is dead to the others."""
    return Fault(kind="stop", executor=executor, member=member, step=step, after_s=after_s)


def slow(
    *,
    executor: int | None = None,
    member: int | None = None,
    factor: float = 3.0,
    seconds: float = 2.0,
    step: int = 0,
    after_s: float = 0.0,
) -> Fault:
    """Stopped and continued in turn, so that it gets 1/factor of the time; play goes on meanwhile."""
    return Fault(
        kind="slow", executor=executor, member=member, factor=factor, seconds=seconds, step=step, after_s=after_s
    )


def notice(*, executor: int | None = None, member: int | None = None, step: int = 0, after_s: float = 0.0) -> Fault:
    """SIGTERM, as a spot instance gets it."""
    return Fault(kind="notice", executor=executor, member=member, step=step, after_s=after_s)


def scale(target: int | str, *, step: int = 0, after_s: float = 0.0) -> Fault:
    """`isoscale scale DIR TARGET`."""
    return Fault(kind="scale", target=str(target), step=step, after_s=after_s)


def rebatch(size: int, target: int | str = "", *, step: int = 0, after_s: float = 0.0) -> Fault:
    """`isoscale scale DIR [TARGET] --batch SIZE`."""
    return Fault(kind="rebatch", count=size, target=str(target), step=step, after_s=after_s)


def migrate(*, executor: int | None = None, member: int | None = None, step: int = 0, after_s: float = 0.0) -> Fault:
    return Fault(kind="migrate", executor=executor, member=member, step=step, after_s=after_s)


def kill_coordinator(
    *, step: int = 0, after_s: float = 0.0, down_s: float = 0.3, meanwhile: Sequence[Fault] = ()
) -> Fault:
    """`kill -9`, and `isoscale resume DIR` after `down_s`; `meanwhile` happens before that, by its `after_s`."""
    return Fault(kind="kill_coordinator", step=step, after_s=after_s, seconds=down_s, meanwhile=tuple(meanwhile))


def kill_all(*, step: int = 0, after_s: float = 0.0) -> Fault:
    """Every executor at once, while the coordinator lives."""
    return Fault(kind="kill_all", step=step, after_s=after_s)


def pause_coordinator(*, seconds: float, step: int = 0, after_s: float = 0.0, meanwhile: Sequence[Fault] = ()) -> Fault:
    """SIGSTOP, and SIGCONT so many seconds later; `meanwhile` happens in between, by its `after_s`."""
    return Fault(kind="pause_coordinator", step=step, after_s=after_s, seconds=seconds, meanwhile=tuple(meanwhile))


def notice_all(*, step: int = 0, after_s: float = 0.0) -> Fault:
    """SIGTERM to every executor at once, spares too: a whole machine is going to be taken away."""
    return Fault(kind="notice_all", step=step, after_s=after_s)


def burst(count: int, *, whom: Whom = "members", step: int = 0, after_s: float = 0.0) -> Fault:
    """`kill -9` of so many within milliseconds. For newcomers some are asked for first, up to the number of logical
    workers."""
    return Fault(kind="burst", count=count, whom=whom, step=step, after_s=after_s)


def edit(*, step: int = 0, after_s: float = 0.0) -> Fault:
    """Somebody edits the script while it runs (`RunningJob.edit`)."""
    return Fault(kind="edit", step=step, after_s=after_s)


def flood(lines: int, *, step: int = 0, after_s: float = 0.0) -> Fault:
    """For `short_job`: every executor prints so many lines at once."""
    return Fault(kind="flood", count=lines, step=step, after_s=after_s)


def demand(target: str, *, step: int = 0, after_s: float = 0.0) -> Fault:
    """A request that no job can fulfil, and that must be refused."""
    return Fault(kind="demand", target=target, step=step, after_s=after_s)


def stop_job(*, step: int = 0, after_s: float = 0.0) -> Fault:
    """`isoscale stop DIR`, and `isoscale resume DIR` when it has ended."""
    return Fault(kind="stop_job", step=step, after_s=after_s)


def interrupt(*, step: int = 0, after_s: float = 0.0) -> Fault:
    """Ctrl-C, and `isoscale resume DIR`."""
    return Fault(kind="interrupt", step=step, after_s=after_s)


def checkpoint(*, step: int = 0, after_s: float = 0.0) -> Fault:
    """`isoscale checkpoint DIR`."""
    return Fault(kind="checkpoint", step=step, after_s=after_s)


def migrate_all(*, step: int = 0, after_s: float = 0.0) -> Fault:
    """All members shall go, and others come in their place."""
    return Fault(kind="migrate_all", step=step, after_s=after_s)


def at(
    point: str, *, executor: int, step: int | None = None, action: Action = "kill", seconds: float = 1
) -> FaultPoint:
    """Inside an executor, when it reaches a point (`POINTS`) of a step, or for the first time."""
    if point not in POINTS:
        raise ValueError(f"point={point!r}: there are {', '.join(POINTS)}")
    return FaultPoint(executor=executor, point=point, step=step, action=action, seconds=seconds)


def play(
    job: RunningJob,
    story: Sequence[Fault],
    *,
    strict: bool = True,
    resume: bool = False,
    patience_s: float = PATIENCE_S,
) -> list[str]:
    """Everything in order of steps; what really happened. With `strict` JobEndedError is raised if a fault came too
    late for the job, or found nobody. With `resume` a job that was stopped, and not by a fault that resumes it, is
    resumed, so that the rest can happen, too."""
    from isoscale.testing.acts import perform

    done: list[str] = []
    for fault in sorted(story, key=lambda one: (one.step, one.after_s)):
        try:
            _wait_for(job, fault.step, resume=resume, patience_s=patience_s)
            happened = perform(job, fault)
        except JobEndedError:
            if strict:
                raise
            done.append(f"{fault}: too late")
            break
        if strict and not happened:
            raise JobEndedError(f"{fault}: nobody was there")
        done.append(f"{fault}: {'done' if happened else 'nobody there'}")
    return done


def _wait_for(job: RunningJob, step: int, *, resume: bool, patience_s: float) -> None:
    while True:
        try:
            job.wait_step(step, patience_s)
            return
        except JobEndedError:
            if not (resume and job.was_stopped):
                raise
            job.resume()


def _short(text: str) -> str:
    return text if len(text) <= 24 else f"{text[:12]}... ({len(text)} characters)"
