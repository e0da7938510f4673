"""The rules of `runtime.rescale` one by one, and stories that went wrong once."""

from __future__ import annotations

from typing import Any

from isoscale.kinds import DeviceSet
from isoscale.runtime.instructions import Done
from isoscale.runtime.rescale import PlanEntry
from isoscale.types import Settings
from tests.unit.rescale_model import World


def devices(text: str) -> DeviceSet:
    return DeviceSet.parse(text)


def training(count: int = 2, *, plan: tuple[PlanEntry, ...] = (), **settings: Any) -> World:
    """A job that has sealed its first step."""
    world = World(devices(f"cpu*{count}"), settings=Settings(**settings), plan=plan)
    world.begin()
    quiet(world)
    world.seal(1)
    quiet(world)
    assert world.membership.members == tuple(range(count))
    assert world.membership.sealed
    return world


def quiet(world: World) -> None:
    """Everything that executors and messages can do by themselves; no step is sealed, no time passes."""
    moved = True
    while moved:
        lived = [world.live(one) for one in list(world.executors.values())]
        moved = any(lived) | world.talk()


def bury(world: World, executor: int) -> None:
    one = world.executors[executor]
    world.die(one)
    while one.outbox:
        world.report(one)


def test_requests_while_executors_gather_start_what_is_missing() -> None:
    world = World(devices("cpu*1"))
    world.begin()
    world.request(devices("cpu*3"))
    assert sorted(world.executors) == [0, 1, 2]
    world.settle()
    assert world.membership.members == (0, 1, 2)


def test_a_loss_while_executors_gather_is_replaced_for_the_newest_target() -> None:
    world = World(devices("cpu*2"))
    world.begin()
    world.request(devices("cpu-avx2*1"))
    bury(world, 0)
    world.settle()
    assert [world.executors[e].kind for e in world.membership.members] == ["cpu-avx2"]


def test_the_result_is_saved_by_one_who_came_to_the_end_before_it_was_the_first() -> None:
    """The first executor dies in the last seal. The other has left it, and does not know that it is first now."""
    world = training(2)
    world.end = world.executors[0].step
    world.finish(1, lucky={1})
    bury(world, 0)
    world.settle()
    assert isinstance(world.outcome, Done)
    assert world.saved


def test_another_is_asked_when_the_one_who_should_save_is_gone() -> None:
    world = training(3)
    world.end = world.executors[0].step
    world.finish(1, lucky={1, 2})
    bury(world, 0)
    world.talk()
    assert world.membership._saver == 1
    world.executors[1].wrote = False  # it was killed before it had
    world.executors[1].outbox.clear()
    bury(world, 1)
    world.settle()
    assert isinstance(world.outcome, Done)
