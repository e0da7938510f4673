"""All executors of a job are replaced at once, or told to go at once: the state goes from the old ones to the new."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isoscale.testing import RunningJob

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

Begin = Callable[..., RunningJob]
EndsTheSame = Callable[[RunningJob], None]


def until_replaced(job: RunningJob, old: list[int], count: int) -> list[int]:
    """Until so many executors train, and none of the old ones does."""

    def there() -> list[int] | None:
        members = job.members()
        return members if len(members) == count and not set(members) & set(old) else None

    return job.wait_for(there, f"{count} others")


def committed(job: RunningJob) -> list[int]:
    return [one["step"] for one in job.events("step")]


def test_all_are_replaced(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=3)
    job.wait_step(2)
    with job.handle() as handle:
        handle.migrate(0, 1, 2)
    until_replaced(job, [0, 1, 2], 3)
    ends_the_same(job)
    assert job.events("executor_lost") == []
    assert committed(job) == list(range(1, 81)), "no step was done again"
