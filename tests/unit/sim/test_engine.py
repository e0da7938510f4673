"""The simulator against arithmetic done by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest

from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import ClusterState, Decision, Pause, Reject, Resize, Resume, Start
from isoscale.sim.costs import Costs
from isoscale.sim.disturbances import DeviceFailures, Lending
from isoscale.sim.engine import Options, Simulation
from isoscale.sim.interference import Interference
from isoscale.sim.job import Crash, ModelTruth
from isoscale.sim.recorder import ListRecorder
from tests.unit.sim.worlds_of_one import Scripted, cluster, first_fit, job, run


def test_one_after_another_on_one_device() -> None:
    outcome, recorder = run([job("a", 5.0), job("b", 6.0, 50.0)], cluster(1), Scripted(first_fit))
    assert list(outcome.started_s) == [5.0, 105.0]
    assert list(outcome.finished_s) == [105.0, 155.0]
    assert [(e["t"], e["event"], e["job"]) for e in recorder.events if "job" in e] == [
        (5.0, "job_submitted", "a"),
        (5.0, "job_started", "a"),
        (6.0, "job_submitted", "b"),
        (105.0, "job_finished", "a"),
        (105.0, "job_started", "b"),
        (155.0, "job_finished", "b"),
    ]
    assert outcome.ledger.device_seconds() == 150.0
    assert outcome.ledger.busy_seconds() == 150.0


def test_a_watcher_hears_of_every_job_of_a_short_trace() -> None:
    heard: list[tuple[int, float]] = []
    policy = Scripted(first_fit)
    Simulation([job("a"), job("b")], cluster(1), policy, Options()).run(lambda *told: heard.append(told))
    assert heard == [(1, 100.0), (2, 200.0)]


def test_rounds_make_jobs_wait_for_the_next_multiple() -> None:
    outcome, _ = run([job("a", 5.0), job("b", 61.0, 10.0)], cluster(1), Scripted(first_fit, interval_s=60.0))
    assert list(outcome.started_s) == [60.0, 180.0]
    assert list(outcome.finished_s) == [160.0, 190.0]
    # 60 (a), 120 (b came), 180 (a ended at 160); the round at 240 has nobody left to decide for.
    assert len(outcome.decision_s) == 3


def grow_at(t: float, allocation: tuple[tuple[int, int], ...]) -> Scripted:
    """Starts a job on one device and changes its devices at the round of time t."""

    def answer(state: ClusterState) -> list[Decision]:
        if state.waiting:
            return [Start("a", ((0, 1),))]
        return [Resize("a", allocation)] if state.now == t else []

    return Scripted(answer, interval_s=10.0, watches_time=True)


@pytest.mark.parametrize(
    ("costs", "allocation", "finished"),
    [
        # 50 s at 1/s, then 50 left at 2/s.
        (Costs(), ((0, 2),), 75.0),
        # 20 s of start first: 30 done at t=50.
        (Costs(start_s=20.0), ((0, 2),), 85.0),
        # Stands still for 30 s at the change.
        (Costs(rescale_s=30.0), ((0, 2),), 105.0),
        # Trains on for 10 s while the newcomer gets ready, then stands still for 1 s: 40 left at 2/s.
        (Costs(rescale_s=1.0, ready_s=10.0), ((0, 2),), 81.0),
        # Not a growth but a move: nobody can train on.
        (Costs(rescale_s=1.0, ready_s=10.0), ((1, 1),), 101.0),
        # The start is not over when the devices change: it still takes its 60 s.
        (Costs(start_s=60.0, rescale_s=1.0), ((0, 2),), 110.0),
    ],
)
def test_costs_of_a_change(costs: Costs, allocation: tuple[tuple[int, int], ...], finished: float) -> None:
    outcome, _ = run([job("a")], cluster(2, 2), grow_at(50.0, allocation), Options(costs=costs))
    assert outcome.finished_s[0] == pytest.approx(finished)
    assert outcome.rescales[0] == 1


def test_allocated_and_busy_time_are_told_apart() -> None:
    costs = Costs(start_s=10.0)
    outcome, _ = run([job("a", devices=4)], cluster(4), Scripted(first_fit), Options(costs=costs))
    assert outcome.finished_s[0] == 35.0
    assert outcome.ledger.device_seconds() == 140.0
    assert outcome.ledger.busy_seconds() == 100.0
    assert outcome.ledger.capacity_seconds(0.0, 35.0) == 140.0


def test_a_paused_job_keeps_what_it_has_done() -> None:
    def answer(state: ClusterState) -> list[Decision]:
        match state.now:
            case 0.0:
                return [Start("a", ((0, 1),))]
            case 30.0:
                return [Pause("a")]
            case 50.0:
                return [Resume("a", ((0, 2),))]
        return []

    costs = Costs(resume_s=5.0)
    outcome, recorder = run(
        [job("a")], cluster(2), Scripted(answer, interval_s=10.0, watches_time=True), Options(costs=costs)
    )
    assert outcome.finished_s[0] == 50.0 + 5.0 + 35.0
    sizes = [(e["from"], e["to"]) for e in recorder.events if e["event"] in ("job_started", "job_resized")]
    assert sizes == [(0, 1), (1, 0), (0, 2)]


def test_devices_of_others_come_when_those_have_let_go_of_them() -> None:
    def answer(state: ClusterState) -> list[Decision]:
        match state.now:
            case 0.0:
                return [Start("a", ((0, 2),)), Start("b", ((0, 1),))]
            case 10.0:
                return [Resize("a", ((0, 1),)), Start("c", ((0, 1),))]
            case 20.0:
                return [Pause("b"), Resize("c", ((0, 2),))]
        return []

    costs = Costs(start_s=5.0, handover_s=3.0, ready_s=1.0)
    jobs = [job("a", 0.0, 60.0), job("b", 0.0, 500.0), job("c", 0.0, 50.0)]
    policy = Scripted(answer, interval_s=10.0, watches_time=True)
    outcome, _ = run(jobs, cluster(3), policy, Options(costs=costs, until_s=200.0))
    # a: 5 s on two devices, then the rest on one; giving away costs it nothing.
    assert outcome.finished_s[0] == 60.0
    # c: 3 s for a to let go and 5 s of start; b lets go in 3 s while c trains on, and 1 s later c has two.
    assert outcome.finished_s[2] == 24.0 + (50.0 - 6.0) / 2


def test_rejected_jobs_leave_and_are_counted() -> None:
    policy = Scripted(lambda state: [Reject(name, "no room") for name in state.waiting])
    outcome, recorder = run([job("a"), job("b", 3.0)], cluster(1), policy)
    assert outcome.rejected == 2
    assert all(math.isnan(t) for t in outcome.finished_s)
    told = [e["event"] for e in recorder.events if e["event"] != "job_submitted"]
    assert told == ["cluster", "job_rejected", "job_rejected", "simulation_ended"]


def test_a_job_that_never_fits_ends_the_simulation() -> None:
    for policy in (Scripted(first_fit), Scripted(first_fit, interval_s=60.0, watches_time=True)):
        outcome, _ = run([job("a", devices=9), job("b", 5.0, 10.0)], cluster(4), policy)
        assert math.isnan(outcome.finished_s[0])
        assert outcome.finished_s[1] <= 75.0


def test_a_job_that_never_fits_ends_the_simulation_even_if_devices_fail_for_ever() -> None:
    options = Options(failures=DeviceFailures(mean_s=100.0, repair_s=10.0))
    outcome, _ = run([job("a", devices=9)], cluster(4), Scripted(first_fit), options)
    assert math.isnan(outcome.finished_s[0])


def test_a_job_waits_for_devices_that_serving_lends_late() -> None:
    lendings = [Lending(0.0, 0, 0), *(Lending(100.0 + t, 1, t % 2) for t in range(300)), Lending(5000.0, 0, 4)]
    outcome, _ = run([job("a", devices=4)], cluster(4, 1), Scripted(first_fit), Options(lendings=lendings))
    assert outcome.started_s[0] == 5000.0


def test_neighbours_slow_each_other_down_while_they_share_a_node() -> None:
    options = Options(interference=Interference(share=0.5))
    outcome, _ = run([job("a", work=100.0), job("b", 20.0, 30.0)], cluster(2), Scripted(first_fit), options)
    # b: 60 s at half speed, to t=80; a: 20 s alone, 30 work in those 60 s, the last 50 alone.
    assert outcome.finished_s == pytest.approx([130.0, 80.0])
    assert outcome.ledger.busy_seconds() == pytest.approx(130.0)
    assert outcome.ledger.device_seconds() == pytest.approx(190.0)


def test_only_distributed_neighbours_count_if_so_wanted() -> None:
    def answer(state: ClusterState) -> list[Decision]:
        places = {"a": ((0, 1), (1, 1)), "b": ((1, 1), (2, 1)), "c": ((0, 1),)}
        return [Start(name, places[name]) for name in state.waiting]

    options = Options(interference=Interference(share=0.5, distributed_only=True))
    jobs = [job("a", devices=2), job("b", devices=2), job("c")]
    outcome, _ = run(jobs, cluster(2, 2, 2), Scripted(answer), options)
    assert outcome.finished_s == pytest.approx([100.0, 100.0, 100.0])


def test_interference_keeps_a_growth_under_way() -> None:
    """A neighbour that comes while newcomers get ready must not make the job forget them."""

    def answer(state: ClusterState) -> list[Decision]:
        if state.now == 0.0:
            return [Start("a", ((0, 1),))]
        if state.now == 10.0:
            return [Resize("a", ((0, 2),))]
        return [Start(name, ((0, 1),)) for name in state.waiting]

    options = Options(interference=Interference(share=0.5), costs=Costs(ready_s=20.0))
    jobs = [job("a"), job("b", 20.0, 1000.0)]
    outcome, _ = run(jobs, cluster(3), Scripted(answer, interval_s=10.0, watches_time=True), options)
    # 20 s at 1/s, 10 s at 0.5/s, then 75 left at 2 * 0.5/s.
    assert outcome.finished_s[0] == pytest.approx(105.0)


def test_crashes_are_retried_or_not() -> None:
    crashing = job("a", crashes=(Crash(40.0, "cuda"), Crash(70.0, "cuda")))
    outcome, recorder = run([crashing], cluster(1), Scripted(first_fit), Options(retry=lambda error, times: times < 2))
    assert outcome.failed == 1
    failures = [(e["t"], e["retried"]) for e in recorder.events if e["event"] == "job_failed"]
    assert failures == [(40.0, True), (70.0, False)]
    outcome, _ = run([crashing], cluster(1), Scripted(first_fit), Options(retry=lambda error, times: True))
    assert outcome.finished_s[0] == 100.0


def test_lent_devices_are_given_back_at_once_and_the_wait_is_measured() -> None:
    lendings = [Lending(0.0, 0, 4), Lending(10.0, 0, 2), Lending(30.0, 0, 4)]
    options = Options(lendings=lendings, costs=Costs(release_s=0.5))
    outcome, recorder = run([job("a", devices=4)], cluster(4), Scripted(first_fit), options)
    # 40 work in 10 s, the other 60 on two devices.
    assert outcome.finished_s[0] == pytest.approx(40.0)
    # A step on four devices takes 0.25 s here.
    assert outcome.ledger.reclaims == [(10.0, 2, 0.75)]
    assert [e["event"] for e in recorder.events if e["event"].startswith("device")] == [
        "device_reclaimed",
        "device_lent",
    ]
    assert outcome.ledger.capacity_seconds(0.0, 40.0) == 4 * 10 + 2 * 20 + 4 * 10


def test_a_long_step_is_given_up_when_devices_are_wanted_back() -> None:
    # 16 work is a step of 4 s on four devices at this pace: too long to wait for.
    slow = job("a", devices=4, work=100.0)
    truth = ModelTruth(slow.declared, 100.0)
    monkey = dataclasses.replace(slow, truth=truth)
    truth.step_s = lambda shape, batch: 4.0  # type: ignore[method-assign]
    options = Options(lendings=[Lending(10.0, 0, 2)], costs=Costs(release_s=0.5, patience_s=3.0))
    outcome, _ = run([monkey], cluster(4), Scripted(first_fit), options)
    assert outcome.ledger.reclaims == [(10.0, 2, 3.5)]
    # 40 done, 16 of them lost; 76 left on two devices.
    assert outcome.finished_s[0] == pytest.approx(10.0 + 38.0)


def test_a_failed_device_shrinks_or_stops_its_job() -> None:
    failures = DeviceFailures(mean_s=100.0, repair_s=50.0)
    jobs = [job("a", devices=4, work=400.0)]
    survives, told = run(jobs, cluster(4), Scripted(first_fit), Options(failures=failures, seed=3))
    stops, stopped = run(
        jobs, cluster(4), Scripted(first_fit), Options(failures=failures, seed=3, costs=Costs(survives_loss=False))
    )
    assert 100.0 < survives.finished_s[0] < math.inf
    assert 100.0 < stops.finished_s[0] < math.inf

    def losses(log: ListRecorder) -> list[tuple[int, int]]:
        return [(e["from"], e["to"]) for e in log.events if e.get("reason") == "device failed"]

    # This policy never grows a job, so the one that survives ends up on few devices.
    assert losses(told)[:3] == [(4, 3), (3, 2), (2, 1)]
    assert set(losses(stopped)) == {(4, 0)}
    failed, repaired = (sum(e["event"] == f"device_{what}" for e in told.events) for what in ("failed", "repaired"))
    assert failed > 0
    assert failed - repaired in range(5)


def test_work_since_the_last_checkpoint_is_lost() -> None:
    failures = DeviceFailures(mean_s=100.0, repair_s=1.0)
    jobs = [job("a", devices=4, work=400.0)]
    keeps, _ = run(jobs, cluster(4), Scripted(first_fit), Options(failures=failures, seed=3))
    loses, _ = run(
        jobs, cluster(4), Scripted(first_fit), Options(failures=failures, seed=3, costs=Costs(checkpoint_every_s=20.0))
    )
    assert loses.finished_s[0] > keeps.finished_s[0]


def test_progress_is_told_to_policies_that_ask_for_it() -> None:
    seen: list[dict[str, float]] = []

    def answer(state: ClusterState) -> list[Decision]:
        seen.append(dict(state.remaining))
        return first_fit(state)

    jobs = [job("a", declared=False)]
    run(jobs, cluster(1), Scripted(answer, interval_s=40.0, watches_time=True))
    assert not any(seen)
    seen.clear()
    run(jobs, cluster(1), Scripted(answer, interval_s=40.0, watches_time=True, oracle=True))
    assert seen == [{"a": 100.0}, {"a": 60.0}, {"a": 20.0}]


def test_until_stops_in_the_middle() -> None:
    outcome, _ = run([job("a")], cluster(1), Scripted(first_fit), Options(until_s=30.0))
    assert outcome.end_s <= 30.0
    assert math.isnan(outcome.finished_s[0])


def test_the_same_seed_gives_the_same_events() -> None:
    jobs = [job(f"j{i}", 7.0 * i, 50.0 + i, devices=1 + i % 3) for i in range(30)]
    options = Options(
        failures=DeviceFailures(mean_s=300.0, repair_s=40.0), interference=Interference(share=0.2), seed=5
    )
    logs = [run(jobs, cluster(4, 4), make_policy("fifo-backfill"), options)[1].events for _ in range(2)]
    assert logs[0] == logs[1]
    other = run(jobs, cluster(4, 4), make_policy("fifo-backfill"), Options(failures=options.failures, seed=6))[1].events
    assert other != logs[0]
