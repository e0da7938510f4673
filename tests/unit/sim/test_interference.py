"""Neighbours by pairs of applications, against arithmetic done by hand."""

from __future__ import annotations

import dataclasses

import pytest

from isoscale.scheduling.policy import make_policy
from isoscale.sim.costs import Costs
from isoscale.sim.engine import Options
from isoscale.sim.interference import Interference, PairInterference
from isoscale.sim.job import SimJob
from isoscale.sim.run import Experiment
from tests.unit.sim.worlds_of_one import Scripted, cluster, first_fit, job, run

PAIRS = PairInterference(shares={("heavy", "heavy"): 0.5, ("light", "heavy"): 0.4, ("heavy", "light"): 0.8}, start=2.0)
WORLD = "tests.unit.sim.test_interference:Street"


class Street:
    """A world whose jobs are all heavy, and disturb each other."""

    interference = PAIRS

    def jobs(self, trace: list[object], cluster: object, *, seed: int = 0) -> list[SimJob]:
        return [of("heavy", f"job-{number}", work=100.0) for number, _ in enumerate(trace)]


def of(application: str, name: str, submit_s: float = 0.0, work: float = 100.0) -> SimJob:
    made = job(name, submit_s, work)
    return dataclasses.replace(made, request=dataclasses.replace(made.request, application=application))


def finished(jobs: list[SimJob], devices: int, **costs: float) -> list[float]:
    options = Options(interference=PAIRS, costs=Costs(**costs))  # type: ignore[arg-type]
    outcome, _ = run(jobs, cluster(devices), Scripted(first_fit), options)
    return list(outcome.finished_s)


def test_each_of_a_pair_suffers_in_its_own_way() -> None:
    # b: 20 / 0.4 = 50 s; a: 40 work in those 50 s, the last 60 alone.
    assert finished([of("heavy", "a"), of("light", "b", work=20.0)], 2) == pytest.approx([110.0, 50.0])


def test_shares_of_several_neighbours_multiply_and_unknown_pairs_cost_nothing() -> None:
    jobs = [of("heavy", "a", work=10.0), of("heavy", "b", work=10.0), of("light", "c", work=2.0), of("new", "d")]
    # c at 0.16: 12.5 s; a and b at 0.4 meanwhile: 5 work, then at 0.5.
    assert finished(jobs, 4) == pytest.approx([22.5, 22.5, 12.5, 100.0])


def test_a_start_beside_a_neighbour_takes_longer_whoever_came_first() -> None:
    jobs = [of("new", "a", work=100.0), of("new", "b", 10.0, work=10.0)]
    # b starts 8 s beside a, which trains. Of a's start nobody was there.
    assert finished(jobs, 2, start_s=4.0) == pytest.approx([104.0, 28.0])
    # Both at once: both wait.
    assert finished([of("new", "a"), of("new", "b")], 2, start_s=4.0) == pytest.approx([108.0, 108.0])


def test_a_neighbour_that_comes_or_goes_changes_what_is_left_of_a_start() -> None:
    jobs = [of("new", "a", work=10.0), of("new", "b", 2.0, work=1.0)]
    # a: 2 s alone, then the other 2 take 4: it trains from 6 on. b: 8 s beside a.
    assert finished(jobs, 2, start_s=4.0) == pytest.approx([16.0, 11.0])
    short = [of("new", "a", work=1.0), of("new", "b", 2.0, work=10.0)]
    # a is over at 7; of b's 8 s five have gone, and the other 3 take 1.5 alone.
    assert finished(short, 2, start_s=4.0) == pytest.approx([7.0, 18.5])


def test_what_slows_nobody_down_is_not_asked() -> None:
    assert PAIRS.matters
    assert Interference(share=0.1).matters
    assert not Interference().matters
    assert not PairInterference(shares={("a", "b"): 1.0}).matters


def test_a_world_may_say_how_its_jobs_disturb_each_other() -> None:
    experiment = Experiment(trace="philly:jobs=2,days=0.0001,largest=1", cluster="T4*2", world=WORLD)
    outcome = experiment.simulate(make_policy("fifo"), experiment.jobs(0), seed=0)
    assert list(outcome.finished_s) == pytest.approx([200.0, 200.0])
    assert experiment.interference().in_words().startswith("by 3 pairs of applications; a start takes 2.00 times")
    asked = dataclasses.replace(experiment, options=Options(interference=Interference(share=0.2)))
    assert asked.interference() == Interference(share=0.2)
