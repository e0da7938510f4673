"""Executors that are slow: logical workers move away, or it is set aside. Every story ends with the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from isoscale.testing import Nursery, RunningJob, short_job_path, start

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

Begin = Callable[..., RunningJob]
EndsTheSame = Callable[[RunningJob], None]


def test_logical_workers_move_away_from_a_slow_executor(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2, rebalance=True)
    job.wait_step(3)
    job.make_slow(1, 5)
    found = job.wait_for(lambda: [one for one in job.events("straggler") if one["executor"] == 1], "it is found")[0]
    assert (found["shares"], found["set_aside"]) == ([3, 1], [])
    assert found["ratio"] > 2
    job.wait_for(lambda: [one for one in job.events("rescale") if one["shares"] == [3, 1]], "they move")
    ends_the_same(job)
    assert job.events("executor_lost") == []


def test_one_that_is_too_slow_for_a_single_logical_worker_is_set_aside_and_taken_back(
    nursery: Nursery, tmp_path: Path
) -> None:
    script, epochs = short_job_path(), "14"
    with start(script, out=tmp_path / "alone", executors=1, nursery=nursery, script_args=[epochs, "0"]) as alone:
        options = {"spares": 1, "nursery": nursery, "script_args": [epochs, "0.06"]}
        with start(script, out=tmp_path / "run", executors=3, **options) as job:  # type: ignore[arg-type]
            job.wait_step(3)
            slow = job.members()[-1]
            job.make_slow(slow, 10)
            job.wait_for(lambda: [one for one in job.events("straggler") if one["set_aside"] == [slow]], "it is found")
            job.wait_for(lambda: slow in [one["executor"] for one in job.events("executor_left")], "it leaves")
            assert slow not in job.members()
            with job.handle() as handle:
                status = handle.status()
                assert (status["target"], [one["executor"] for one in status["set_aside"]]) == ("cpu*3", [slow])
                asked = handle.scale_to(3)
                assert handle.wait_answer(asked["request"], 120)["outcome"] == "done"
                assert handle.status()["set_aside"] == []
            assert len(job.members()) == 3
            job.hurry()
            assert job.wait() == 0, job.output()
            job.check_promises()
        assert alone.wait() == 0, alone.output()
    digests = [json.loads((tmp_path / run / "summary.json").read_text())["digest"] for run in ("alone", "run")]
    assert digests[0] == digests[1]
    assert job.events("executor_lost") == []
