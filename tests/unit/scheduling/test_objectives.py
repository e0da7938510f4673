"""`objective` changes what `flow` does, and each one is best at what it is for."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import Decision, JobRequest, Objective, shape_of
from isoscale.scheduling.throughput import TableSpeed
from tests.unit.scheduling.rounds import Work, cluster_of, run

CLUSTER = cluster_of(("T4", 1, 8))
SIZES = np.arange(9)


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
    found = {objective: outcome(objective, declared) for objective in get_args(Objective)}
    for objective, mine in found.items():
        # Without declared work nobody knows what is short and what is long.
        if declared or objective in ("throughput", "efficiency"):
            assert mine[objective] == min(other[objective] for other in found.values()), (objective, found)
    figures = {objective: tuple(mine.values()) for objective, mine in found.items()}
    assert len(set(figures.values())) == len(figures), "no two objectives do the same"
