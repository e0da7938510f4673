"""Every policy in random worlds: it finishes what can be finished, keeps the rules, repeats itself, idles nothing.

The checker is what `isoscale policies --check` runs for a policy from outside; here it must also find what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import pytest

from isoscale.scheduling.policy import Policy, policy_names
from isoscale.scheduling.state import ClusterState, Decision, Objective, Pause, Resume, Start
from isoscale.sim.checking import check_policy, random_situation
from isoscale.sim.engine import Simulation
from isoscale.sim.run import parse_policies

#: those that keep a job on the kind it prefers leave other kinds idle by intent
ON_ONE_KIND = ("easyscale-homo",)
VARIANTS = (
    "pollux(kinds=preferred)",
    "optimus(kinds=preferred)",
    "tiresias(kinds=preferred)",
    "elastic-tiresias(kinds=preferred)",
    "easyscale(kinds=preferred)",
    "easyscale(blind=true)",
    "autoscaler(kinds=preferred,paper=true)",
    "autoscaler(paper=true)",
    "autoscaler(mode=drop)",
    "srtf(kinds=choose)",
    "flow(declared=false)",
    "flow(mix=false)",
    "flow(trial_s=300)",
    "flow(pause_s=3)",
    "fifo-backfill(run_s=3600)",
    "deadline(late=reject)",
)
OBJECTIVES: tuple[Objective, ...] = tuple(one for one in get_args(Objective) if one != "jct")


def maker(name: str) -> Callable[[], Policy]:
    [(_, make)] = parse_policies(name)
    return make


@pytest.mark.parametrize("name", policy_names())
def test_policies_keep_the_rules_and_finish(name: str) -> None:
    broken = {seed: check_policy(maker(name), seed, idling=name not in ON_ONE_KIND) for seed in range(25)}
    assert not any(broken.values()), {seed: problems[:3] for seed, problems in broken.items() if problems}


@pytest.mark.parametrize("name", VARIANTS)
def test_their_variants_do(name: str) -> None:
    broken = {seed: check_policy(maker(name), seed, idling=False) for seed in range(100, 110)}
    assert not any(broken.values()), {seed: problems[:3] for seed, problems in broken.items() if problems}


def test_worlds_differ_and_are_hard_enough() -> None:
    """Or the checks would guard nothing."""
    worlds = [random_situation(seed) for seed in range(60)]
    assert {len(world.cluster.kinds) for world in worlds} == {1, 2, 3, 4}
    assert len({world.options.interval_s for world in worlds}) == 4
    restarts = [job.request.restart_s or 0.0 for world in worlds for job in world.jobs]
    assert max(restarts) > 60.0
    assert min(restarts) == 0.0
    assert any(job.request.min_devices > 1 for world in worlds for job in world.jobs)
    deadlines = [job.request.deadline_s is not None for world in worlds for job in world.jobs]
    assert 0.3 < sum(deadlines) / len(deadlines) < 0.7
    assert random_situation(3).jobs[0].request == random_situation(3).jobs[0].request


class Outsider:
    """Gives the first waiting job what it asked for on one node; `fault` makes it wrong in one way."""

    interval_s, oracle, watches_time, gang = 60.0, False, True, False

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self.gang = fault == "few"
        self._rounds = 0

    def decide(self, state: ClusterState) -> list[Decision]:
        self._rounds += 1
        if self._fault == "pauses":
            paused: list[Decision] = [Pause(name) for name in state.running]
            if paused:
                return paused
        free = dict(enumerate(state.free))
        decisions: list[Decision] = []
        for job in state.waiting.values():
            wanted = 1 if self._fault == "few" else max(1, job.request.min_devices)
            kinds = state.cluster.kinds if self._fault == "kinds" else job.request.kinds
            for node, count in free.items():
                if count >= wanted and state.cluster.nodes[node].kind in kinds:
                    given = count + 1 if self._fault == "greedy" else wanted
                    free[node] -= wanted
                    make = Start if job.status == "pending" else Resume
                    decisions.append(make(job.name, ((node, given),)))
                    break
            if self._fault == "slow":
                break
        return decisions


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("pauses", "never ended"),
        ("greedy", "more devices of node"),
        ("few", "asked for"),
        ("slow", "waits beside free devices"),
    ],
)
def test_a_policy_from_outside_is_told_what_it_broke(fault: str, words: str) -> None:
    found = [
        problem
        for seed in range(3 if fault == "pauses" else 12)
        for problem in check_policy(lambda: Outsider(fault), seed)
    ]
    assert any(words in problem for problem in found), found[:5]


def test_a_policy_that_does_not_repeat_itself_is_found() -> None:
    calls = iter(range(10**6))

    class Moody(Outsider):
        def decide(self, state: ClusterState) -> list[Decision]:
            return [] if next(calls) % 7 == 3 else super().decide(state)

    found = [problem for seed in range(6) for problem in check_policy(lambda: Moody(""), seed)]
    assert any("run again" in problem for problem in found)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_whatever_the_objective_the_rules_hold(objective: Objective) -> None:
    """Under `cost` prices double and halve from hour to hour: dear hours are waited out, not for ever. `efficiency`
    leaves devices idle on which a job would be much slower than elsewhere."""
    idling = objective not in ("cost", "efficiency")
    broken = {seed: check_policy(maker("flow"), seed, idling=idling, objective=objective) for seed in range(12)}
    assert not any(broken.values()), {seed: problems[:3] for seed, problems in broken.items() if problems}


def test_objectives_and_deadlines_change_what_happens() -> None:
    """Or the two checks above would guard the same schedule again."""

    def ends(name: str, objective: Objective) -> list[float]:
        found: list[float] = []
        for seed in range(12):
            world = random_situation(seed, objective)
            found += Simulation(world.jobs, world.cluster, maker(name)(), world.options).run().finished_s
        return found

    schedules = {objective: ends("flow", objective) for objective in get_args(Objective)}
    assert len({repr(schedule) for schedule in schedules.values()}) == len(schedules)
    assert any(map(math.isnan, ends("deadline(late=reject)", "jct"))), "nobody was refused"
