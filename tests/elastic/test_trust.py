"""A coordinator judges others by what it could have heard, events by what they are, and progress by what is new."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from isoscale.testing import Nursery, RunningJob, start

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

Begin = Callable[..., RunningJob]
EndsTheSame = Callable[[RunningJob], None]

#: what every script here has in common; `ACT` is what happens in a turn or after it
SCRIPT = """
import ctypes, os, time
import torch
from torch.utils.data import TensorDataset
import isoscale


def train(job):
    model = job.model(torch.nn.Linear(2, 1))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
    who = job.keep_per_worker("who", lambda rank: {{"rank": rank}})
    loader = job.loader(TensorDataset(torch.ones(32, 2)), batch_size=2)
    for _ in job.steps({steps}):
        for step in loader:
            for (x,) in step:
                {in_turn}
                model(x).sum().backward()
            optimizer.step()
            {after}


if __name__ == "__main__":
    isoscale.run(train)
"""


def script(directory: Path, *, steps: int = 12, in_turn: str = "pass", after: str = "pass") -> Path:
    path = directory / "script.py"
    path.write_text(SCRIPT.format(steps=steps, in_turn=in_turn, after=after))
    return path


def isoscale(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from isoscale.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def coordinator_of(job: RunningJob) -> int:
    return int(job.events("coordinator_started")[-1]["pid"])


def stop_for(seconds: float, *pids: int) -> None:
    """All of them, for so long."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def nobody_was_hurt(job: RunningJob) -> None:
    for event in ("executor_killed", "executor_lost", "restart", "rescale"):
        assert job.events(event) == [], event


# ---- a coordinator that does not run ----


def test_a_coordinator_that_was_stopped_takes_nobody_for_dead(begin: Begin, ends_the_same: EndsTheSame) -> None:
    """Three times as long as an executor may be silent: while executors start, and while they train."""
    job = begin(executors=2, lost_after_s=2.0)
    job.wait_for(lambda: len(job.events("executor_started")) == 2, "executors")
    stop_for(6.0, coordinator_of(job))
    job.wait_step(5)
    stop_for(6.0, coordinator_of(job))
    job.wait_for(lambda: [one for one in job.events("coordinator_paused") if one["seconds"] > 5][1:], "it notices")
    job.wait_step(job.step() + 3)
    ends_the_same(job)
    nobody_was_hurt(job)


def test_what_a_stopped_coordinator_s_people_are_told(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=1)
    job.wait_step(1)
    pid = coordinator_of(job)
    os.kill(pid, signal.SIGSTOP)
    try:
        for command in (["scale", str(job.directory), "2"], ["resume", str(job.directory)]):
            told = isoscale(*command)
            assert told.returncode == 2
            assert told.stderr == (
                f"isoscale: DIR={job.directory}: its coordinator (process {pid}) is stopped by a signal; "
                f"executors train on without it; continue it: kill -CONT {pid}\n"
            )
    finally:
        os.kill(pid, signal.SIGCONT)
    job.kill_coordinator()
    told = isoscale("status", str(job.directory))
    assert told.stderr == (
        f"isoscale: DIR={job.directory}: its coordinator is gone; start another one: isoscale resume {job.directory}\n"
    )
    job.resume()
    ends_the_same(job)


def test_a_job_that_is_stopped_as_a_whole_goes_on_as_a_whole(begin: Begin, ends_the_same: EndsTheSame) -> None:
    """As a batch system does that lends the machine to somebody else."""
    job = begin(executors=2, lost_after_s=2.0)
    job.wait_step(5)
    stop_for(6.0, coordinator_of(job), *job.pids().values())
    job.wait_step(8)
    ends_the_same(job)
    nobody_was_hurt(job)


def test_a_new_coordinator_that_is_stopped_while_it_takes_over(begin: Begin, ends_the_same: EndsTheSame) -> None:
    """For longer than executors have to come to it."""
    job = begin(executors=2, lost_after_s=2.0)
    job.wait_step(3)
    job.kill_coordinator()
    job.resume()
    job.wait_for(lambda: len(job.events("coordinator_started")) == 2, "another coordinator")
    stop_for(20.0, coordinator_of(job))
    job.wait_step(job.step() + 3)
    ends_the_same(job)
    nobody_was_hurt(job)


