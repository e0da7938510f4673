"""Quotas under every policy: the rule holds after every round, whoever decides, and nobody waits for ever."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.events import JobEnded, JobSubmitted
from isoscale.scheduling.policy import make_policy, policy_names
from isoscale.scheduling.state import Decision, Pause
from tests.unit.scheduling.rounds import RIGID, Run, Work, cluster_of, run, work, workloads

CLUSTER = cluster_of(("V100", 2, 3), ("T4", 1, 4))
ALL = sorted(policy_names())


def held(controller: Controller) -> dict[str, int]:
    found: dict[str, int] = {}
    for job in controller.running.values():
        found[job.request.tenant] = found.get(job.request.tenant, 0) + job.num_devices
    return found


def keeps_quotas(quotas: dict[str, int], rigid: bool):  # type: ignore[no-untyped-def]
    """While a job waits that has room in its tenant's quota, no other tenant holds more; gangs, capacity as ever."""

    def check(controller: Controller, decisions: list[Decision]) -> None:
        now = held(controller)
        wanting = {
            job.request.tenant
            for job in controller.waiting.values()
            if now.get(job.request.tenant, 0) + (job.request.requested_devices if rigid else job.request.min_devices)
            <= quotas.get(job.request.tenant, math.inf)
        }
        for tenant, quota in quotas.items():
            assert now.get(tenant, 0) <= quota or not wanting - {tenant}, (now, quotas, decisions)
        state = controller.state(0.0)
        assert min(state.free) >= 0
        assert len({decision.job for decision in decisions}) == len(decisions)
        if rigid:
            assert all(job.num_devices == job.request.requested_devices for job in controller.running.values())
        for job in controller.running.values():
            assert max(1, job.request.min_devices) <= job.num_devices <= job.request.max_devices

    return check


def told(result: Run) -> list[tuple[float, list[str]]]:
    return [(now, list(map(repr, decisions))) for now, decisions in result.rounds]


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=15, deadline=None)
@given(jobs=workloads(), quota_a=st.integers(0, 6), quota_b=st.none() | st.integers(1, 6))
def test_every_policy_keeps_quotas_and_finishes(name: str, jobs: list[Work], quota_a: int, quota_b: int | None) -> None:
    quotas = {"a": quota_a} | ({} if quota_b is None else {"b": quota_b})
    check = keeps_quotas(quotas, name in RIGID)
    result = run(CLUSTER, make_policy(name), jobs, check=check, max_rounds=3000, quotas=quotas)
    assert set(result.ended) == {job.request.name for job in jobs}, "no starvation: what is borrowed comes back"
    again = run(CLUSTER, make_policy(name), jobs, max_rounds=3000, quotas=dict(reversed(quotas.items())))
    assert told(result) == told(again), "the same, whatever the order of the quotas"


@pytest.mark.parametrize("name", ALL)
def test_borrowing_ends_when_somebody_waits(name: str) -> None:
    cluster = cluster_of(("T4", 1, 4))
    jobs = [work(f"x{i}", workers=2, steps=1e6, tenant="x") for i in range(2)]
    controller = Controller(cluster, make_policy(name), interval_s=60.0, quotas={"x": 2, "y": 2})
    for job in jobs:
        controller.feed(JobSubmitted(job.request, job.speed, job.steps), 0.0)
    for number in range(4):
        controller.decide(60.0 * number)
    assert held(controller) == {"x": 4}, "nobody else waits"
    late = work("y", workers=2, steps=10, tenant="y")
    controller.feed(JobSubmitted(late.request, late.speed, late.steps), 300.0)
    controller.decide(300.0)
    assert controller.job("y").allocation, "what comes back is given away in the same round"
    assert held(controller)["x"] < 4
    assert name not in RIGID or held(controller) == {"x": 2, "y": 2}
    controller.feed(JobEnded("y"), 360.0)
    for number in range(6, 10):
        controller.decide(60.0 * number)
    assert held(controller) == {"x": 4}


def test_a_job_that_its_quota_holds_back_holds_up_nobody() -> None:
    jobs = [
        work("run", workers=2, steps=1e6, tenant="x"),
        work("more", workers=4, tenant="x"),
        work("other", workers=2, tenant="y"),
    ]
    for name in ("fifo", "fifo-per-kind", "fifo-backfill"):
        result = run(cluster_of(("T4", 1, 4)), make_policy(name), jobs, max_rounds=1, quotas={"x": 2})
        assert sorted(result.controller.running) == ["other", "run"], name


def test_a_policy_chooses_among_a_tenants_jobs_itself() -> None:
    jobs = [work("long", workers=2, steps=1000, tenant="x"), work("short", workers=2, steps=10, tenant="x")]
    jobs.append(work("y", workers=3, steps=5000, tenant="y"))
    result = run(cluster_of(("T4", 1, 5)), make_policy("srtf"), jobs, max_rounds=1, quotas={"x": 2})
    sizes = {job: view.num_devices for job, view in result.controller.running.items()}
    assert sizes == {"short": 2, "y": 3}, "without the quota: both of x"


def test_jobs_that_cannot_be_paused_do_not_borrow() -> None:
    jobs = [work(f"x{i}", workers=2, steps=1e6, tenant="x", preemptible=False) for i in range(2)]
    controller = run(cluster_of(("T4", 1, 4)), make_policy("flow"), jobs, max_rounds=3, quotas={"x": 2}).controller
    assert held(controller) == {"x": 2}


def test_easyscale_shrinks_rather_than_pauses() -> None:
    controller = Controller(cluster_of(("T4", 1, 4)), make_policy("easyscale"), interval_s=60.0, quotas={"x": 2})
    borrower, late = work("x", workers=4, steps=1e6, tenant="x"), work("y", workers=4, tenant="y")
    controller.feed(JobSubmitted(borrower.request, borrower.speed), 0.0)
    for number in range(3):
        controller.decide(60.0 * number)
    assert controller.job("x").num_devices == 4
    controller.feed(JobSubmitted(late.request, late.speed), 180.0)
    assert not any(isinstance(decision, Pause) for decision in controller.decide(180.0))
    assert {name: view.num_devices for name, view in controller.running.items()} == {"x": 2, "y": 1}
