"""Orders of owners that reach the engine together with, or before, what they are about."""

from __future__ import annotations

from isoscale.cluster.engine import Engine, _Told
from isoscale.cluster.values import Wanted
from tests.unit.cluster.conftest import World
from tests.unit.cluster.test_engine_rounds import START, an_engine


def want(world: World, job: str, wanted: Wanted) -> None:
    """Written down, and nobody told."""
    with world.service.store.write(now=START) as tx:
        tx.event("asked", tx.want(job, wanted))


def an_idle_engine(world: World) -> Engine:
    return an_engine(world, lambda: START, 0.0)


def test_a_job_that_is_cancelled_before_the_engine_has_heard_of_it(world: World) -> None:
    world.submit()
    engine = an_idle_engine(world)
    want(world, "j1", "cancel")
    engine.turn([_Told("submitted", "j1"), _Told("cancel", "j1"), _Told("changed", "j1")])
    found = world.service.store.job("j1")
    assert found is not None
    assert found.state == "cancelled"
    assert "j1" not in engine._driver
    assert not engine.live


def test_a_job_that_is_paused_before_the_engine_has_heard_of_it(world: World) -> None:
    world.submit()
    engine = an_idle_engine(world)
    want(world, "j1", "pause")
    engine.turn([_Told("submitted", "j1"), _Told("pause", "j1")])
    assert engine._driver.standing("j1").is_paused_by_owner
    want(world, "j1", "run")
    engine.turn([_Told("run", "j1")])
    assert not engine._driver.standing("j1").is_paused_by_owner


def test_a_job_that_is_paused_while_it_waits_for_another_stays_paused(world: World) -> None:
    world.submit()
    world.submit(after=["j1"])
    engine = an_idle_engine(world)
    engine.turn([_Told("submitted", "j1"), _Told("submitted", "j2")])
    want(world, "j2", "pause")
    engine.turn([_Told("pause", "j2")])
    assert "j2" not in engine._driver
    with world.service.store.write(now=START) as tx:
        tx.event("done", tx.set_state("j1", "finished", ended_s=START))
    engine.tell_later("j2")
    engine.turn(engine._next_messages())
    assert engine._driver.standing("j2").is_paused_by_owner
