"""Jobs that are ended on request: there is a checkpoint of the last committed step, and another start goes on there."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from isoscale.runtime.control.job_handle import RequestRefusedError
from isoscale.testing import Nursery, RunningJob, faults, start

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

Begin = Callable[..., RunningJob]
EndsTheSame = Callable[[RunningJob], None]


def isoscale(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from isoscale.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def answers(job: RunningJob) -> dict[int, str]:
    """By request; none is answered twice."""
    asked, found = [one["id"] for one in job.events("request")], job.events("answered")
    assert len({one["id"] for one in found}) == len(found)
    assert {one["id"] for one in found} <= set(asked)
    return {one["id"]: one["outcome"] for one in found}


def wait_logged(job: RunningJob, executor: int = 0) -> None:
    """Until the executor has come to its fault."""
    log = job.directory / "logs" / f"executor-{executor}.log"
    job.wait_for(lambda: log.exists() and "isoscale: fault" in log.read_text(), "the fault")


def everything_is_saved(job: RunningJob) -> None:
    (stopped,) = job.events("stopped")
    assert stopped["saved"] == stopped["step"] == job.step()


def nothing_was_done_again(job: RunningJob) -> bool:
    return [one["step"] for one in job.events("step")] == list(range(1, 81))


def test_a_stop_waits_for_a_long_step(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2, points=[faults.at("optimizer", executor=1, step=4, action="sleep", seconds=8)])
    wait_logged(job, 1)
    shown = isoscale("stop", str(job.directory))
    assert job.wait() == 130
    assert shown.stdout == f"stopped at step {job.step()}, checkpoint checkpoints/step-{job.step():08d}.pt\n", (
        shown.stderr
    )
    assert "waiting for step " in shown.stderr
    everything_is_saved(job)
    words = f"stopped on request at step {job.step()}, after a checkpoint; isoscale resume {job.directory} goes on"
    assert words in job.output()
    job.resume()
    ends_the_same(job)
    assert nothing_was_done_again(job)


@pytest.mark.parametrize("point", ["checkpoint", "checkpointed"])
def test_the_first_executor_dies_at_the_last_checkpoint(begin: Begin, ends_the_same: EndsTheSame, point: str) -> None:
    """`checkpoint`: it writes none, so whoever is first then is asked. `checkpointed`: it may not have said so."""
    job = begin(executors=2, points=[faults.at(point, executor=0)])
    job.wait_step(3)
    with job.handle() as handle:
        answer = handle.stop(wait=True)
    assert answer["outcome"] == "done"
    assert job.wait() == 130
    everything_is_saved(job)
    assert "isoscale: fault" in (job.directory / "logs" / "executor-0.log").read_text()
    job.resume()
    ends_the_same(job)
    assert nothing_was_done_again(job)


def test_a_checkpoint_that_cannot_be_written(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2)
    job.wait_step(2)
    in_the_way = job.directory / "checkpoints"
    in_the_way.write_text("a file where the directory should be")
    refused = isoscale("checkpoint", str(job.directory))
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith("isoscale: no checkpoint: ")
    assert "cannot write it (" in refused.stderr
    refused = isoscale("stop", str(job.directory))
    assert refused.returncode == 1
    (line,) = [one for one in refused.stderr.splitlines() if one.startswith("isoscale: ")]
    assert line.startswith("isoscale: not stopped: ")
    assert line.endswith("it trains on: isoscale stop --now ends it without a checkpoint")
    assert list(answers(job).values()) == ["failed", "failed"]
    job.wait_step(job.step() + 2)
    job.scale(1)  # it is still willing to change
    job.wait_members(1)
    in_the_way.unlink()
    assert isoscale("stop", str(job.directory)).returncode == 0
    everything_is_saved(job)
    job.resume()
    ends_the_same(job)
    assert nothing_was_done_again(job)


def test_at_once_says_what_is_lost(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=1)
    job.wait_step(3)
    first = isoscale("checkpoint", str(job.directory))
    assert first.stdout.startswith("checkpoint of step "), first.stderr
    saved = max(one["step"] for one in job.events("checkpoint"))
    job.wait_step(saved + 2)
    shown = isoscale("stop", "--now", str(job.directory))
    assert job.wait() == 130
    told = re.fullmatch(
        rf"stopped without a checkpoint: (steps {saved + 1} to (\d+) \(since the checkpoint of step {saved}\) "
        r"will be trained again)\n",
        shown.stdout,
    )
    assert told, shown.stdout
    assert saved + 2 <= int(told[2]) <= job.step()  # another step may have ended before its process did
    assert told[1] in job.output()
    job.resume()
    ends_the_same(job)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_of_the_coordinator_stops_after_a_checkpoint(
    begin: Begin, ends_the_same: EndsTheSame, number: int, code: int
) -> None:
    job = begin(executors=2)
    job.wait_step(3)
    job.signal_coordinator(number)
    assert job.wait() == code
    everything_is_saved(job)
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert f"isoscale: stopped by {name} at step {job.step()}, after a checkpoint; isoscale resume " in job.output()
    assert "Traceback" not in job.output()
    job.resume()
    ends_the_same(job)
    assert nothing_was_done_again(job)


def test_a_second_signal_ends_at_once(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=1, points=[faults.at("optimizer", executor=0, step=4, action="sleep", seconds=60)])
    wait_logged(job)
    job.signal_coordinator(signal.SIGINT)
    job.wait_for(lambda: "Ctrl-C again ends it at once: steps 1 to " in job.output(), "the first")
    job.signal_coordinator(signal.SIGINT)
    assert job.wait() == 130
    assert "isoscale: ended by Ctrl-C at step 4 without a checkpoint: steps 1 to 4 (nothing was saved)" in job.output()
    job.resume()
    ends_the_same(job)


def test_a_term_signal_does_not_wait_longer_than_a_notice_lasts(begin: Begin) -> None:
    job = begin(
        executors=1,
        points=[faults.at("optimizer", executor=0, step=4, action="sleep", seconds=60)],
        options=["--notice", "2"],
    )
    wait_logged(job)
    job.signal_coordinator(signal.SIGTERM)
    assert job.wait() == 143
    assert "isoscale: ended by SIGTERM at step 4 without a checkpoint" in job.output()
    assert list(answers(job).values()) == ["failed"]


def test_the_whole_job_is_told_to_go(begin: Begin, ends_the_same: EndsTheSame) -> None:
    """What a batch system does: the coordinator and all executors get the signal."""
    job = begin(executors=2)
    job.wait_step(3)
    for executor in (0, 1):
        job.notice(executor)
    job.signal_coordinator(signal.SIGTERM)
    assert job.wait() == 143
    everything_is_saved(job)
    job.resume()
    ends_the_same(job)
    assert nothing_was_done_again(job)


def test_the_coordinator_dies_when_it_has_accepted_a_stop(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2, points=[faults.at("optimizer", executor=0, step=4, action="sleep", seconds=4)])
    wait_logged(job)
    with job.handle() as handle:
        handle.stop()
    job.kill_coordinator()
    job.resume()
    ends_the_same(job)
    assert answers(job) == {1: "overtaken"}
    assert nothing_was_done_again(job)


def test_the_coordinator_dies_while_an_executor_waits_at_the_last_checkpoint(
    begin: Begin, ends_the_same: EndsTheSame
) -> None:
    # It begins to write late enough for the coordinator to be stopped by then.
    job = begin(executors=2, points=[faults.at("checkpoint", executor=0, action="sleep", seconds=3)])
    job.wait_step(3)
    with job.handle() as handle:
        handle.stop()
        job.signal_coordinator(signal.SIGSTOP)
    written = job.directory / "checkpoints"
    job.wait_for(lambda: list(written.glob(".*.tmp.json")) if written.is_dir() else None, "the checkpoint")
    job.kill_coordinator()
    job.resume()
    ends_the_same(job)
    assert answers(job) == {1: "overtaken"}
    assert nothing_was_done_again(job)


def test_a_stop_before_training_begins(nursery: Nursery, tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text("import time\ntime.sleep(600)  # with the script in hand it could begin at any time\n")
    with start(script, out=tmp_path / "run", executors=1, nursery=nursery) as job:
        job.wait_for(lambda: (job.directory / "control" / "coordinator.json").exists(), "the coordinator")
        with job.handle() as handle:
            with pytest.raises(RequestRefusedError, match="training has not begun"):
                handle.checkpoint()
            assert handle.stop(wait=True)["detail"] == "no step was trained"
        assert job.wait() == 130
        assert "isoscale: stopped on request before the first step; isoscale resume " in job.output()


def test_a_stop_while_newcomers_of_a_plan_are_waited_for(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(plan="0:1,4:2", points=[faults.at("joining", executor=1, action="sleep", seconds=10)])
    job.wait_step(4)
    with job.handle() as handle:
        assert handle.stop(wait=True)["outcome"] == "done"
    assert job.wait() == 130
    assert job.step() == 4
    everything_is_saved(job)
    job.resume()
    ends_the_same(job)


def test_a_stop_while_executors_come_and_go(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2, points=[faults.at("leaving", executor=0, action="sleep", seconds=1)])
    job.wait_step(2)
    with job.handle() as handle:
        handle.migrate(0, 1)
        wait_logged(job)
        assert handle.stop(wait=True)["outcome"] == "done"
    assert job.wait() == 130
    everything_is_saved(job)
    assert set(answers(job).values()) <= {"done", "ended"}
    job.resume()
    ends_the_same(job)
    assert nothing_was_done_again(job)


def test_the_job_ends_before_it_can_be_stopped(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=1, points=[faults.at("end", executor=0, action="sleep", seconds=10)])
    job.hurry()
    wait_logged(job)
    late = isoscale("stop", str(job.directory))
    assert late.stdout == "nothing to stop: the job finished at step 80\n", late.stderr
    ends_the_same(job)
    assert answers(job) == {1: "ended"}


def test_a_checkpoint_that_is_there_already(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(
        executors=2,
        checkpoint_every=4,
        points=[faults.at("forward", executor=0, step=5, action="sleep", seconds=60)],
    )
    job.wait_for(lambda: job.events("checkpoint"), "a checkpoint")
    wait_logged(job)
    assert isoscale("checkpoint", str(job.directory)).stdout == "checkpoint of step 4, already there\n"
    job.wait_for(lambda: time.time() - job.events("step")[-1]["t"] > 3, "a long step")
    stopped = isoscale("stop", str(job.directory)).stdout
    assert stopped == "stopped at step 4, the checkpoint of step 4 holds all of it\n"
    assert job.wait() == 130
    everything_is_saved(job)
    job.resume()
    ends_the_same(job)
    assert nothing_was_done_again(job)


def test_those_who_wait_are_told_when_the_target_is_given_up(begin: Begin) -> None:
    job = begin(executors=1, points=[faults.at("joining", executor=e) for e in range(1, 12)])
    job.wait_step(2)
    shown = isoscale("scale", "--wait", str(job.directory), "2")
    assert shown.returncode == 2
    assert shown.stderr.splitlines()[-1].startswith("isoscale: target=2: ")
    assert list(answers(job).values()) == ["given_up"]
