"""Trials that fail: drawn after the study's table, read from a trace, retried by class, counted in the figures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from isoscale.analysis.failures import CLASSES as KNOWN
from isoscale.analysis.failures import should_retry
from isoscale.errors import UserError
from isoscale.sim.costs import parse_costs
from isoscale.sim.engine import Options
from isoscale.sim.failing import CLASSES, add_failures
from isoscale.sim.result import details
from isoscale.sim.run import Experiment
from isoscale.sim.synthetic import PhillyLike, generate
from isoscale.sim.traces.own import read_own, write_own
from isoscale.sim.traces.record import TraceJob
from tests.unit.sim.worlds_of_one import Scripted, first_fit

JOBS = generate(PhillyLike(jobs=2000, days=1, seed=3, failing=0.2))


def test_classes_are_those_that_retries_know() -> None:
    known = {one.name: one for one in KNOWN}
    for row in CLASSES[:-1]:
        assert row.name in known
        if row.lasts:
            assert known[row.name].retries == 0, f"{row.name}: no retry cures it"
    assert sum(sum(row.trials) for row in CLASSES) == 39_776 - 4, "all of the table but two classes of 3 and 1 trials"


def test_draws_follow_the_table_and_stay_apart() -> None:
    failing = [job for job in JOBS if job.failures]
    assert 0.17 < len(failing) / len(JOBS) < 0.23
    first = Counter(job.failures[0][1] for job in failing)
    assert first.most_common(1)[0][0] in ("incorrect inputs", "CPU out of memory")
    assert all(0 < share < 1 for job in failing for share, _ in job.failures)
    plain = generate(PhillyLike(jobs=2000, days=1, seed=3))
    assert [(job.name, job.submit_s, job.duration_s) for job in JOBS] == [
        (job.name, job.submit_s, job.duration_s) for job in plain
    ]
    more = add_failures(plain, 0.4, 3)
    assert all(job.failures == many.failures for job, many in zip(JOBS, more, strict=True) if job.failures)


def test_a_trace_says_when_trials_fail(tmp_path: Path) -> None:
    job = TraceJob(name="a", submit_s=0.0, devices=1, duration_s=100.0, failures=((0.25, "CUDA failure"), (0.5, "x")))
    write_own(tmp_path / "t.csv", [job])
    assert list(read_own(tmp_path / "t.csv")) == [job]
    for wrong in ("half=x", "0.5", "1=x", "0.5=x|0.2=y", "0.5="):
        (tmp_path / "w.csv").write_text(f"name,submit_s,devices,duration_s,failures\na,0,1,100,{wrong}\n")
        with pytest.raises(UserError) as caught:
            list(read_own(tmp_path / "w.csv"))
        assert caught.value.field.endswith("w.csv:2 failures")


def test_retries_by_class_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "name,submit_s,devices,duration_s,failures\n"
        "healthy,0,1,100,\n"
        "unlucky,0,1,100,0.5=GPU ECC error|0.75=GPU ECC error\n"
        "hopeless,0,1,100,0.25=syntax error|0.25=syntax error|0.25=syntax error\n"
    )

    def run(retry):  # type: ignore[no-untyped-def]
        experiment = Experiment(
            trace=str(path), cluster="T4*3", options=Options(costs=parse_costs("free:resume_s=10"), retry=retry)
        )
        outcome = experiment.simulate(Scripted(first_fit), experiment.jobs(0), 0)
        return outcome.finished_s, details(outcome)

    finished, found = run(should_retry)
    assert (found.retries, found.jobs_failed, found.jobs_unfinished) == (2, 1, 0)
    assert found.failures == {"GPU ECC error": [2, 2, 0], "syntax error": [1, 0, 1]}
    assert finished[:2] == pytest.approx([100.0, 120.0])
    assert found.failed_device_h * 3600 == pytest.approx(75 + 10 + 25)

    _, never = run(None)
    assert (never.retries, never.jobs_failed) == (0, 2)
    _, blind = run(lambda error, times: times <= 2)
    assert blind.failures == {"syntax error": [3, 2, 1], "GPU ECC error": [2, 2, 0]}
    assert blind.failed_device_h > found.failed_device_h
