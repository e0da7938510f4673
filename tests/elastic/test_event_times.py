"""A step's event has the time at which it was committed, not the one at which a coordinator could hear of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from isoscale.testing import RunningJob

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

Begin = Callable[..., RunningJob]
EndsTheSame = Callable[[RunningJob], None]


def intervals(job: RunningJob) -> list[tuple[float, float]]:
    """From step to step, by the log and as the executor measured it. The first of a generation is left out: an executor
    that has just come counts from its start."""
    steps: list[dict[str, Any]] = job.events("step")
    return [(two["t"] - one["t"], two["seconds"]) for one, two in pairwise(steps) if one["step"] > 1]


def agree(job: RunningJob) -> None:
    """Nearer to each other than the pause was long: on a busy machine an executor may wait between two clocks."""
    assert [pair for pair in intervals(job) if abs(pair[0] - pair[1]) > 1.2] == []


def test_a_coordinator_that_is_held_up_draws_no_pause(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2)
    job.wait_step(5)
    job.stop_coordinator()
    time.sleep(2.0)
    job.continue_coordinator()
    job.wait_for(lambda: job.events("coordinator_paused"), "it notices")
    job.wait_step(job.step() + 3)
    ends_the_same(job)
    agree(job)


def test_steps_without_a_coordinator_keep_their_times(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2)
    job.wait_step(5)
    job.kill_coordinator()
    time.sleep(2.0)
    job.resume()
    job.wait_for(lambda: len(job.events("coordinator_started")) == 2 and job.step() > 8, "another coordinator")
    ends_the_same(job)
    agree(job)
