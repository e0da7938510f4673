"""An executor that is too slow for a single logical worker leaves as others do; and what is asked for meanwhile."""

from __future__ import annotations

from isoscale.protocol import messages as m
from isoscale.runtime.membership.desk import Desk
from isoscale.runtime.membership.instructions import Emit, Tell
from isoscale.runtime.membership.progress import Progress
from isoscale.runtime.membership.target import PlanEntry
from tests.unit.rescale_model import World
from tests.unit.test_rescale import bury, devices, quiet, training

SLOW = 2


def beats(world: World, rounds: int = 1) -> None:
    """All members are heard; executor 2 is ten times slower."""
    for _ in range(rounds):
        for executor in world.membership.members:
            turn_s = 1.0 if executor == SLOW else 0.1
            beat = m.Beat(step=1, place="turn", place_s=0.0, steps=20, turn_s=turn_s, last_turn_s=turn_s)
            world.perform(world.membership.on_beat(executor, beat))


def set_aside(**options: object) -> World:
    """Of three executors one was set aside; nobody has gone over yet."""
    world = training(3, **options)  # type: ignore[arg-type]
    assert world.membership.shares == (2, 1, 1)
    beats(world, 8)
    (event,) = [one for one in world.events if one.event == "straggler"]
    assert (event.fields["executor"], event.fields["set_aside"], event.fields["shares"]) == (SLOW, [SLOW], [2, 2])
    return world


def go_on(world: World, steps: int = 2) -> None:
    for _ in range(steps):
        quiet(world)
        world.seal(world.membership.current if world.switching is None else world.switching)
    quiet(world)


def told_to_leave(world: World) -> list[int]:
    return [one.executor for one in world.executors.values() if not one.alive or one.core.leave]


def test_it_goes_over_to_nobody_and_leaves_when_the_others_have_sealed() -> None:
    world = set_aside()
    assert world.membership.attempt is not None
    assert world.membership.attempt.leaving == (SLOW,)
    assert told_to_leave(world) == []
    world.settle()
    assert (world.membership.members, world.membership.shares) == ((0, 1), (2, 2))
    assert told_to_leave(world) == [SLOW]
    assert sorted(world.executors) == [0, 1, 2], "nobody comes in its place"
    (rescale,) = [one.fields for one in world.events if one.event == "rescale"]
    assert (rescale["from"], rescale["to"], rescale["reason"]) == (3, 2, "executor 2 is slow: set aside")


def test_a_request_takes_it_back_if_it_is_still_there() -> None:
    world = set_aside()
    world.request(devices("cpu*3"))
    assert world.membership.attempt is None
    world.settle()
    assert world.membership.members == (0, 1, 2)
    assert sorted(world.executors) == [0, 1, 2]


def test_a_request_brings_another_one_if_it_is_gone() -> None:
    world = set_aside()
    world.settle()
    world.request(devices("cpu*3"))
    world.settle()
    assert world.membership.members == (0, 1, 3)
    assert world.membership.goal.aside == []


def test_a_migration_does_not_take_it_back() -> None:
    world = set_aside()
    world.settle()
    world.request(world.membership.goal.target, away=(0,))
    world.settle()
    assert world.membership.members == (1, 3)


def test_a_loss_is_replaced_and_the_slow_one_stays_away() -> None:
    world = set_aside()
    world.settle()
    bury(world, 1)
    world.settle()
    assert world.membership.members == (0, 3)


def test_a_recovery_while_it_is_set_aside_does_not_keep_it() -> None:
    world = set_aside()
    bury(world, 1)
    world.settle()
    assert SLOW not in world.membership.members
    assert len(world.membership.members) == 2


def test_the_slow_one_dies_before_it_has_left() -> None:
    world = set_aside()
    bury(world, SLOW)
    world.settle()
    assert world.membership.members == (0, 1)


def test_another_coordinator_lets_the_slow_one_go_and_no_other() -> None:
    world = set_aside()
    world.replace_coordinator()
    world.settle()
    assert world.membership.members == (0, 1)
    assert told_to_leave(world) == [SLOW]


def test_a_plan_takes_it_back_at_its_step() -> None:
    world = set_aside(plan=(PlanEntry(1000, devices("cpu*4")),))
    world.settle()
    assert world.membership.members == (0, 1, 3, 4)
    assert world.membership.goal.aside == []


def test_spares_do_not_come_in_its_place() -> None:
    world = set_aside(spares=1)
    world.settle()
    assert world.membership.members == (0, 1)


def test_all_count_as_lasting_without_it() -> None:
    """Newcomers that were lost before are forgiven once those that are wanted have been there for a while."""
    world = set_aside()
    world.settle()
    world.membership._retry_limits.newcomers.lose(9, 99, 0.0)
    world.membership.on_step(10**6, 0.1)
    assert not world.membership._retry_limits.newcomers.troubled


def test_a_request_is_done_without_what_was_set_aside_since() -> None:
    """Four are asked for; while the fourth is on its way a slow one is set aside."""
    world = training(3)
    desk = Desk(world.membership, lambda: Progress(step=1, saved=0, is_training=True), "isoscale resume runs/one")
    _, instructions = desk.on_request(m.Scale(target="4"), 0.0)
    world.perform(instructions)
    beats(world, 8)
    assert [one.executor for one in world.membership.goal.aside] == [SLOW]
    world.settle()
    assert world.membership.members == (0, 1, 3)
    answers = [one.fields for one in desk.tick(1.0) if isinstance(one, Emit) and one.event == "answered"]
    assert [(one["outcome"], one["detail"]) for one in answers] == [
        ("done", "training on cpu*4 without executor 2 (slow: set aside)")
    ]


def test_nobody_is_told_of_a_group_without_members() -> None:
    world = training(2)
    for _ in range(60):
        for executor in world.membership.members:
            beat = m.Beat(step=1, place="turn", place_s=0.0, steps=20, turn_s=50.0 if executor else 0.1)
            instructions = world.membership.on_beat(executor, beat)
            orders = [one.message for one in instructions if isinstance(one, Tell)]
            assert all(min(order.shares) > 0 for order in orders if isinstance(order, m.Prepare))
            world.perform(instructions)
        world.settle()
    assert world.membership.members == (0,)
