"""What the main executor owns, while main executors come and go. Every story of this directory compares curves, too."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from isoscale.testing import RunningJob
from isoscale.testing.chaos import Result, result_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


def test_a_tracker_outlives_kills_moves_and_a_stop(begin: Callable[..., RunningJob], expected: Result) -> None:
    job = begin(executors=2)
    job.wait_step(3)
    job.kill(job.members()[0])
    job.wait_for(lambda: len(job.members()) == 2 and job.members()[0] != 0, "a replacement")
    with job.handle() as handle:
        handle.migrate(job.members()[0])
        handle.wait_answer(handle.migrate(job.members()[0])["request"], 120)
        handle.stop(wait=True)
    assert job.wait() == 130
    job.resume()
    job.hurry()
    assert job.wait() == 0, job.output()
    assert len(expected.curves) == 80 + 4 * 3
    assert result_of(job).curves == expected.curves
    files = sorted((job.directory / "curves").glob("*.jsonl"), key=lambda path: path.name.split("-")[1])
    assert len(files) >= 4
    last_lines = [path.read_text().splitlines()[-1] for path in files]
    assert [json.loads(line) == {"closed": True} for line in last_lines] == [False, *[True] * (len(files) - 1)]
