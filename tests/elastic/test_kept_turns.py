"""An executor dies in an open step: a turn of a survivor's that was over by then is not run again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from isoscale.testing import Nursery, RunningJob, faults, start
from isoscale.testing.chaos import Result, compare, result_of
from isoscale.types import Order

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

#: in which step somebody dies: the first one with the final buckets, and one in which BatchNorm's statistics are old
STEP = 5


def run(out: Path, nursery: Nursery, order: Order, words: tuple[str, ...], **options: Any) -> RunningJob:
    script = Path(__file__).with_name("turns_job.py")
    command = ["--order", order, "--no-rebalance"]
    with start(script, out=out, options=command, script_args=words, nursery=nursery, **options) as job:
        assert job.wait() == 0, job.output()
    return job


@pytest.fixture(scope="module")
def undisturbed(
    nursery: Nursery, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, Order, tuple[str, ...]], Result]:
    @cache
    def result(workers: int, order: Order, words: tuple[str, ...]) -> Result:
        out = tmp_path_factory.mktemp("undisturbed") / "run"
        return result_of(run(out, nursery, order, words, workers=workers, executors=1))

    return result


def turns_of(job: RunningJob) -> dict[int, list[int]]:
    """By executor, the logical ranks whose turns ran there in that step, in order."""
    ran = defaultdict(list)
    for path in (job.directory / "turns").iterdir():
        for line in path.read_text().splitlines():
            step, rank = map(int, line.split())
            if step == STEP:
                ran[int(path.name)].append(rank)
    return ran


@pytest.mark.parametrize(
    ("workers", "executors", "victim", "survivors"),
    [
        # What was kept is the first turn of the next attempt, or the last one; with gloo's own ring before it.
        (2, 2, 1, {0: [[0, 1]]}),
        (2, 2, 0, {1: [[1, 0]]}),
        # Two turns each: of the first one nothing is left, unless the loss was seen before the second began.
        (4, 2, 1, {0: [[0, 1, 0, 2, 3], [0, 1, 2, 3]]}),
        # The logical worker of executor 1 moves, and what it had done with it.
        (4, 3, 0, {1: [[2, 0, 1]], 2: [[3, 2]]}),
    ],
)
@pytest.mark.parametrize(
    ("order", "words", "point"),
    [("ddp", (), "exchange"), ("tree", ("unused",), "exchange"), ("ddp", ("unused",), "forward")],
)
def test_a_turn_that_was_over_is_not_run_again(
    undisturbed: Callable[..., Result],
    nursery: Nursery,
    tmp_path: Path,
    order: Order,
    words: tuple[str, ...],
    point: str,
    workers: int,
    executors: int,
    victim: int,
    survivors: dict[int, list[list[int]]],
) -> None:
    deaths = [faults.at(point, executor=victim, step=STEP)]
    job = run(
        tmp_path / "run", nursery, order, words, workers=workers, executors=executors, points=deaths, lost_after_s=5.0
    )
    assert [one["executor"] for one in job.events("executor_lost")] == [victim]
    assert compare(undisturbed(workers, order, words), result_of(job)) == ""
    ran = turns_of(job)
    for executor, possible in survivors.items():
        assert ran[executor] in possible, (executor, ran)
