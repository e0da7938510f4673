"""The spot market against arithmetic, and through the simulator."""

from __future__ import annotations

import math

import numpy as np
import pytest

from isoscale.errors import UserError
from isoscale.scheduling.policy import make_policy
from isoscale.sim.costs import PRESETS, Costs
from isoscale.sim.disturbances import Lending
from isoscale.sim.engine import Options, Simulation
from isoscale.sim.market import SpotMarket, dollars, parse_market, price_steps, takings
from isoscale.sim.result import details
from isoscale.sim.run import Experiment
from tests.unit.scheduling.rounds import cluster_of
from tests.unit.sim.worlds_of_one import Scripted, cluster, first_fit, job, run

CLUSTER = cluster_of(("V100", 4, 2), ("T4", 10, 4))
MARKET = SpotMarket(on_demand={"V100": 2.5, "T4": 0.5})
WEEK_S = 7 * 86_400.0


def test_prices_wander_about_the_discount_and_never_above_on_demand() -> None:
    prices = np.array([now["T4"] for _, now in price_steps(MARKET, CLUSTER, 20 * WEEK_S)])
    assert prices.max() <= 0.5
    assert prices.min() > 0
    assert prices.mean() == pytest.approx(0.35 * 0.5, rel=0.15)
    assert np.log(prices[prices < 0.5]).std() == pytest.approx(0.4, rel=0.2)
    again = price_steps(MARKET, cluster_of(("T4", 1, 1)), 20 * WEEK_S)
    assert [now["T4"] for _, now in again] == prices.tolist(), "a kind has its own draws"


def test_devices_are_taken_while_prices_are_high() -> None:
    prices, taken = price_steps(MARKET, CLUSTER, WEEK_S), takings(MARKET, CLUSTER, WEEK_S)
    assert taken, "in a week some are"
    at = dict(prices)
    usual = np.mean([now["V100"] for _, now in prices])
    first = [one for one in taken if CLUSTER.nodes[one.node].kind == "V100" and one.devices == 0]
    assert all(at[one.t]["V100"] > usual for one in first)
    lent = {node: CLUSTER.nodes[node].num_devices for node in range(len(CLUSTER.nodes))}
    for one in taken:
        assert one.devices != lent[one.node], "changes only"
        lent[one.node] = one.devices
    assert not takings(SpotMarket(on_demand={"V100": 1, "T4": 1}, volatility=0.0), CLUSTER, WEEK_S)


def test_a_kind_without_a_price_and_bad_settings_are_named() -> None:
    with pytest.raises(UserError, match="T4"):
        price_steps(SpotMarket(on_demand={"V100": 1.0}), CLUSTER, 1.0)
    assert parse_market("V100=2,T4=0.5:notice_s=30") == SpotMarket(on_demand={"V100": 2.0, "T4": 0.5}, notice_s=30.0)
    for text in ("", "V100", "V100=x", "V100=1:step_s=0", "V100=1:colour=2", "V100=-1"):
        with pytest.raises(UserError, match="--market"):
            parse_market(text)


def test_what_is_held_is_paid_at_the_prices_of_the_time() -> None:
    options = Options(prices=[(0.0, {"T4": 36.0}), (50.0, {"T4": 72.0})])
    outcome, recorder = run([job("a", 10.0, 100.0, devices=2)], cluster(4), Scripted(first_fit), options)
    # Two devices from 10 to 60 s: 40 s at a cent a second, 10 s at two.
    assert outcome.finished_s == [60.0]
    assert details(outcome).dollars == pytest.approx(2 * (40 * 0.01 + 10 * 0.02))
    assert details(outcome).dollars_per_job == details(outcome).dollars
    assert [e["t"] for e in recorder.events if e["event"] == "prices_changed"] == [10.0, 50.0]
    assert dollars([], options.prices) == {} == dollars([(0, 0.0, 1.0, "T4", 1)], [])


def test_a_notice_that_is_too_short_costs_the_work_since_the_checkpoint() -> None:
    def finished(notice_s: float) -> float:
        costs = Costs(release_s=20.0, checkpoint_every_s=50.0)
        taken = [Lending(60.0, 0, 0), Lending(100.0, 0, 1)]
        options = Options(costs=costs, lendings=taken, notice_s=notice_s, prices=[(0.0, {"T4": 1.0})])
        return run([job("a", 0.0, 100.0)], cluster(1), Scripted(first_fit), options)[0].finished_s[0]

    assert finished(30.0) == 140.0
    assert 140.0 < finished(10.0) < 190.0


@pytest.mark.parametrize("costs", ["stop-free", "stop-resume"])
def test_time_is_bought_with_money(costs: str) -> None:
    experiment = Experiment(
        trace="philly:jobs=40,days=0.1,largest=8,hours=2",
        cluster="4x(V100*2)+10x(T4*4)",
        world="isoscale.sim.worlds.mixed:Mixed",
        options=Options(costs=PRESETS[costs], interval_s=60.0, objective="cost"),
        market=MARKET,
    )
    jobs = experiment.jobs(0)
    found = []
    for worth in (0.1, 10.0):
        outcome = experiment.simulate(make_policy("flow", hour_worth=worth), jobs, 0)
        assert not any(map(math.isnan, outcome.finished_s))
        found.append((details(outcome).dollars, sum(outcome.finished_s)))
    (cheap, slow), (dear, fast) = found
    assert cheap < dear
    assert fast < slow


def test_a_simulation_ends_though_nobody_can_pay() -> None:
    options = Options(prices=[(0.0, {"T4": 1.0}), (60.0, {"T4": 1e9})], objective="cost", interval_s=60.0)
    jobs = [job("a", 0.0, 1e5), job("b", 61.0, 10.0)]
    outcome = Simulation(jobs, cluster(2), make_policy("flow", hour_worth=1e-9), options).run()
    assert outcome.end_s < math.inf
