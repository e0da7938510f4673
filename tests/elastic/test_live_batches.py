"""Batch sizes that change while a job trains, told with real processes: what was recorded, trained again, is the same.

Every story ends with `run --like` on one executor, which must come to the same bits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isoscale.errors import IsoscaleError
from isoscale.testing import Nursery, RunningJob, faults, short_job_path, start
from isoscale.testing.chaos import compare, repeated, result_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

LIVE = Path(__file__).parents[1] / "cli" / "scripts" / "live_batch.py"
Begin = Callable[..., RunningJob]


@pytest.fixture
def begin_live(nursery: Nursery, tmp_path: Path) -> Iterator[Begin]:
    jobs: list[RunningJob] = []

    def begin(*words: str, turn_s: float = 0.04, **options: Any) -> RunningJob:
        arguments = {"script_args": ["4", str(turn_s), "0", "wait", "live", *words]}
        options = {"out": tmp_path / "run", "nursery": nursery, "lost_after_s": 5.0, **arguments} | options
        job = start(options.pop("script", short_job_path()), **options)
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        job.close()


def ends_like_its_record(job: RunningJob, nursery: Nursery) -> list[tuple[int, int]]:
    """Done, as a run with the recorded sizes is; the changes."""
    job.hurry()
    assert job.wait() == 0, job.output()
    assert compare(repeated(job, nursery), result_of(job)) == ""
    job.check_promises()
    summary = json.loads((job.directory / "summary.json").read_text())
    changes = [(entry["step"], entry["size"]) for entry in summary["batch"]["plan"]]
    events = {one["step"]: one for one in job.events("batch")}
    assert changes == [(step, events[step]["to"]) for step in sorted(events)]
    for before, after in itertools.pairwise([{"to": 8}, *(events[step] for step in sorted(events))]):
        assert after["from"] == before["to"] != after["to"]
    return changes


def test_a_size_alone_then_with_devices_in_one_switch(begin_live: Begin, nursery: Nursery) -> None:
    job = begin_live(executors=2)
    job.wait_step(3)
    with job.handle() as handle:
        asked = handle.scale_to(batch=16)
        assert handle.wait_answer(asked["request"], 120)["outcome"] == "done"
        status = handle.status()["batch"]
        assert status is not None
        assert (status["size"], status["sizes"], status["rule"]) == (16, [4, 8, 16], "sqrt")
        both = handle.scale_to(3, batch=4)
        assert handle.wait_answer(both["request"], 120)["outcome"] == "done"
    first, second = ends_like_its_record(job, nursery)
    assert (first[1], second[1]) == (16, 4)
    (rescale,) = job.events("rescale")
    assert rescale["step"] == second[0]  # one switch for both
    assert (rescale["from"], rescale["to"]) == (2, 3)


def test_the_second_of_two_requests_counts_and_mistakes_are_refused(begin_live: Begin, nursery: Nursery) -> None:
    job = begin_live(executors=2, turn_s=0.15)
    job.wait_step(2)
    with job.handle() as handle:
        for size, said in ((5, "the script declares 4, 8, 16"), (0, "too small"), (10**15, "too large")):
            with pytest.raises(IsoscaleError, match=said):
                handle.scale_to(batch=size)
        older = handle.scale_to(batch=16)["request"]
        newer = handle.scale_to(batch=4)["request"]
        assert handle.wait_answer(newer, 120)["outcome"] == "done"
        assert handle.wait_answer(older, 120)["outcome"] in ("overtaken", "done")
        same = handle.scale_to(batch=4)["request"]  # it has it
        assert handle.wait_answer(same, 120)["outcome"] == "done"
    changes = ends_like_its_record(job, nursery)
    assert changes[-1][1] == 4
    assert len(changes) <= 2


def test_sizes_that_are_asked_for_during_a_rescale(begin_live: Begin, nursery: Nursery) -> None:
    """While a newcomer lands, and while an executor hands over what it had."""
    points = [
        faults.at("landing", executor=1, action="sleep", seconds=1.0),
        faults.at("leaving", executor=1, action="sleep", seconds=1.0),
    ]
    job = begin_live(executors=1, points=points)
    job.wait_step(2)
    with job.handle() as handle:
        for point, target, size in (("landing", 2, 16), ("leaving", 1, 4)):
            devices = handle.scale_to(target)["request"]
            job.wait_for(lambda point=point: f"point={point}" in logs(job), f"a rescale, at its point {point}")
            assert point == "leaving" or not job.events("rescale")
            batch = handle.scale_to(batch=size)["request"]
            for asked in (devices, batch):
                assert handle.wait_answer(asked, 120)["outcome"] == "done"
    assert [size for _, size in ends_like_its_record(job, nursery)] == [16, 4]
    assert [(one["from"], one["to"]) for one in job.events("rescale")] == [(1, 2), (2, 1)]


def logs(job: RunningJob) -> str:
    return "".join(path.read_text() for path in (job.directory / "logs").iterdir())


def test_an_executor_dies_while_a_size_changes_and_newcomers_come(begin_live: Begin, nursery: Nursery) -> None:
    points = [faults.at("seal", executor=1, step=7), faults.at("sealed", executor=2, step=12)]
    job = begin_live(executors=3, points=points)
    sizes = itertools.cycle([16, 4, 8])
    for step in range(4, 16, 2):
        job.wait_step(step)
        job.try_to(lambda handle: handle.scale_to(batch=next(sizes)))
    changes = ends_like_its_record(job, nursery)
    assert len(changes) >= 2
    assert len(job.events("executor_lost")) == 2


def test_all_die_and_the_record_is_trained_again_from_a_checkpoint(begin_live: Begin, nursery: Nursery) -> None:
    job = begin_live("stream", executors=2, checkpoint_every=10)
    job.wait_step(12)
    with job.handle() as handle:
        assert handle.wait_answer(handle.scale_to(batch=16)["request"], 120)["outcome"] == "done"
    job.wait_step(job.step() + 3)
    made = job.events("batch")
    job.kill_all()
    job.resume()
    job.wait_for(lambda: job.events("restart"), "a restart")
    changes = ends_like_its_record(job, nursery)
    assert changes[0] == (made[0]["step"], 16)
    assert job.events("restart")[0]["step"] == 10


def test_the_coordinator_dies_with_an_open_request(begin_live: Begin, nursery: Nursery) -> None:
    job = begin_live(executors=2, turn_s=0.3)
    job.wait_step(2)
    with job.handle() as handle:
        asked = handle.scale_to(batch=16)["request"]
    job.kill_coordinator()
    job.resume()
    job.wait_for(lambda: [one for one in job.events("answered") if one["id"] == asked], "an answer")
    changes = ends_like_its_record(job, nursery)
    assert [size for _, size in changes] == [16]


def test_a_rule_that_raises_somewhere_changes_nothing_anywhere(
    begin_live: Begin, nursery: Nursery, tmp_path: Path
) -> None:
    arguments = ["--rule", "own", "--fail-at", "8", "--epochs", "4", "--step-s", "0.05"]
    job = begin_live(script=LIVE, executors=2, script_args=arguments)
    job.wait_step(3)
    with job.handle() as handle:
        failed = handle.wait_answer(handle.scale_to(batch=8)["request"], 120)
        assert failed["outcome"] == "failed"
        assert "RuntimeError: no rule for 8" in failed["detail"]
        assert handle.wait_answer(handle.scale_to(batch=2)["request"], 120)["outcome"] == "done"
    assert job.wait() == 0, job.output()
    assert [one["to"] for one in job.events("batch")] == [2]
    assert compare(repeated(job, nursery), result_of(job)) == ""


def test_a_plan_gives_the_same_bits_on_any_executors(begin_live: Begin, nursery: Nursery, tmp_path: Path) -> None:
    plan = ["--batch-plan", "0:4,30:16,43:8", "--no-rebalance"]
    jobs = {"1": {"executors": 1}, "4": {"executors": 4}, "moving": {"plan": "0:3,20:1,33:2"}}
    found = {}
    for name, where in jobs.items():
        with begin_live(out=tmp_path / name, options=plan, **where) as job:
            job.hurry()
            assert job.wait() == 0, job.output()
            found[name] = result_of(job)
            assert [(one["step"], one["to"]) for one in job.events("batch")] == [(0, 4), (30, 16), (43, 8)]
    assert compare(found["1"], found["4"]) == ""
    assert compare(found["1"], found["moving"]) == ""
