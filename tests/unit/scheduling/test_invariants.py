"""What every policy must keep, whatever the jobs: capacity, gangs, bounds, kinds, an end for everybody, determinism."""

from __future__ import annotations

import copy
import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.policy import make_policy, policy_names
from isoscale.scheduling.state import Decision, Reject
from isoscale.sim.run import parse_policies
from tests.unit.scheduling.rounds import ELASTIC, RIGID, Work, cluster_of, run, work, workloads

CLUSTER = cluster_of(("V100", 2, 3), ("T4", 1, 4))


def held_per_node(controller: Controller) -> list[int]:
    held = [0] * len(controller.cluster.nodes)
    for job in controller.running.values():
        for node, count in job.allocation:
            held[node] += count
    return held


def keeps_the_rules(controller: Controller, decisions: list[Decision]) -> None:
    cluster = controller.cluster
    assert all(held <= node.num_devices for held, node in zip(held_per_node(controller), cluster.nodes, strict=True))
    assert len({decision.job for decision in decisions}) == len(decisions)
    for job in controller.running.values():
        nodes = [node for node, _ in job.allocation]
        kinds = {cluster.nodes[node].kind for node in nodes}
        assert nodes == sorted(set(nodes))
        assert all(count > 0 for _, count in job.allocation)
        assert max(1, job.request.min_devices) <= job.num_devices <= job.request.max_devices
        assert kinds <= set(job.request.kinds)
        assert len(kinds) == 1 or job.request.mixes_kinds


def keeps_gangs(controller: Controller, decisions: list[Decision]) -> None:
    keeps_the_rules(controller, decisions)
    for job in controller.running.values():
        kinds = {controller.cluster.nodes[node].kind for node, _ in job.allocation}
        assert job.num_devices == job.request.requested_devices
        assert len(kinds) == 1


def keeps_preferred_kinds(controller: Controller, decisions: list[Decision]) -> None:
    keeps_gangs(controller, decisions)
    for job in controller.running.values():
        assert {controller.cluster.nodes[node].kind for node, _ in job.allocation} == {job.request.kinds[0]}


@pytest.mark.parametrize("name", [*RIGID, "tiresias(kinds=preferred)", "srtf(kinds=choose)"])
@settings(max_examples=12, deadline=None)
@given(jobs=workloads())
def test_rigid_policies_keep_gangs_and_finish(name: str, jobs: list[Work]) -> None:
    chooses = name in ("tiresias", "srtf(kinds=choose)")
    [(_, make)] = parse_policies(name)
    result = run(CLUSTER, make(), jobs, check=keeps_gangs if chooses else keeps_preferred_kinds, max_rounds=1500)
    assert set(result.ended) == {job.request.name for job in jobs}
    assert held_per_node(result.controller) == [0, 0, 0]


@pytest.mark.parametrize("name", [*ELASTIC, "fixed-batch-max", "fixed-batch-min", "fixed-batch-random"])
@settings(max_examples=12, deadline=None)
@given(jobs=workloads())
def test_elastic_policies_keep_bounds_and_finish(name: str, jobs: list[Work]) -> None:
    result = run(CLUSTER, make_policy(name), jobs, check=keeps_the_rules, max_rounds=1500)
    assert set(result.ended) == {job.request.name for job in jobs}


@pytest.mark.parametrize("name", sorted(policy_names()))
@settings(max_examples=6, deadline=None)
@given(jobs=workloads(), seed=st.integers(0, 1000), quotas=st.sampled_from([{}, {"a": 2, "b": 3}, {"a": 1, "b": 0}]))
def test_decisions_repeat_and_do_not_depend_on_the_order_of_mappings(
    name: str, jobs: list[Work], seed: int, quotas: dict[str, int]
) -> None:
    class Shuffled:
        """Shows the policy the same state with its unordered mappings in another order."""

        def __init__(self) -> None:
            self._policy = make_policy(name)
            self.interval_s, self.oracle = self._policy.interval_s, self._policy.oracle
            self.watches_time, self.gang = self._policy.watches_time, self._policy.gang
            self._random = random.Random(seed)

        def __copy__(self):  # type: ignore[no-untyped-def]
            other = Shuffled()
            other._policy, other._random = copy.copy(self._policy), self._random
            return other

        def decide(self, state):  # type: ignore[no-untyped-def]
            def shuffled(mapping):  # type: ignore[no-untyped-def]
                items = list(mapping.items())
                self._random.shuffle(items)
                return dict(items)

            state = dataclasses.replace(state, running=shuffled(state.running), remaining=shuffled(state.remaining))
            return self._policy.decide(state)

    def told(policy):  # type: ignore[no-untyped-def]
        rounds = run(CLUSTER, policy, jobs, quotas=quotas).rounds
        return [(now, sorted(map(repr, decisions))) for now, decisions in rounds]

    assert told(make_policy(name)) == told(make_policy(name)) == told(Shuffled())


@settings(max_examples=40, deadline=None)
@given(jobs=workloads(), name=st.sampled_from(ELASTIC))
def test_elastic_policies_leave_no_job_waiting_beside_a_free_device(name: str, jobs: list[Work]) -> None:
    """Not for longer than a round: EasyScale may free a device when it lets another job grow, after it gave starts."""
    before: set[str] = set()

    def check(controller: Controller, decisions: list[Decision]) -> None:
        state = controller.state(0.0)
        if any(isinstance(decision, Reject) for decision in decisions):
            return
        beside: set[str] = set()
        for job in state.waiting.values():
            kinds = job.request.kinds[:1] if name == "easyscale-homo" else job.request.kinds
            if any(state.free_of[kind] >= max(1, job.request.min_devices) for kind in kinds):
                beside.add(job.name)
        assert not before & beside, (before & beside, state.free_of)
        assert name in ("easyscale", "easyscale-homo") or not beside, (beside, state.free_of)
        before.clear()
        before.update(beside)

    run(CLUSTER, make_policy(name), jobs, check=check)


def test_nobody_starves_under_flow() -> None:
    """A long job among an endless stream of short ones waits for its patience, and no longer."""
    cluster = cluster_of(("T4", 1, 1))
    jobs = [work("long", workers=1, steps=5000)]
    jobs += [work(f"short-{i}", at=60.0 * i, workers=1, steps=55) for i in range(200)]
    patient = run(cluster, make_policy("flow"), jobs, max_rounds=180)
    assert "long" not in patient.ended
    assert not any(decision.job == "long" for _, decisions in patient.rounds[1:] for decision in decisions)
    relieved = run(cluster, make_policy("flow", patience_s=1800.0), jobs, max_rounds=180)
    first = next(now for now, decisions in relieved.rounds[1:] for d in decisions if d.job == "long")
    assert first == 1800.0
