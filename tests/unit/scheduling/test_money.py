"""Under `--objective cost` flow weighs dollars against waiting."""

from __future__ import annotations

import numpy as np
import pytest

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.events import JobSubmitted, PricesChanged
from isoscale.scheduling.money import Prices, worth_in_dollars
from isoscale.scheduling.options import DeviceOptions
from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import JobRequest, held_by_kind
from isoscale.scheduling.throughput import TableSpeed
from tests.unit.scheduling.rounds import cluster_of

CLUSTER = cluster_of(("V100", 1, 8), ("T4", 1, 8))


def test_usual_prices_are_means_over_time() -> None:
    prices = Prices()
    prices.change({"T4": 1.0}, 100.0)
    assert prices.usual(100.0) == {"T4": 1.0}
    prices.change({"T4": 4.0}, 200.0)
    assert prices.now == {"T4": 4.0}
    assert prices.usual(250.0) == {"T4": pytest.approx(2.0)}


def test_work_is_worth_what_it_costs_at_usual_prices_with_the_owners_time() -> None:
    options = DeviceOptions(counts=np.array([[0], [1], [2]]), rates=np.array([0.0, 1.0, 1.5]))
    usual = np.array([0.0, 1.0, 2.0]) / 3600
    # An hour worth 1: (1 + 1) / 1 against (1 + 2) / 1.5, dollars for an hour's work of one device: equal.
    assert worth_in_dollars(options, usual, 1.0, 0.0) * 3600 == pytest.approx(2.0)
    # Worth 10: two devices are cheaper, 12 / 1.5.
    assert worth_in_dollars(options, usual, 10.0, 0.0) * 3600 == pytest.approx(8.0)
    # Scarce devices make it worth more.
    assert worth_in_dollars(options, usual, 1.0, 5.0) * 3600 == pytest.approx(5.0)


def held(hour_worth: float, usual: dict[str, float], now: dict[str, float]) -> dict[str, int]:
    """Devices by kind of one job that scales well, is 2.5 times as fast on a V100, and wants up to 8."""
    controller = Controller(CLUSTER, make_policy("flow", hour_worth=hour_worth), objective="cost", interval_s=60.0)
    rates = tuple(k**0.8 for k in range(9))
    speed = TableSpeed(tables={"T4": rates, "V100": tuple(2.5 * rate for rate in rates)})
    request = JobRequest(name="a", submitted_s=0.0, requested_devices=1, max_devices=8, kinds=("V100", "T4"))
    controller.feed(PricesChanged(usual), 0.0)
    controller.feed(JobSubmitted(request, speed, 1e6), 86_399.0)
    controller.feed(PricesChanged(now), 86_400.0)
    controller.decide(86_400.0)
    return held_by_kind(CLUSTER, controller.job("a").allocation)


def test_more_devices_the_more_an_hour_is_worth_and_cheap_kinds_while_it_is_worth_little() -> None:
    usual = {"V100": 2.5, "T4": 0.5}
    assert set(held(0.01, usual, usual)) == {"T4"}, "five times the price for 2.5 times the speed"
    assert sum(held(0.01, usual, usual).values()) == 1
    assert held(1000.0, usual, usual) == {"V100": 8}


def test_a_job_waits_for_usual_prices_unless_its_time_is_worth_more() -> None:
    usual, dear = {"V100": 1.0, "T4": 0.5}, {"V100": 4.0, "T4": 4.0}
    assert held(0.5, usual, dear) == {}
    assert held(100.0, usual, dear) != {}
    assert sum(held(0.5, usual, {"V100": 0.1, "T4": 0.5}).values()) > sum(held(0.5, usual, usual).values())
