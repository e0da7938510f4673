"""Whether a job that failed is tried again, what counts against its budget, and how a trial ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isoscale.cli.cluster_devices import waits_for
from isoscale.cluster.outcome import INPUT, LOST, MACHINE, Outcome
from isoscale.cluster.requests import asked_of, has_passed
from isoscale.cluster.retrying import class_of, counts, last_words, verdict
from isoscale.cluster.values import DeviceShown, NodeShown, Submission
from isoscale.scheduling.controller import Controller
from isoscale.scheduling.driver import Driver, device_names
from isoscale.scheduling.driving import RunEnded
from isoscale.scheduling.events import JobSubmitted
from isoscale.scheduling.failures import CLASSES
from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import JobRequest
from isoscale.scheduling.throughput import LogicalWorkerSpeed
from tests.unit.cluster.test_learned import CLUSTER, a_live, a_status
from tests.unit.cluster.test_pure_parts import a_job


def failed(error: str) -> str:
    return class_of(Outcome(kind="failed", error=error, error_class="script"))


def test_errors_have_the_classes_by_which_the_study_counts() -> None:
    assert failed("executor 0: ModuleNotFoundError: No module named 'apex'") == "import error"
    assert failed("RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:1") == "MPI runtime failure"
    assert failed("it ends with exit code 3") == "no signature"
    assert class_of(Outcome(kind="died", error="x", error_class=LOST)) == LOST


@pytest.mark.parametrize(
    ("error", "failures", "retries", "again"),
    [
        ("semantic error", 1, 9, False),
        (INPUT, 1, 9, False),
        ("MPI runtime failure", 1, 0, False),
        ("MPI runtime failure", 2, 2, True),
        ("MPI runtime failure", 3, 2, False),
        ("no signature", 1, 1, True),
        ("GPU ECC error", 5, 0, True),
        ("GPU ECC error", 6, 0, False),
        ("GPU ECC error", 6, 6, True),
        (LOST, 5, 0, True),
        (LOST, 6, 0, False),
        ("coordinator died", 7, 7, True),
        (MACHINE, 99, 0, True),
    ],
)
def test_the_class_says_whether_and_the_budget_how_often(error: str, failures: int, retries: int, again: bool) -> None:
    found = verdict(error, failures, retries)
    assert found.again == again
    assert found.why


def test_nothing_that_fails_is_tried_for_ever() -> None:
    assert not any(verdict(one.name, 6, 0).again for one in CLASSES)


def test_why_a_failed_job_was_not_tried_again() -> None:
    job = a_job(state="failed", started_s=1.0, error="ValueError: no", failures=1)
    assert last_words(job) == "semantic error: no retry cures it"
    assert last_words(replace(job, started_s=None)) == ""
    assert last_words(replace(job, state="finished")) == ""
    assert "cannot be run" in last_words(replace(job, exit_code=2))
    late = replace(
        job, error="Connection reset by peer", failures=3, submission=Submission(code="c", workers=4, retries=2)
    )
    assert last_words(late) == "MPI runtime failure: 2 retries used up"


def test_what_could_not_be_started_is_tried_later_and_later_and_costs_no_try() -> None:
    waits: list[int] = []

    def backoff_s(times: int) -> float:
        waits.append(times)
        return float(times)

    driver = Driver(
        Controller(CLUSTER, make_policy("fifo-backfill"), interval_s=0.0),
        device_names(CLUSTER),
        retry=lambda job, error, failures: verdict(error, failures, 1).again,
        backoff_s=backoff_s,
        counts=counts,
    )
    request = JobRequest(name="a", submitted_s=0.0, requested_devices=1, num_logical_workers=1)
    driver.handle(JobSubmitted(request, LogicalWorkerSpeed(num_logical_workers=1, turn_s={"cpu": 0.1}), None), now=0.0)
    now = 0.0

    def fail(error: str) -> None:
        nonlocal now
        driver.decide(now)
        standing = driver.standing("a")
        assert standing.is_up
        driver.handle(RunEnded("a", standing.attempt, "failed", error), now=now)
        now += 100.0

    for _ in range(8):
        fail(MACHINE)
        assert driver.standing("a").failures == 0
    assert waits == [1, 2, 3, 4, 5, 6, 7, 8]
    fail("no signature")
    assert driver.standing("a").failures == 1
    fail(MACHINE)
    assert driver.standing("a").failures == 1
    driver.decide(now)
    driver.handle(RunEnded("a", driver.standing("a").attempt, "failed", "no signature"), now=now)
    assert "a" not in driver, "its budget of one is used up"


def test_a_job_on_trial_has_as_few_devices_as_it_needs_until_it_was_seen_training() -> None:
    live = a_live()
    live.is_on_trial = True
    few = asked_of(live, CLUSTER)
    assert (few.requested_devices, few.min_devices, few.max_devices) == (1, 1, 1)

    def look(now: float, **fields: Any) -> bool:
        return has_passed(live, a_status(7, **fields), now, 10.0)

    assert not look(0.0, state="starting")
    assert not look(1.0)
    assert not look(5.0)
    # Its coordinator died: what nobody saw does not count.
    live.seen_s = 0.0
    assert not look(500.0)
    assert not look(600.0), "nor does what lies between two looks that are far apart, but for a moment"
    assert look(601.1)
    assert not live.is_on_trial
    assert not look(700.0), "told once"
    assert asked_of(live, CLUSTER).max_devices == 2


def test_who_is_waited_for_in_words() -> None:
    def node(*states: tuple[str, str]) -> NodeShown:
        devices = tuple(
            DeviceShown(id=f"local/cpu/{n}", node="local", kind="cpu", state=state, job=job)  # type: ignore[arg-type]
            for n, (state, job) in enumerate(states)
        )
        return NodeShown(name="local", kind="cpu", num_devices=2, num_ours=2, devices=devices)

    assert "jobs are being told" in waits_for(node(("held", "j1"), ("free", "")), 2)
    assert waits_for(node(("releasing", "j1"), ("away", "")), 2) == "waiting for j1 to leave local/cpu/0"
    assert "another to leave local/cpu/1" in waits_for(node(("held", "j1"), ("releasing", "")), 1)
