"""What faults do, really: each act is seen in the job, and written into the record of what was done."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isoscale.testing import BrokenPromiseError, Nursery, RunningJob, faults, short_job_path, start

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

Hold = Callable[..., RunningJob]


@pytest.fixture
def hold(nursery: Nursery, tmp_path: Path) -> Iterator[Hold]:
    """A job whose promises are not checked: here it is the acts that are tested."""
    with contextlib.ExitStack() as stack:

        def hold(**options: Any) -> RunningJob:
            options = {"out": tmp_path / "run", "nursery": nursery, "executors": 2} | options
            arguments = ["4", "0.04", "0", "wait"]
            script = options.pop("script", short_job_path())
            job = start(script, script_args=arguments, options=["--no-rebalance"], **options)
            return stack.enter_context(contextlib.closing(job))

        yield hold


def deeds(job: RunningJob) -> list[str]:
    return [deed.what for deed in job.record.deeds]


def play(job: RunningJob, *story: faults.Fault) -> None:
    assert faults.play(job, story) == [f"{fault}: done" for fault in story]


def test_a_coordinator_that_pauses(hold: Hold) -> None:
    job = hold(lost_after_s=20.0)
    play(job, faults.pause_coordinator(seconds=1.5, step=3))
    assert deeds(job) == ["stop_coordinator", "continue_coordinator"]
    ((start_, end),) = job.record.pauses()
    own = [event for event in job.events() if event["event"] not in ("step", "log", "executor_speed")]
    silent = [event for event in own if start_ + 0.1 < event["t"] < end - 0.01]
    assert end - start_ >= 1.5
    assert silent == [], "it wrote nothing"
    before = job.step()
    job.wait_step(before + 1)


def test_stop_and_resume_then_ctrl_c_and_resume(hold: Hold) -> None:
    job = hold(checkpoint_every=2)
    play(job, faults.checkpoint(step=2), faults.stop_job(step=4))
    assert len(job.events("stopped")) == 1
    play(job, faults.interrupt(step=6))
    job.wait_for(lambda: len(job.events("coordinator_started")) == 3, "the third coordinator")
    assert deeds(job) == ["resume", "interrupt", "resume"]
    assert [asked.request for asked in job.record.asked] == ["checkpoint", "stop"]


def test_bursts_and_notices(hold: Hold) -> None:
    job = hold(executors=3, checkpoint_every=2)
    play(job, faults.burst(2, step=3))
    assert deeds(job) == ["kill", "kill"]
    job.wait_for(lambda: len(job.events("executor_lost")) == 2, "two losses")
    play(job, faults.notice_all(step=5))
    assert set(deeds(job)[2:]) == {"notice"}
    job.wait_for(lambda: job.events("notice"), "a notice")


def test_a_burst_hits_newcomers_before_they_come(hold: Hold) -> None:
    job = hold(executors=1)
    play(job, faults.burst(3, whom="newcomers", step=3))
    hit = {deed.executor for deed in job.record.deeds if deed.what == "kill"}
    job.wait_for(lambda: hit <= {event["executor"] for event in job.events("executor_lost")}, "their losses")
    assert 0 not in hit
    assert hit


@pytest.mark.parametrize("target", ["-5", "nan", "cpu+" * 250_000], ids=lambda text: text[:5])
def test_what_no_job_can_do_is_refused(hold: Hold, target: str) -> None:
    job = hold(executors=1)
    play(job, faults.demand(target, step=1))
    (asked,) = job.record.asked
    assert (asked.absurd, asked.ok) == (True, False)
    assert asked.error
    assert len(asked.target) <= 200


def test_a_script_is_edited_while_it_runs(hold: Hold, tmp_path: Path) -> None:
    script = Path(shutil.copy(short_job_path(), tmp_path / "mine.py"))
    job = hold(script=script, executors=1, edits=("loss.backward()", "(2 * loss).backward()"))
    play(job, faults.edit(step=1))
    assert "(2 * loss).backward()" in script.read_text()
    assert deeds(job) == ["edit"]
    assert faults.play(job, [faults.edit(step=2)], strict=False)[0].endswith("nobody there"), "once is enough"


def test_a_flood(hold: Hold) -> None:
    job = hold(executors=1)
    play(job, faults.flood(3000, step=2))
    log = job.directory / "logs" / "executor-0.log"
    job.wait_for(lambda: log.read_text().count("of a flood") == 3000, "3000 lines")


def test_a_story_in_which_a_promise_was_broken_fails(hold: Hold) -> None:
    job = hold()
    job.wait_step(3)
    job.kill(job.members()[0])
    job.record.deeds.clear()
    job.wait_for(lambda: job.events("executor_lost"), "its loss")
    with pytest.raises(BrokenPromiseError, match="nobody had done anything to it"):
        job.check_promises()
    job.exempt("killed", "it was done behind its back")
    job.check_promises()
