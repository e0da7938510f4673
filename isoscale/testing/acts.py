"""What each fault does to a running job, really: signals, requests, files."""

from __future__ import annotations

import signal
import threading
import time

from isoscale.runtime.control.job_handle import JobHandle
from isoscale.testing.faults import Fault
from isoscale.testing.running import JobEndedError, RunningJob

__all__ = ["perform"]

_SLICE_S = 0.03
#: newcomers that were asked for and do not come are not waited for longer
_NEWCOMERS_S = 10.0


def perform(job: RunningJob, fault: Fault) -> bool:
    """Now. False if there was nobody to do it to."""
    time.sleep(fault.after_s)
    match fault.kind:
        case "scale":
            return job.try_scale(fault.target)
        case "rebatch":
            return job.try_to(lambda handle: handle.scale_to(fault.target or None, batch=fault.count))
        case "kill_coordinator":
            return _replace_coordinator(job, fault)
        case "pause_coordinator":
            return _pause_coordinator(job, fault)
        case "kill_all":
            return sum(job.kill(executor) for executor in job.pids()) > 0
        case "notice_all":
            return sum(job.notice(executor) for executor in job.pids()) > 0
        case "burst":
            return _burst(job, fault)
        case "edit":
            return job.edit()
        case "flood":
            job.flood(fault.count)
            return True
        case "demand":
            return job.demand(fault.target)
        case "checkpoint":
            return job.try_to(JobHandle.checkpoint)
        case "stop_job":
            return _stop_and_resume(job)
        case "interrupt":
            return _interrupt_and_resume(job)
        case "migrate_all":
            away = tuple(job.members())
            return job.try_to(lambda handle: handle.migrate(*away))
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
            job.did("slow", executor, seconds=fault.seconds)
            threading.Thread(target=_slow_down, args=(job, executor, fault), daemon=True).start()
            return True
        case "migrate":
            return job.try_to(lambda handle: handle.migrate(executor))
    raise AssertionError(fault.kind)


def _executor_of(job: RunningJob, fault: Fault) -> int | None:
    if fault.executor is not None:
        return fault.executor
    members = job.members()
    return members[(fault.member or 0) % len(members)] if members else None


def _replace_coordinator(job: RunningJob, fault: Fault) -> bool:
    job.kill_coordinator()
    _meanwhile(job, fault)
    job.resume()
    return True


def _pause_coordinator(job: RunningJob, fault: Fault) -> bool:
    if job.has_ended:
        return False
    job.stop_coordinator()
    try:
        _meanwhile(job, fault)
    finally:
        job.continue_coordinator()
    return True


def _meanwhile(job: RunningJob, fault: Fault) -> None:
    """What happens while nobody coordinates, until `fault.seconds` are over."""
    begun = time.monotonic()
    for one in sorted(fault.meanwhile, key=lambda one: one.after_s):
        time.sleep(max(0.0, begun + one.after_s - time.monotonic()))
        executor = _executor_of(job, one)
        if executor is not None:
            job.signal(executor, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}.get(one.kind, signal.SIGTERM))
    time.sleep(max(0.0, begun + fault.seconds - time.monotonic()))


def _burst(job: RunningJob, fault: Fault) -> bool:
    if fault.whom == "newcomers" and not _call_newcomers(job, fault.count):
        return False
    alive, members = job.pids(), job.members()
    hit = {
        "members": [executor for executor in members if executor in alive],
        "newcomers": [executor for executor in alive if executor not in members],
        "anybody": sorted(alive, key=lambda executor: (executor in members, executor)),
    }[fault.whom]
    return sum(job.kill(executor) for executor in hit[: fault.count]) > 0


def _call_newcomers(job: RunningJob, count: int) -> bool:
    """Ask for so many more executors, as far as there is work for them, and wait until processes are there."""
    members = len(job.members())
    if not any(job.try_scale(members + more) for more in range(count, 0, -1)):
        return False
    deadline = time.monotonic() + _NEWCOMERS_S
    while not job.has_ended and time.monotonic() < deadline:
        if set(job.pids()) - set(job.members()):
            return True
        time.sleep(0.005)
    return False


def _stop_and_resume(job: RunningJob) -> bool:
    if not job.try_to(JobHandle.stop):
        return False
    return _resume_after_end(job)


def _interrupt_and_resume(job: RunningJob) -> bool:
    if job.has_ended:
        return False
    job.signal_coordinator(signal.SIGINT)
    return _resume_after_end(job)


def _resume_after_end(job: RunningJob) -> bool:
    job.wait()
    if job.events("finished"):
        raise JobEndedError("the job came to its end first")
    job.resume()
    return True


def _slow_down(job: RunningJob, executor: int, fault: Fault) -> None:
    deadline = time.monotonic() + fault.seconds
    while time.monotonic() < deadline and job.signal(executor, signal.SIGSTOP, record=False):
        time.sleep(_SLICE_S * (fault.factor - 1) / fault.factor)
        if not job.signal(executor, signal.SIGCONT, record=False):
            return
        time.sleep(_SLICE_S / fault.factor)
    job.signal(executor, signal.SIGCONT, record=False)
