"""What may happen to a job while it trains, told with real processes. Every story ends with the same bits."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from isoscale.errors import IsoscaleError
from isoscale.testing import Nursery, RunningJob, faults
from isoscale.testing.chaos import DATA, Result, compare, result_of, run_story, story_of, undisturbed

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

Begin = Callable[..., RunningJob]
EndsTheSame = Callable[[RunningJob], None]


def isoscale(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from isoscale.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


def reasons(job: RunningJob, event: str) -> dict[int, str]:
    return {one["executor"]: one["reason"] for one in job.events(event)}


# ---- scaling ----


def test_out_in_and_elsewhere_while_it_trains(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=1)
    job.wait_step(2)
    job.scale(3)
    assert job.wait_members(3)[0] == 0
    job.scale("-1")
    before = job.wait_members(2)
    with job.handle() as handle:
        handle.migrate(before[0])
    job.wait_for(lambda: before[0] not in job.members() and len(job.members()) == 2, "migration")
    ends_the_same(job)
    assert job.events("executor_lost") == []
    assert [(one["from"], one["to"]) for one in job.events("rescale")] == [(1, 3), (3, 2), (2, 2)]


def test_some_are_given_up_by_name_and_others_by_number(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=4)
    job.wait_step(2)
    with job.handle() as handle:
        asked = handle.scale_in(executors=(0, 2))
        assert handle.wait_answer(asked["request"], 120)["outcome"] == "done"
        assert job.members() == [1, 3]
        with pytest.raises(IsoscaleError, match="is not there"):
            handle.scale_in(executors=(0,))
        asked = handle.scale_in()
        assert handle.wait_answer(asked["request"], 120)["outcome"] == "done"
        assert job.members() == [1]
        with pytest.raises(IsoscaleError, match="0 executors"):
            handle.scale_in()
    ends_the_same(job)
    assert job.events("executor_lost") == []
    assert [(one["from"], one["to"]) for one in job.events("rescale")] == [(4, 2), (2, 1)]


def test_a_plan_is_kept_to_the_step(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(plan="0:1,8:3,20:2,33:4", turn_s=0)
    ends_the_same(job)
    assert [(one["step"], one["from"], one["to"]) for one in job.events("rescale")] == [
        (8, 1, 3),
        (20, 3, 2),
        (33, 2, 4),
    ]
    executors = {one["step"]: one["executors"] for one in job.events("step")}
    assert [executors[step] for step in (1, 8, 9, 20, 21, 33, 34, 80)] == [1, 1, 3, 3, 2, 2, 4, 4]


def test_a_notice_hands_over_and_nothing_is_lost(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2)
    faults.play(job, [faults.notice(executor=0, step=3)])
    job.wait_for(lambda: 0 in reasons(job, "executor_left"), "executor 0 leaves")
    ends_the_same(job)
    assert job.events("executor_lost") == []
    assert job.events("notice")[0]["executor"] == 0


def test_many_requests_while_executors_die_end_in_the_last_target(begin: Begin, ends_the_same: EndsTheSame) -> None:
    draw = random.Random(3)
    job = begin(executors=2, spares=2)
    job.wait_step(2)
    with job.handle() as handle:
        for number in range(20):
            handle.scale_to(draw.randint(1, 4))
            if number % 8 == 4:
                job.kill(draw.choice(job.members()))
            time.sleep(0.03)
        handle.scale_to(3)
        status = handle.wait_for(
            lambda now: now["state"] == "training" and _num_training(now) == 3 and not now["pending"], 240
        )
    assert status["target"].count("cpu") == 1
    assert status["refused"] == ""
    ends_the_same(job)


def _num_training(status: dict[str, list[dict[str, object]]]) -> int:
    return sum(one["logical_workers"] is not None for one in status["executors"])


def test_an_executor_joins_from_another_directory(begin: Begin, ends_the_same: EndsTheSame, tmp_path: Path) -> None:
    job = begin(executors=1)
    job.wait_step(1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    address = json.loads((job.directory / "control" / "coordinator.json").read_text())["url"]
    command = [sys.executable, "-c", "from isoscale.cli import main; main()", "executor", "--join", address]
    command += ["--token-file", os.path.relpath(job.directory / "control" / "token", elsewhere)]
    with (
        (tmp_path / "joining.log").open("wb") as log,
        subprocess.Popen(command, cwd=elsewhere, stdout=log, stderr=log) as joining,
    ):
        try:
            job.wait_for(lambda: joining.pid in job.pids().values(), "it joins")
            (executor,) = [e for e, pid in job.pids().items() if pid == joining.pid]
            job.scale(2)
            assert executor in job.wait_members(2)
            ends_the_same(job)
            assert joining.wait(60) == 0
        finally:
            joining.kill()


# ---- executors that die ----


def test_the_first_one_dies(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2, spares=1)
    job.wait_step(5)
    first = job.members()[0]
    assert job.kill(first)
    job.wait_for(lambda: first in reasons(job, "executor_lost") and len(job.members()) == 2, "its replacement")
    ends_the_same(job)


def test_several_die_at_once(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=4)
    job.wait_step(5)
    for executor in (0, 1, 3):
        assert job.kill(executor)
    job.wait_for(lambda: len(reasons(job, "executor_lost")) == 3, "three losses")
    ends_the_same(job)
    steps = [one["step"] for one in job.events("step")]
    assert steps == list(range(1, 81)), "no step is lost or applied twice"


def test_all_die_and_their_successors_begin_at_the_checkpoint(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2, spares=1, checkpoint_every=3)
    job.wait_for(lambda: job.events("checkpoint"), "a checkpoint")
    job.wait_step(7)
    for executor in job.members():
        assert job.kill(executor)
    job.wait_for(
        lambda: [one for one in job.events("warning") if "going on from the checkpoint" in one["message"]], "it"
    )
    ends_the_same(job)


# Where an executor is named by its id there are no spares: one of them may be set up first, and train in its place.
#: two deaths a run: of executor 1 at the first point in step 7, and of executor 2 at the second in step 23
POINTS = [
    ("forward", "backward"),
    ("exchange", "contexts"),
    ("seal", "sealed"),
    ("optimizer", "forward"),
]


@pytest.mark.parametrize("points", POINTS, ids=lambda points: " and ".join(points))
def test_death_in_a_step(begin: Begin, ends_the_same: EndsTheSame, points: tuple[str, str]) -> None:
    deaths = [faults.at(points[0], executor=1, step=7), faults.at(points[1], executor=2, step=23)]
    job = begin(executors=3, points=deaths, turn_s=0)
    ends_the_same(job)
    assert {1, 2} <= reasons(job, "executor_lost").keys()


@pytest.mark.parametrize(
    ("point", "executor", "step"),
    [
        ("evaluation", 1, 20),
        ("end", 1, None),
        ("ended", 1, None),
        ("saving", 0, None),
        # The first one: a later one is left out while the one before it is still being written.
        ("checkpoint", 0, 4),
        ("checkpointed", 0, 4),
    ],
)
def test_death_between_steps(
    begin: Begin, ends_the_same: EndsTheSame, point: str, executor: int, step: int | None
) -> None:
    job = begin(executors=2, points=[faults.at(point, executor=executor, step=step)], checkpoint_every=4, turn_s=0)
    ends_the_same(job)
    fault = f"point={point}"
    assert fault in (job.directory / "logs" / f"executor-{executor}.log").read_text(), "the fault never came"


@pytest.mark.parametrize("point", ["forming", "switch", "handed"])
def test_death_of_one_who_gives_the_state_to_a_newcomer(begin: Begin, ends_the_same: EndsTheSame, point: str) -> None:
    job = begin(executors=1, checkpoint_every=2, points=[faults.at(point, executor=0)])
    job.wait_for(lambda: job.events("checkpoint"), "a checkpoint")
    job.scale(2)
    job.wait_for(lambda: 0 in reasons(job, "executor_lost"), "its death")
    ends_the_same(job)


@pytest.mark.parametrize("point", ["joining", "landing"])
def test_death_of_a_newcomer(begin: Begin, ends_the_same: EndsTheSame, point: str) -> None:
    job = begin(executors=2, points=[faults.at(point, executor=2)])
    job.wait_step(2)
    job.scale(3)
    job.wait_for(lambda: 2 in reasons(job, "executor_lost"), "its death")
    assert 2 not in job.wait_members(3), "another one has come in its place"
    ends_the_same(job)


def test_death_of_one_who_leaves(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=3, points=[faults.at("leaving", executor=2)])
    job.wait_step(2)
    job.scale(2)
    job.wait_for(lambda: 2 not in job.pids(), "its death")
    ends_the_same(job)


@pytest.mark.parametrize("point", ["recovering", "agreeing"])
def test_death_while_others_recover_from_a_death(begin: Begin, ends_the_same: EndsTheSame, point: str) -> None:
    deaths = [faults.at("exchange", executor=2, step=9), faults.at(point, executor=1)]
    job = begin(executors=3, points=deaths, turn_s=0)
    ends_the_same(job)
    assert {1, 2} <= reasons(job, "executor_lost").keys()


def test_one_saw_the_seal_and_another_did_not(begin: Begin, ends_the_same: EndsTheSame) -> None:
    """Executor 1 dies when it has left the seal, 0 has left it too, 2 does not know: it takes the step as sealed."""
    job = begin(
        executors=3,
        points=[
            faults.at("sealed", executor=1, step=9),
            faults.at("seal", executor=2, step=9, action="break"),
        ],
        turn_s=0,
    )
    ends_the_same(job)
    assert 1 in reasons(job, "executor_lost")


def test_a_stopped_executor_is_killed_before_others_go_on(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2, lost_after_s=2.0)
    job.wait_step(3)
    pid = job.pids()[1]
    job.stop(1)
    job.wait_for(lambda: 1 in reasons(job, "executor_lost"), "it is missed")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)  # it will not wake
    assert reasons(job, "executor_lost")[1] == "stopped by a signal"
    ends_the_same(job)


# ---- coordinators that die ----


def test_training_goes_on_without_a_coordinator(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2)
    job.wait_step(3)
    before = job.pids()
    job.kill_coordinator()
    time.sleep(1)
    job.resume()
    job.wait_for(lambda: len(job.events("coordinator_started")) == 2, "another coordinator")
    assert before.items() <= job.pids().items(), "its executors are the same processes"
    ends_the_same(job)
    assert job.events("executor_lost") == []


@pytest.mark.parametrize("witnesses", ["alive", "killed", "killed beside a spare"])
def test_the_job_ends_before_another_coordinator_comes(
    begin: Begin, ends_the_same: EndsTheSame, expected: Result, witnesses: str
) -> None:
    job = begin(executors=2, turn_s=0.02, spares=int("spare" in witnesses))
    job.wait_step(3)
    if "spare" in witnesses:
        job.wait_for(lambda: len(job.pids()) == 3, "the spare")
    job.kill_coordinator()
    job.hurry()
    result = job.directory / "control" / "result.json"
    deadline = time.monotonic() + 200
    while not result.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert json.loads(result.read_text())["digest"] == expected.digest
    if witnesses != "alive":
        # What no coordinator has heard of lies beside the result.
        for executor in (0, 1):
            job.kill(executor)
    job.resume()
    ends_the_same(job)
    assert job.events("restart") == [], "nothing is done again"


def test_coordinator_and_executor_die_together(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=3)
    faults.play(job, [faults.kill_coordinator(step=4, down_s=0.5, meanwhile=[faults.kill(executor=0, after_s=0.08)])])
    job.wait_for(lambda: 0 not in job.members() and len(job.events("coordinator_started")) == 2, "they recover")
    ends_the_same(job)


def test_a_newcomer_tells_of_a_step_that_nobody_else_can_tell_of(begin: Begin, ends_the_same: EndsTheSame) -> None:
    """The only executor seals a step that no coordinator hears of, hands the state over, and dies."""
    job = begin(executors=1, turn_s=0.5, points=[faults.at("handed", executor=0)])
    job.wait_step(1)
    job.scale(2)
    with job.handle() as handle:
        job.wait_for(lambda: (handle.status().get("pending") or "").startswith("generation 2"), "the group forms")
    time.sleep(0.3)  # the order to switch is out, and the step takes two seconds
    job.stop_coordinator()
    with contextlib.suppress(TimeoutError, AssertionError):
        job.wait_for(lambda: 0 not in job.pids(), "executor 0 dies", 20)
    job.kill_coordinator()
    job.resume()
    ends_the_same(job)


def test_the_coordinator_dies_when_a_rescale_is_half_agreed(begin: Begin, ends_the_same: EndsTheSame) -> None:
    """The newcomer has formed its group and one member has not, when the coordinator dies."""
    job = begin(executors=2, points=[faults.at("forming", executor=1, action="sleep", seconds=1.5)])
    job.wait_step(2)
    job.scale(3)
    log = job.directory / "logs" / "executor-1.log"
    job.wait_for(lambda: "point=forming" in log.read_text(), "the group forms")
    job.kill_coordinator()
    time.sleep(0.3)
    job.resume()
    job.wait_members(3)
    ends_the_same(job)


def test_two_coordinators_cannot_both_act(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=1)
    job.wait_step(1)
    second = isoscale("resume", str(job.directory))
    assert second.returncode == 2
    assert "another coordinator runs this job" in second.stderr
    ends_the_same(job)


def test_everything_dies_and_other_executors_go_on(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2, checkpoint_every=5)
    job.wait_for(lambda: job.events("checkpoint"), "a checkpoint")
    job.wait_step(7)
    job.kill_all()
    again = begin(executors=3, checkpoint_every=5, resume=True)
    again.wait_for(lambda: again.events("generation")[-1]["members"], "a generation")
    ends_the_same(again)


# ---- scripts that fail ----

CRASHING = """
import torch, isoscale
def train(job):
    model = job.model(torch.nn.Linear(2, 1))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(torch.utils.data.TensorDataset(torch.ones(64, 2)), batch_size=2)
    rank = job.keep_per_worker("rank", lambda rank: {"rank": rank})
    for step in loader:
        for (x,) in step:
            if job.step == 5 and rank["rank"] == 2:
                raise ZeroDivisionError("of the user's making")
            model(x).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    isoscale.run(train)
