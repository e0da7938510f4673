"""All executors of a job are replaced at once, or told to go at once: the state goes from the old ones to the new."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from isoscale.protocol import messages as m
from isoscale.testing import RunningJob, faults

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

Begin = Callable[..., RunningJob]
EndsTheSame = Callable[[RunningJob], None]


def replace_all(job: RunningJob, target: str = "") -> int:
    """Ask that none of the present executors stays; the id of the request."""
    with job.handle() as handle:
        return int(handle._ask(m.Scale(target=target, away=tuple(job.members())))["request"])


def until_replaced(job: RunningJob, old: list[int], count: int) -> None:
    """Until so many executors train, and none of the old ones does."""
    job.wait_for(lambda: len(job.members()) == count and not set(job.members()) & set(old), f"{count} others")


def nothing_was_done_again(job: RunningJob) -> bool:
    return [one["step"] for one in job.events("step")] == list(range(1, 81))


def outcomes(job: RunningJob) -> dict[int, str]:
    return {one["id"]: one["outcome"] for one in job.events("answered")}


def test_all_are_replaced(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=3)
    job.wait_step(2)
    with job.handle() as handle:
        answer = handle.wait_answer(handle.migrate(0, 1, 2)["request"], 240)
    assert answer["outcome"] == "done"
    assert not set(job.members()) & {0, 1, 2}
    ends_the_same(job)
    assert job.events("executor_lost") == []
    assert nothing_was_done_again(job)


def test_all_are_replaced_by_more(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2)
    job.wait_step(2)
    request = replace_all(job, "4")
    until_replaced(job, [0, 1], 4)
    ends_the_same(job)
    assert job.events("executor_lost") == []
    assert outcomes(job) == {request: "done"}
    assert nothing_was_done_again(job)


def test_all_are_told_to_go_and_others_come(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2)
    job.wait_step(3)
    for executor in (0, 1):
        job.notice(executor)
    until_replaced(job, [0, 1], 2)
    ends_the_same(job)
    assert {one["executor"] for one in job.events("notice")} == {0, 1}
    assert job.events("executor_lost") == []
    (saved, *_) = job.events("checkpoint")
    assert saved["path"] != "final.pt", "in case that the notice was shorter than it should be"
    assert nothing_was_done_again(job)


def test_all_are_told_to_go_and_nobody_comes_in_time(begin: Begin, ends_the_same: EndsTheSame) -> None:
    late = [faults.at("forming", executor=newcomer, action="sleep", seconds=30) for newcomer in (2, 3)]
    job = begin(executors=2, options=["--notice", "1"], points=late)
    job.wait_step(3)
    for executor in (0, 1):
        job.notice(executor)
    assert job.wait() == 130
    (stopped,) = job.events("stopped")
    assert stopped["saved"] == stopped["step"] == job.step(), "no committed step is lost"
    words = f"stopped: all executors were told to go (at step {job.step()}, after a checkpoint); isoscale resume "
    assert words in job.output()
    job.resume()
    ends_the_same(job)
    assert nothing_was_done_again(job)


# `forming` and `leaving` are before, `handover` and `handed` within, when some newcomers have the state and some not.
@pytest.mark.parametrize("point", ["forming", "formed", "switch", "leaving", "handover", "handed"])
def test_the_one_who_hands_over_dies(begin: Begin, ends_the_same: EndsTheSame, point: str) -> None:
    job = begin(executors=2, points=[faults.at(point, executor=0)])
    job.wait_step(2)
    request = replace_all(job)
    job.wait_for(lambda: [one for one in job.events("executor_lost") if one["executor"] == 0], "its death")
    until_replaced(job, [0, 1], 2)
    ends_the_same(job)
    assert outcomes(job) == {request: "done"}
    assert nothing_was_done_again(job), "the other one of those who leave has the state, too"


def test_another_one_who_leaves_dies(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2, points=[faults.at("leaving", executor=1)])
    job.wait_step(2)
    replace_all(job)
    until_replaced(job, [0, 1], 2)
    ends_the_same(job)
    assert nothing_was_done_again(job)


def test_a_newcomer_dies_when_it_has_the_state(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2, points=[faults.at("landing", executor=2)])
    job.wait_step(2)
    replace_all(job)
    job.wait_for(lambda: [one for one in job.events("executor_lost") if one["executor"] == 2], "its death")
    until_replaced(job, [0, 1], 2)
    ends_the_same(job)
    assert nothing_was_done_again(job)


def test_the_only_one_dies_when_it_has_handed_over(begin: Begin, ends_the_same: EndsTheSame) -> None:
    """Nobody else trains, and there is no checkpoint: the newcomer, which has not loaded the state yet, goes on."""
    job = begin(executors=1, points=[faults.at("handed", executor=0), faults.at("landing", executor=1, action="sleep")])
    job.wait_step(2)
    job.scale(2)
    job.wait_for(lambda: [one for one in job.events("executor_lost") if one["executor"] == 0], "its death")
    ends_the_same(job)
    assert nothing_was_done_again(job)


@pytest.mark.parametrize("point", ["leaving", "handed"])
def test_the_coordinator_dies_in_the_midst_of_it(begin: Begin, ends_the_same: EndsTheSame, point: str) -> None:
    job = begin(executors=2, points=[faults.at(point, executor=0, action="sleep", seconds=3)])
    job.wait_step(2)
    request = replace_all(job)
    log = job.directory / "logs" / "executor-0.log"
    job.wait_for(lambda: "isoscale: fault" in log.read_text(), "the hand-over")
    job.kill_coordinator()
    job.resume()
    until_replaced(job, [0, 1], 2)
    ends_the_same(job)
    assert outcomes(job) == {request: "done"}, "its successor goes on with it"
    assert nothing_was_done_again(job)


def test_something_else_is_wanted_in_the_midst_of_it(begin: Begin, ends_the_same: EndsTheSame) -> None:
    job = begin(executors=2, points=[faults.at("leaving", executor=0, action="sleep", seconds=1)])
    job.wait_step(2)
    first = replace_all(job, "3")
    log = job.directory / "logs" / "executor-0.log"
    job.wait_for(lambda: "isoscale: fault" in log.read_text(), "the hand-over")
    time.sleep(0.2)
    job.scale(1)
    job.wait_members(1)
    ends_the_same(job)
    assert list(outcomes(job).items()) == [(first, "overtaken"), (first + 1, "done")]
    assert not set(job.members()) & {0, 1}
    assert nothing_was_done_again(job)