def test_executors_that_fall_silent_together_are_not_killed_together(nursery: Nursery, tmp_path: Path) -> None:
    """A call that keeps the interpreter to itself stops heartbeats, and a script makes it everywhere at once."""
    busy = script(tmp_path, after="job.step == 4 and ctypes.PyDLL(None).sleep(6)")
    with start(busy, out=tmp_path / "run", executors=2, lost_after_s=2.0, nursery=nursery) as job:
        assert job.wait() == 0, job.output()
        nobody_was_hurt(job)
        assert "none of 2 executors has been heard for" in job.output()


# ---- one event is one failure ----


def test_starting_executors_that_are_killed_at_once_are_replaced(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=3)
    job.wait_for(lambda: len(job.pids()) == 3, "executors")
    for executor in (0, 1, 2):
        assert job.kill(executor)
    ends_the_same(job)
    assert len(job.events("executor_lost")) == 3
    assert len(job.events("executor_started")) == 6


def test_newcomers_that_are_killed_at_once_are_replaced(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=1)
    job.wait_step(1)
    job.scale(4)
    job.wait_for(lambda: {1, 2, 3} <= set(job.pids()), "newcomers")
    for executor in (1, 2, 3):
        assert job.kill(executor)
    assert job.wait_members(4) == [0, 4, 5, 6]
    ends_the_same(job)
    assert job.events("warning") == []


def test_newcomers_that_die_again_and_again_are_given_up_with_a_way_to_go_on(nursery: Nursery, tmp_path: Path) -> None:
    """The machine has no room for a second one, say."""
    linger = "time.sleep(0 if (job.out / 'hurry').exists() else 0.2)"
    slow, room = script(tmp_path, steps=400, in_turn=linger), tmp_path / "room"
    doomed = f"os.environ['ISOSCALE_EXECUTOR'] != '0' and not os.path.exists({str(room)!r}) and os.kill(os.getpid(), 9)"
    slow.write_text(slow.read_text().replace("import isoscale\n", f"import isoscale\n{doomed}\n", 1))
    out = tmp_path / "run"
    with start(slow, out=out, executors=1, nursery=nursery) as job:
        job.wait_step(1)
        job.scale(2)
        (warning,) = job.wait_for(lambda: job.events("warning"), "it is given up")
        assert warning["message"] == (
            "scaling is given up: newcomers ended before they could join, 3 times in a row: killed by SIGKILL; "
            f"isoscale scale {out} 2 tries again"
        )
        with job.handle() as handle:
            assert handle.status()["refused"].endswith(f"isoscale scale {out} 2 tries again")
        started = [one["t"] for one in job.events("executor_started")[1:]]
        assert started[-1] - started[0] > 1.0, "not all at once"
        room.touch()
        job.scale(2)
        job.wait_members(2)
        job.hurry()
        assert job.wait() == 0, job.output()


# ---- only what is new is progress ----


def test_a_turn_that_ends_its_process_ends_the_job_with_its_name(nursery: Nursery, tmp_path: Path) -> None:
    fatal = script(tmp_path, in_turn="time.sleep(0.03); job.step == 6 and who['rank'] == 2 and os._exit(3)")
    out = tmp_path / "run"
    with start(fatal, out=out, executors=1, checkpoint_every=4, nursery=nursery) as job:
        assert job.wait() == 1, job.output()
        (failed,) = job.events("failed")
        assert failed["error"] == (
            "all executors were lost 4 times without coming beyond step 6: each time exit code 3 in step 7 (turn of "
            f"logical worker 2); see the end of {out}/logs/executor-3.log; isoscale resume {out} tries again"
        )
        assert f"isoscale: {failed['error']}\n" in job.output()
        restarts = [(one["step"], one["reached"], one["attempt"]) for one in job.events("restart")]
        assert restarts == [(4, 6, 1), (4, 6, 2), (4, 6, 3)]
        job.resume()
        job.wait_for(lambda: job.events("restart")[3:], "another try")
        assert job.events("restart")[-1]["attempt"] == 0, "somebody has decided to try again"


def test_a_turn_that_ends_whoever_runs_it_ends_the_job(nursery: Nursery, tmp_path: Path) -> None:
    """Those who adopt the logical worker end, too, until nobody is left; then again from the beginning."""
    fatal = script(tmp_path, in_turn="job.step == 3 and who['rank'] == 1 and os.kill(os.getpid(), 11)")
    with start(fatal, out=tmp_path / "run", executors=3, nursery=nursery) as job:
        assert job.wait() == 1, job.output()
        (failed,) = job.events("failed")
        assert "each time killed by SIGSEGV in step 4 (turn of logical worker 1)" in failed["error"]
        assert len(job.events("executor_started")) == 12