"""


def test_a_crash_of_the_script_is_reported_and_its_last_state_kept(nursery: object, tmp_path: Path) -> None:
    from isoscale.testing import start

    script = tmp_path / "crashing.py"
    script.write_text(CRASHING)
    with start(script, out=tmp_path / "run", executors=2, nursery=nursery) as job:  # type: ignore[arg-type]
        assert job.wait() == 1
        assert "ZeroDivisionError: of the user's making" in job.output()
        assert "logical worker 2" in job.output() or "logical rank 2" in job.output()
        (failed,) = job.events("failed")
        assert failed["step"] == 5
        assert [one["step"] for one in job.events("checkpoint")] == [5]


# ---- chance ----


@pytest.mark.parametrize("seed", [3, 12])
def test_chance(nursery: object, expected: Result, tmp_path: Path, seed: int) -> None:
    outcome = run_story(story_of(seed), expected, tmp_path / "run", nursery)  # type: ignore[arg-type]
    assert (outcome.verdict, outcome.problem) == ("equal", ""), outcome.story


@pytest.mark.parametrize("data", ["processes", "stream", "stream-processes"])
def test_chance_and_other_ways_to_read(nursery: Nursery, tmp_path: Path, data: str) -> None:
    """Loader processes die too; the job itself sees to it that each sample of each epoch is used once."""
    expected = undisturbed(tmp_path / "undisturbed", nursery, target=DATA[data])
    outcome = run_story(story_of(3, DATA[data]), expected, tmp_path / "run", nursery, DATA[data])
    assert (outcome.verdict, outcome.problem) == ("equal", ""), outcome.story


def test_a_changed_bit_would_be_seen(begin: Begin, expected: Result) -> None:
    """Another seed is another run: the comparison above can fail."""
    job = begin(executors=1, turn_s=0, options=["--seed", "1"])
    assert job.wait() == 0
    assert compare(expected, result_of(job)).startswith("digest")


def test_a_request_for_too_many_is_refused(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=1)
    job.wait_step(1)
    with pytest.raises(IsoscaleError, match="5 executors for 4 logical workers"):
        job.scale(5)
    ends_the_same(job)
