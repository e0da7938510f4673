"""A way to begin a job that must end like an undisturbed one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from isoscale.testing import Nursery, RunningJob, short_job_path, start
from isoscale.testing.chaos import Result, compare, result_of

#: seconds that a turn takes until the story is told; later ones take longer, so that newcomers come in time
TURN_S = 0.04


#: of a test that has failed: then it need not be said as well what it broke
FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if call.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture
def begin(request: pytest.FixtureRequest, nursery: Nursery, tmp_path: Path) -> Iterator[Callable[..., RunningJob]]:
    """`testing.start` of the short job: 4 logical workers, 80 steps; nothing of it outlives the test. At its end every
    job has kept its promises, but for those that the story names (`job.exempt`)."""
    jobs: list[RunningJob] = []

    def begin(*, turn_s: float = TURN_S, rebalance: bool = False, **options: Any) -> RunningJob:
        # Stragglers have tests of their own; on a busy machine they would come into every story.
        options = {"out": tmp_path / "run", "nursery": nursery, "lost_after_s": 5.0} | options
        if not rebalance:
            options["options"] = ["--no-rebalance", *options.get("options", [])]
        if options.get("resume") and jobs:
            options["record"] = jobs[-1].record
        job = start(short_job_path(), script_args=["4", str(turn_s), "0", "wait", "track"], **options)
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        job.close()
    if not request.node.stash.get(FAILED, False):
        for job in jobs:
            job.check_promises()


@pytest.fixture
def ends_the_same(expected: Result) -> Callable[[RunningJob], None]:
    """Digest, final.pt, every step's loss and every logged value are those of the undisturbed run."""

    def check(job: RunningJob) -> None:
        job.hurry()
        assert job.wait() == 0, job.output()
        assert compare(expected, result_of(job)) == ""

    return check
