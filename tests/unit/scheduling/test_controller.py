"""The controller: when it decides, what it books, what it refuses, who gives devices back, and replaying a log."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.events import (
    AllocationChanged,
    CapacityChanged,
    Event,
    JobEnded,
    JobProgress,
    JobSubmitted,
    SpeedLearned,
)
from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import ClusterState, Decision, Pause, Reject, Resize, Resume, Start
from tests.unit.scheduling.rounds import Work, cluster_of, work, workloads

CLUSTER = cluster_of(("T4", 2, 4))


class Script:
    """Answers from a list."""

    oracle = False

    def __init__(self, *answers: list[Decision], watches_time: bool = False, interval_s: float = 60.0) -> None:
        self.answers = list(answers)
        self.watches_time = watches_time
        self.interval_s = interval_s
        self.seen: list[ClusterState] = []

    def decide(self, state: ClusterState) -> list[Decision]:
        self.seen.append(state)
        return self.answers.pop(0) if self.answers else []


def submit(controller: Controller, job: Work, now: float) -> None:
    assert controller.feed(JobSubmitted(job.request, job.speed, job.steps), now) == []


def test_decisions_fall_on_multiples_of_the_interval_and_idle_rounds_are_skipped() -> None:
    controller = Controller(CLUSTER, Script())
    assert controller.next_decision_s(5.0) == math.inf
    submit(controller, work("a"), 61.0)
    assert controller.next_decision_s(61.0) == 120.0
    assert controller.next_decision_s(120.0) == 120.0
    assert controller.decide(120.0) == []
    assert controller.next_decision_s(120.0) == math.inf
    controller.feed(JobProgress("a", 3.0), 130.0)
    assert controller.next_decision_s(130.0) == math.inf
    controller.feed(SpeedLearned("a", work("a").speed), 131.0)
    assert controller.next_decision_s(131.0) == 180.0


def test_a_policy_that_watches_time_is_asked_every_round() -> None:
    controller = Controller(CLUSTER, Script(watches_time=True))
    submit(controller, work("a"), 0.0)
    controller.decide(0.0)
    assert controller.next_decision_s(0.0) == 60.0


def test_a_round_with_decisions_makes_the_next_one_due() -> None:
    controller = Controller(CLUSTER, Script([Start("a", ((0, 1),))]))
    submit(controller, work("a"), 0.0)
    controller.decide(0.0)
    assert controller.next_decision_s(0.0) == 60.0
    controller.decide(60.0)
    assert controller.next_decision_s(60.0) == math.inf


def test_without_an_interval_every_event_is_decided_at_once() -> None:
    controller = Controller(CLUSTER, Script([Start("a", ((0, 1),))], interval_s=0.0))
    submit(controller, work("a"), 7.3)
    assert controller.next_decision_s(7.3) == 7.3
    controller.decide(7.3)
    assert controller.next_decision_s(7.3) == math.inf


def test_the_book_counts_service_running_time_and_restarts() -> None:
    script = Script([Start("a", ((0, 2),))], [Resize("a", ((0, 1), (1, 2)))], [Pause("a")], [Resume("a", ((1, 1),))])
    controller = Controller(CLUSTER, script)
    submit(controller, work("a"), 0.0)
    controller.decide(60.0)
    controller.decide(120.0)
    job = controller.job("a")
    assert (job.status, job.num_devices, job.num_restarts, job.first_started_s) == ("running", 3, 1, 60.0)
    assert job.service_s(180.0) == 2 * 60 + 3 * 60
    assert controller.state(120.0).free == (3, 2)
    controller.decide(180.0)
    job = controller.job("a")
    assert (job.status, job.allocation, job.service_s(1000.0), job.running_s(1000.0)) == ("paused", (), 300, 120)
    controller.decide(240.0)
    assert controller.job("a").num_restarts == 2
    assert controller.job("a").running_s(250.0) == 130
    controller.feed(JobEnded("a"), 250.0)
    assert controller.state(250.0).free == (4, 4)
    assert controller.state(250.0).free_of == {"T4": 8}
    with pytest.raises(KeyError):
        controller.job("a")


def test_devices_are_freed_before_they_are_given_away() -> None:
    script = Script([Start("a", ((0, 4),))], [Start("b", ((0, 4),)), Pause("a")])
    controller = Controller(CLUSTER, script)
    submit(controller, work("a"), 0.0)
    controller.decide(0.0)
    submit(controller, work("b"), 1.0)
    assert controller.decide(60.0) == [Pause("a"), Start("b", ((0, 4),))]


@pytest.mark.parametrize(
    ("answer", "guilty", "why"),
    [
        ([Start("a", ((0, 5),))], 0, "gave away 1 more devices of node 'T4-0' than there are"),
        ([Resize("a", ((0, 1),))], 0, "the job is pending"),
        ([Resume("a", ((0, 1),))], 0, "the job is pending"),
        ([Pause("a")], 0, "the job is pending"),
        ([Start("r", ((1, 1),))], 0, "the job is running"),
        ([Reject("r", "no")], 0, "the job is running"),
        ([Start("a", ((0, 3),)), Start("b", ((0, 2),))], 1, "gave away 1 more"),
        ([Start("a", ((0, 1),)), Start("nobody", ((0, 1),))], 1, "there is no such job"),
        ([Start("a", ((0, 1),)), Start("a", ((1, 1),))], 1, "the job was decided about twice"),
        ([Start("a", ((0, 1),)), Start("b", ((2, 1),))], 1, "the cluster has nodes 0 to 1"),
        ([Start("a", ((0, 1),)), Start("b", ((-1, 1),))], 1, "the cluster has nodes 0 to 1"),
        ([Start("a", ((0, 1),)), Start("b", ((1, 0),))], 1, "a positive number of devices"),
        ([Start("a", ((0, 1), (0, 1)))], 0, "names each node once"),
        ([Pause("r"), Start("a", ())], 1, "grants no device"),
    ],
)
def test_an_impossible_decision_is_named_and_nothing_is_booked(answer: list[Decision], guilty: int, why: str) -> None:
    controller = Controller(CLUSTER, Script([Start("r", ((1, 2),))], answer, [Start("b", ((0, 4),))]))
    submit(controller, work("r"), 0.0)
    controller.decide(0.0)
    submit(controller, work("a"), 0.0)
    submit(controller, work("b"), 0.0)
    before = controller.state(60.0)
    held, waiting, remaining = dict(before.running), dict(before.waiting), dict(before.remaining)
    with pytest.raises(ValueError, match=re.escape(f"{answer[guilty]}: ")) as caught:
        controller.decide(60.0)
    assert why in str(caught.value)
    after = controller.state(60.0)
    assert (after.free, after.free_of, after.capacity) == ((4, 2), {"T4": 6}, (4, 4))
    assert (dict(after.running), dict(after.waiting), dict(after.remaining)) == (held, waiting, remaining)
    assert controller.decide(120.0) == [Start("b", ((0, 4),))], "the next round is decided as if nothing had been"


def test_a_name_is_used_once_and_a_rejected_job_is_gone() -> None:
    controller = Controller(CLUSTER, Script([Reject("a", "full")]))
    submit(controller, work("a"), 0.0)
    with pytest.raises(ValueError, match="twice"):
        submit(controller, work("a"), 1.0)
    controller.decide(60.0)
    assert not controller.waiting
    assert not controller.state(60.0).remaining


def test_lost_devices_are_taken_from_low_priority_and_late_jobs_first() -> None:
    script = Script([Start("early", ((0, 1),)), Start("gang", ((0, 2),)), Start("urgent", ((0, 1), (1, 1)))])
    controller = Controller(CLUSTER, script)
    submit(controller, work("early"), 0.0)
    submit(controller, work("gang", min_devices=2), 0.0)
    submit(controller, work("urgent", priority=1), 0.0)
    controller.decide(0.0)
    assert controller.feed(CapacityChanged(0, 4), 1.0) == []
    assert controller.feed(CapacityChanged(0, 3), 2.0) == [Pause("early")]
    assert controller.feed(CapacityChanged(0, 2), 3.0) == [Pause("gang")]
    assert controller.feed(CapacityChanged(0, 0), 4.0) == [Resize("urgent", ((1, 1),))]
    assert controller.state(4.0).free == (0, 3)
    assert controller.feed(CapacityChanged(0, 4), 5.0) == []
    assert controller.state(5.0).free_of == {"T4": 7}


def test_the_world_may_correct_the_book() -> None:
    controller = Controller(CLUSTER, Script([Start("a", ((0, 4),))]))
    submit(controller, work("a"), 0.0)
    controller.decide(0.0)
    controller.feed(AllocationChanged("a", ((0, 3),)), 10.0)
    assert controller.job("a").num_devices == 3
    controller.feed(AllocationChanged("a", ()), 20.0)
    assert controller.job("a").status == "paused"
    assert controller.state(20.0).free == (4, 4)


def test_a_paused_job_goes_back_to_its_place_in_the_line() -> None:
    controller = Controller(CLUSTER, Script([Start("a", ((0, 1),))], [Pause("a")]))
    submit(controller, work("a"), 0.0)
    submit(controller, work("b"), 0.0)
    controller.decide(0.0)
    controller.decide(60.0)
    assert list(controller.state(60.0).waiting) == ["a", "b"]


@settings(max_examples=10, deadline=None)
@given(jobs=workloads(max_jobs=5), name=st.sampled_from(["flow", "tiresias", "easyscale", "fifo-backfill"]))
def test_replaying_a_log_gives_the_same_decisions(jobs: list[Work], name: str) -> None:
    """What the controller was told, told again to a fresh one, is decided alike."""
    cluster = cluster_of(("V100", 2, 3), ("T4", 1, 4))
    log: list[tuple[float, Event | None]] = []
    for job in jobs:
        log.append((job.request.submitted_s, JobSubmitted(job.request, job.speed, job.steps)))
        log.append((job.request.submitted_s + 130.0, None))
    log.append((300.0, CapacityChanged(0, 1)))
    log.append((360.0, None))
    log.sort(key=lambda entry: entry[0])

    def told() -> list[list[Decision]]:
        controller = Controller(cluster, make_policy(name), interval_s=60.0)
        return [controller.decide(at) if event is None else controller.feed(event, at) for at, event in log]

    assert told() == told()
