"""Under `--objective fairness` nobody falls further behind a fair share than was promised."""

from __future__ import annotations

import copy

import pytest

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.fairness import FairShares
from isoscale.scheduling.policy import Policy, make_policy
from isoscale.scheduling.state import ClusterState, Decision, Objective
from tests.unit.scheduling.rounds import cluster_of, run, work

CLUSTER = cluster_of(("T4", 1, 8))


class Watched:
    """A policy, and how far it let the job `long` fall behind."""

    interval_s, oracle, watches_time, gang = 60.0, False, True, False

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._shares = FairShares()
        self.worst = 0.0

    def decide(self, state: ClusterState) -> list[Decision]:
        self._shares = self._shares.after(state)
        share = self._shares.shares.get("long")
        if share is not None and state.now >= 600.0:
            self.worst = max(self.worst, share.fair / max(1e-9, share.done))
        return self._policy.decide(state)


def behind(objective: Objective, bound: float = 1.5) -> float:
    """One long job, and short ones that keep coming; how far the long one fell behind its fair share after 10 minutes.

    A factor: the fair share's work over its own, the worst of all rounds.
    """
    jobs = [work("long", workers=4, steps=2000.0)]
    jobs += [work(f"short-{n}", at=100.0 * n, workers=8, steps=100.0) for n in range(40)]
    watched = Watched(make_policy("flow", bound=bound))
    result = run(CLUSTER, watched, jobs, interval_s=50.0, objective=objective)
    assert len(result.ended) == len(jobs)
    return watched.worst


def test_a_long_job_does_not_fall_behind_short_ones_further_than_was_promised() -> None:
    assert behind("jct") > 3.0
    assert behind("fairness", 1.3) <= 1.3
    assert 1.3 < behind("fairness", 2.0) <= 2.0


def test_a_share_is_less_as_others_ask_for_more() -> None:
    seen: list[FairShares] = []

    def look(controller: Controller, decisions: list[Decision]) -> None:
        last = seen[-1] if seen else FairShares()
        seen.append(last.after(controller.state(60.0 * len(seen))))

    jobs = [work("a", workers=8, steps=1e6), work("b", at=120.0, workers=8, steps=1e6)]
    run(CLUSTER, make_policy("flow"), jobs, max_rounds=5, check=look)
    # 8 logical workers on 8 devices: a step a second; from 120 s on half of that.
    fair = [round(one.shares["a"].fair, 6) for one in seen]
    assert fair == [0.0, 60.0, 90.0, 120.0, 150.0]
    assert seen[-1].shares["b"].fair == pytest.approx(60.0)


def test_needs_are_those_of_who_falls_behind() -> None:
    jobs = [work("runs", workers=8, steps=1e6), work("waits", workers=8, steps=1e6)]
    states = []
    run(CLUSTER, make_policy("fifo"), jobs, max_rounds=4, check=lambda controller, _: states.append(controller))
    shares = FairShares().after(states[0].state(0.0)).after(states[0].state(600.0))
    needs = shares.needs(1.5)
    assert set(needs) == {"waits"}
    assert needs["waits"] > 0.5 / 1.5, "its share, and something to catch up"


def test_a_question_to_a_copy_does_not_count() -> None:
    policy = make_policy("flow")
    controller = Controller(CLUSTER, policy, objective="fairness")
    before = policy._shares  # type: ignore[attr-defined]
    copy.copy(policy).decide(controller.state(60.0))
    assert policy._shares is before  # type: ignore[attr-defined]
