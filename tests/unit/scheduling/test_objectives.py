"""`objective` changes what `flow` does, each is best at what it is for; what `flow` does with what it does not know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.events import JobSubmitted
from isoscale.scheduling.objectives import option_values
from isoscale.scheduling.options import DeviceOptions
from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import Decision, JobRequest, Objective, shape_of
from isoscale.scheduling.throughput import Communication, GoodputSpeed, TableSpeed
from tests.unit.scheduling.rounds import Work, cluster_of, run

CLUSTER = cluster_of(("T4", 1, 8))
SIZES = np.arange(9)
#: without prices and promises, which have tests of their own
OBJECTIVES: tuple[Objective, ...] = ("jct", "makespan", "throughput", "efficiency")


def root_job(name: str, steps: float, power: float) -> Work:
    """k^power steps a second on k devices."""
    speed = TableSpeed(tables={"T4": tuple((SIZES**power * (SIZES > 0)).tolist())})
    request = JobRequest(name=name, submitted_s=0.0, requested_devices=1, max_devices=8, kinds=("T4",))
    return Work(request, speed, steps)


#: some short ones that scale badly, and two long ones, which need devices from the start if all is to be over soon
JOBS = [root_job(f"short-{i}", 600.0 + 100 * i, 0.5 + 0.1 * i) for i in range(3)]
JOBS += [root_job("long", 5000.0, 0.6), root_job("wide", 2000.0, 0.9)]


def outcome(objective: Objective, declared: bool) -> dict[str, float]:
    held, rates = [], []

    def check(controller: Controller, decisions: list[Decision]) -> None:
        running = controller.running.values()
        held.append(sum(view.num_devices for view in running))
        rates.append(sum(view.speed.rate(shape_of(CLUSTER, view.allocation)) for view in running))

    interval_s = 20.0
    policy = make_policy("flow", declared=declared)
    result = run(CLUSTER, policy, JOBS, interval_s=interval_s, check=check, max_rounds=3000, objective=objective)
    assert len(result.ended) == len(JOBS)
    return {
        "jct": float(np.mean(list(result.ended.values()))),
        "makespan": max(result.ended.values()),
        "throughput": -rates[0],
        "efficiency": sum(held) * interval_s,  # device-seconds for the same work
    }


@pytest.mark.parametrize("declared", [True, False])
def test_each_objective_is_best_at_its_own(declared: bool) -> None:
    found = {objective: outcome(objective, declared) for objective in OBJECTIVES}
    for objective, mine in found.items():
        # Without declared work nobody knows what is short and what is long.
        if declared or objective in ("throughput", "efficiency"):
            assert mine[objective] == min(other[objective] for other in found.values()), (objective, found)
    figures = {objective: tuple(mine.values()) for objective, mine in found.items()}
    assert len(set(figures.values())) == len(figures), "no two objectives do the same"


def test_unknown_ends_are_shared_with_caution() -> None:
    job = DeviceOptions(counts=np.arange(4)[:, None], rates=np.array([0.0, 2.0, 4.0, 6.0]))
    values, worth = option_values("jct", [job], [np.arange(4.0)], [100.0], 3, all_declared=False, interval_s=60.0)
    assert worth.tolist() == [0.01]
    assert values[0].tolist() == pytest.approx([0.0, *(0.02 * np.sqrt([1, 2, 3]))])


def test_who_has_had_little_comes_first_if_nothing_is_declared() -> None:
    jobs = [root_job("old", 1e6, 1.0), replace_time(root_job("new", 1e6, 1.0), 3600.0)]
    result = run(CLUSTER, make_policy("flow", declared=False), jobs, max_rounds=62)
    sizes = {name: view.num_devices for name, view in result.controller.running.items()}
    assert sizes["new"] > sizes["old"] > 0


def test_what_was_not_measured_is_doubted() -> None:
    def size_of_proven(doubt: float) -> int:
        controller = Controller(CLUSTER, make_policy("flow", declared=False, doubt=doubt))
        for name, proven in (("guessed", 2), ("proven", 8)):
            speed = GoodputSpeed(
                fixed_s=0.0,
                per_sample_s=1.0,
                communication=Communication(local_fixed_s=3.0),
                initial_batch=8,
                max_batch=64,
                max_local_batch=64,
                noise_scale=1e3,
                proven_devices=proven,
            )
            request = JobRequest(name=name, submitted_s=0.0, requested_devices=1, max_devices=8, kinds=("T4",))
            controller.feed(JobSubmitted(request, speed), 0.0)
        controller.decide(0.0)
        return controller.job("proven").num_devices

    assert size_of_proven(0.0) == 4
    assert size_of_proven(0.2) > 4


def replace_time(job: Work, at: float) -> Work:
    return Work(replace(job.request, submitted_s=at), job.speed, job.steps)
