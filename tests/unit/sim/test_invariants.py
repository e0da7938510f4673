"""What must hold under every policy, whatever the jobs: checked on the event log, as a reader would."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.policy import make_policy, policy_names
from isoscale.scheduling.state import Cluster, Node
from isoscale.scheduling.throughput import LogicalWorkerSpeed
from isoscale.sim.costs import PRESETS
from isoscale.sim.disturbances import DeviceFailures, Lending
from isoscale.sim.engine import Options, Outcome, Simulation
from isoscale.sim.interference import Interference
from isoscale.sim.job import ModelTruth, SimJob
from isoscale.sim.recorder import ListRecorder
from isoscale.sim.traces.record import TraceJob
from isoscale.sim.workload import Workload, make_jobs

CLUSTER = Cluster(
    nodes=(
        Node(name="a", kind="V100", num_devices=4),
        Node(name="b", kind="V100", num_devices=4),
        Node(name="c", kind="T4", num_devices=3),
    )
)

job_lists = st.lists(
    st.tuples(
        st.integers(0, 2000),  # submitted
        st.sampled_from([1, 1, 2, 3, 4, 8]),  # logical workers and devices asked for
        st.integers(1, 400),  # steps
        st.booleans(),  # whether it may mix kinds
    ),
    min_size=1,
    max_size=12,
)


def make(rows: list[tuple[int, int, int, bool]]) -> list[SimJob]:
    trace = [
        TraceJob(
            name=f"job-{number}",
            submit_s=float(submit),
            devices=devices,
            steps=float(steps),
            kind="V100",
            kinds=("V100", "T4") if mixes else ("V100",),
            turn_s={"V100": 1.0, "T4": 2.0},
        )
        for number, (submit, devices, steps, mixes) in enumerate(rows)
    ]
    return make_jobs(trace, CLUSTER, Workload())


def simulate(jobs: list[SimJob], policy: str, options: Options) -> tuple[Outcome, list[dict[str, Any]]]:
    recorder = ListRecorder()
    outcome = Simulation(jobs, CLUSTER, make_policy(policy), options, recorder).run()
    return outcome, recorder.events


def check_log(events: list[dict[str, Any]], jobs: list[SimJob]) -> None:
    """No device is in two hands, no job runs before it came or after it ended, sizes stay in their range."""
    capacity = [node.num_devices for node in CLUSTER.nodes]
    held: dict[str, dict[int, int]] = {}
    requests = {job.request.name: job.request for job in jobs}
    submitted: set[str] = set()
    ended: set[str] = set()
    changes: dict[float, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        changes[event["t"]].append(event)
    for moment in changes.values():
        for event in moment:
            name = event.get("job", "")
            match event["event"]:
                case "job_submitted":
                    submitted.add(name)
                case "job_started" | "job_resized":
                    assert name in submitted - ended
                    held[name] = dict(event["nodes"])
                    size = sum(held[name].values())
                    assert size == event["to"]
                    assert size == 0 or 1 <= size <= requests[name].max_devices
                    kinds = {CLUSTER.nodes[node].kind for node in held[name]}
                    assert kinds <= set(requests[name].kinds)
                    assert len(kinds) < 2 or requests[name].mixes_kinds
                case "job_finished" | "job_rejected":
                    ended.add(name)
                    held.pop(name, None)
                case "device_failed" | "device_reclaimed":
                    capacity[event["node"]] -= event["devices"]
                case "device_repaired" | "device_lent":
                    capacity[event["node"]] += event["devices"]
        # Within a moment shrinking comes before growth, but in the end everything must fit.
        for node, most in enumerate(capacity):
            assert sum(one.get(node, 0) for one in held.values()) <= most


@pytest.mark.parametrize("policy", policy_names())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=job_lists, interval_s=st.sampled_from([0.0, 60.0]))
def test_devices_are_in_one_hand_and_every_job_ends(
    policy: str, rows: list[tuple[int, int, int, bool]], interval_s: float
) -> None:
    jobs = make(rows)
    outcome, events = simulate(jobs, policy, Options(costs=PRESETS["stop-free"], interval_s=interval_s))
    check_log(events, jobs)
    assert outcome.rejected or all(not math.isnan(t) for t in outcome.finished_s)
    for index, job in enumerate(jobs):
        best = job.truth.total_work * job.request.num_logical_workers / 11.0  # all devices, all as fast as a V100
        if not math.isnan(outcome.finished_s[index]):
            assert outcome.finished_s[index] >= job.request.submitted_s + min(best, job.truth.total_work)


@pytest.mark.parametrize("policy", policy_names())
def test_nothing_breaks_when_devices_come_and_go(policy: str) -> None:
    rows = [(97 * i % 1500, (1, 2, 4, 3)[i % 4], 60 + 13 * i, i % 3 > 0) for i in range(16)]
    jobs = make(rows)
    lendings = [Lending(200.0, 0, 1), Lending(600.0, 0, 4), Lending(700.0, 1, 0), Lending(1500.0, 1, 4)]
    options = Options(
        costs=PRESETS["stop-resume"],
        interval_s=30.0,
        failures=DeviceFailures(mean_s=4000.0, repair_s=300.0),
        interference=Interference(share=0.2),
        lendings=lendings,
        seed=4,
        until_s=100_000.0,
    )
    outcome, events = simulate(jobs, policy, options)
    check_log(events, jobs)
    assert sum(not math.isnan(t) for t in outcome.finished_s) + outcome.rejected == len(jobs)
    again = simulate(jobs, policy, options)[1]
    assert again == events


@pytest.mark.parametrize("policy", policy_names())
def test_a_controller_that_is_told_the_same_decides_the_same(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that the simulator tells its controller, told again to a fresh one."""
    told: list[tuple[str, Any, float, list[Any]]] = []
    feed, decide = Controller.feed, Controller.decide

    def listening_feed(self: Controller, event: Any, now: float) -> list[Any]:
        answer = feed(self, event, now)
        told.append(("feed", event, now, answer))
        return answer

    def listening_decide(self: Controller, now: float) -> list[Any]:
        answer = decide(self, now)
        told.append(("decide", None, now, answer))
        return answer

    monkeypatch.setattr(Controller, "feed", listening_feed)
    monkeypatch.setattr(Controller, "decide", listening_decide)
    rows = [(61 * i % 900, (1, 4, 2)[i % 3], 40 + 17 * i, i % 2 > 0) for i in range(14)]
    simulate(make(rows), policy, Options(interval_s=20.0, lendings=[Lending(300.0, 0, 2)]))
    monkeypatch.undo()
    fresh = Controller(CLUSTER, make_policy(policy), interval_s=20.0)
    assert sum(kind == "decide" for kind, *_ in told) > 5
    for kind, event, now, answer in told:
        assert (fresh.feed(event, now) if kind == "feed" else fresh.decide(now)) == answer


def test_work_is_neither_lost_nor_made() -> None:
    """Busy device-seconds of equal devices add up to the work that was done."""
    speed = LogicalWorkerSpeed(num_logical_workers=8, turn_s={"V100": 1.0})
    rows = [(50 * i, 8, 10 + i, False) for i in range(6)]
    jobs = make(rows)
    assert all(isinstance(job.truth, ModelTruth) and job.truth.step_s((("V100", 8),), 0) == 1.0 for job in jobs)
    outcome, _ = simulate(jobs, "easyscale-homo", Options(costs=PRESETS["stop-free"], interval_s=10.0))
    turns = sum(steps * speed.num_logical_workers for _, _, steps, _ in rows)
    assert outcome.ledger.busy_seconds() == pytest.approx(turns)
