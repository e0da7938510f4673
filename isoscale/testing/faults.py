"""Stories of what happens to a job, as values: who, what, and after how many committed steps.

    [faults.kill(executor=1, step=7), faults.scale("4", step=12), faults.kill_coordinator(step=20)]

`play` tells them to a running job in order. An executor is named by its id, or by `member`, its position in the
placement at that time (counted modulo the number of members). `at` is different: a fault at a precise place inside
an executor, given to `testing.start` before the job begins.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from isoscale.runtime.fault_points import POINTS, Action, FaultPoint
from isoscale.runtime.handle import RequestRefusedError
from isoscale.testing.running import JobEndedError, RunningJob

__all__ = [
    "POINTS",
    "Fault",
    "at",
    "kill",
    "kill_all",
    "kill_coordinator",
    "kill_loaders",
    "migrate",
    "notice",
    "play",
    "scale",
    "slow",
    "stop",
]

Kind = Literal["kill", "stop", "slow", "notice", "scale", "migrate", "kill_coordinator", "kill_all", "kill_loaders"]

_SLICE_S = 0.03
_PATIENCE_S = 30.0


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
    #: what happens while there is no coordinator
    meanwhile: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        who = f" executor {self.executor}" if self.executor is not None else ""
        who += f" member {self.member}" if self.member is not None else ""
        what = f" {self.target}" if self.target else ""
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


def at(
    point: str, *, executor: int, step: int | None = None, action: Action = "kill", seconds: float = 1
) -> FaultPoint:
    """Inside an executor, when it reaches a point (`POINTS`) of a step, or for the first time."""
    if point not in POINTS:
        raise ValueError(f"point={point!r}: there are {', '.join(POINTS)}")
    return FaultPoint(executor=executor, point=point, step=step, action=action, seconds=seconds)


def play(job: RunningJob, story: Sequence[Fault], *, strict: bool = True) -> list[str]:
    """Everything in order of steps; what really happened. With `strict` JobEndedError is raised if a fault came too
    late for the job, or found nobody."""
    done: list[str] = []
    for fault in sorted(story, key=lambda one: (one.step, one.after_s)):
        try:
            job.wait_step(fault.step)
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


def perform(job: RunningJob, fault: Fault) -> bool:
    """Now. False if there was nobody to do it to."""
    time.sleep(fault.after_s)
    match fault.kind:
        case "scale":
            return job.try_scale(fault.target)
        case "kill_coordinator":
            return _replace_coordinator(job, fault)
        case "kill_all":
            return sum(job.kill(executor) for executor in job.pids()) > 0
    executor = _executor_of(job, fault)
    if executor is None:
        return False
    match fault.kind:
        case "kill":
            return job.kill(executor)
        case "kill_loaders":
            return job.kill_loaders(executor)
        case "stop":
            return job.stop(executor)
        case "notice":
            return job.notice(executor)
        case "slow":
            threading.Thread(target=_slow_down, args=(job, executor, fault), daemon=True).start()
            return True
        case "migrate":
            with contextlib.suppress(RequestRefusedError), job.handle() as handle:  # it may have gone just now
                handle.migrate(executor)
                return True
            return False
    raise AssertionError(fault.kind)


def _executor_of(job: RunningJob, fault: Fault) -> int | None:
    if fault.executor is not None:
        return fault.executor
    members = job.members()
    return members[(fault.member or 0) % len(members)] if members else None


def _replace_coordinator(job: RunningJob, fault: Fault) -> bool:
    job.kill_coordinator()
    begun = time.monotonic()
    for one in sorted(fault.meanwhile, key=lambda one: one.after_s):
        time.sleep(max(0.0, begun + one.after_s - time.monotonic()))
        executor = _executor_of(job, one)
        if executor is not None:
            job.signal(executor, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}.get(one.kind, signal.SIGTERM))
    time.sleep(max(0.0, begun + fault.seconds - time.monotonic()))
    job.resume()
    return True


def _slow_down(job: RunningJob, executor: int, fault: Fault) -> None:
    deadline = time.monotonic() + fault.seconds
    while time.monotonic() < deadline and job.stop(executor):
        time.sleep(_SLICE_S * (fault.factor - 1) / fault.factor)
        if not job.signal(executor, signal.SIGCONT):
            return
        time.sleep(_SLICE_S / fault.factor)
    job.signal(executor, signal.SIGCONT)
