"""A job is over, the service died before it had ended the last of its processes: the next one does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from isoscale.backends.host_id import machine_id
from isoscale.cluster.outcome import Outcome
from isoscale.cluster.process import CoordinatorProcess
from isoscale.cluster.recording import load_standing
from isoscale.cluster.run import Ended
from isoscale.scheduling.driving import Standing, StateChanged
from tests.unit.cluster.conftest import World
from tests.unit.cluster.test_engine_rounds import START, an_engine
from tests.unit.cluster.test_learned import adopt
from tests.unit.cluster.test_run import sleeper

__all__ = ["sleeper"]

DEVICE = "local/cpu/0"


def test_what_lives_of_a_job_that_is_over_is_ended_before_anything_is_decided(
    make_world: Callable[..., World], sleeper: CoordinatorProcess
) -> None:
    world = make_world()
    world.submit()
    while "j1" not in world.service.picture().jobs:  # its own engine writes once, and not after this one
        time.sleep(0.01)
    engine = an_engine(world, lambda: START, 1.0)
    adopt(world, engine, "j1", DEVICE)
    engine._recorder.record([StateChanged("j1", "queued", "starting", "policy")], engine.live, START)
    control = world.service.state / "jobs" / "j1" / "control"
    control.mkdir(exist_ok=True)
    executor = {"pid": sleeper.pid, "born": sleeper.born, "machine": machine_id(), "device": DEVICE}
    (control / "executors.json").write_text(json.dumps({"0": executor}))
    engine.hands.perform = lambda instruction: None  # type: ignore[method-assign]  # it dies before it gets to it
    engine.turn([Ended("j1", 1, Outcome(kind="failed", error="SyntaxError: x", error_class="script"), (DEVICE,))])
    over = world.service.store.job("j1")
    assert over is not None
    assert over.state == "failed"
    assert (load_standing(over.standing) or Standing()).holds == (DEVICE,)
    engine.close()
    world.service.close()
    assert sleeper.is_alive()

    again = make_world().service
    assert not sleeper.is_alive()
    assert again.store.holding_over() == []
    assert "leftovers_ended" in [one.event for one in again.store.events()]
