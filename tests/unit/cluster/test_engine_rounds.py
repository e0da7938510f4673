"""A live clock and rounds: a decision happens in its round, once, however late the engine wakes up."""

from __future__ import annotations

from collections.abc import Callable

from isoscale.cluster.engine import Engine
from isoscale.scheduling.controller import Controller
from isoscale.scheduling.driver import Driver, device_names
from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import Cluster, Node
from tests.unit.cluster.conftest import World

START = 1_794_967_513.6415522


def an_engine(world: World, now: Callable[[], float], interval_s: float) -> Engine:
    cluster = Cluster(nodes=(Node(name="local", kind="cpu", num_devices=2),))
    driver = Driver(Controller(cluster, make_policy("easyscale"), interval_s=interval_s), device_names(cluster))
    store, state = world.service.store, world.service.state
    return Engine(
        store, state, driver, device_names(cluster), world.service.desk.codes, now=now, policy="easyscale", quotas={}
    )


def test_rounds_of_a_clock_that_counts_from_1970(world: World) -> None:
    world.submit()
    record = world.service.store.job("j1")
    assert record is not None
    for interval_s in (1.0, 0.3, 60.0):
        at = [START]
        engine = an_engine(world, lambda at=at: at[0], interval_s)
        controller = engine._driver.controller
        controller.policy.watches_time = True
        engine.call(lambda engine: engine.admit(record))
        engine.turn(engine._next_messages())
        decided: list[int] = []
        for late_s in (0.0, 0.0004, 0.02, 0.1, 7.3 * interval_s, 0.0):
            before = controller.num_rounds
            assert START <= engine._due_s <= at[0] + interval_s + 1e-6
            at[0] = engine._due_s + late_s
            engine.turn([])
            decided.append(controller.num_rounds - before)
            assert at[0] - interval_s <= engine._turned_s <= at[0]
        # One decision for each wake-up, missed rounds or not, and none too many.
        assert decided == [1] * 6, interval_s
