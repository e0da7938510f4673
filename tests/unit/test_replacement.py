"""Who comes in the place of a lost executor, while the others do the step again: it joins after that step."""

from __future__ import annotations

from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.membership.target import PlanEntry
from tests.unit.rescale_model import Executor, World
from tests.unit.test_rescale import bury, devices, only, quiet, training


def replacing(count: int = 3, *, plan: tuple[PlanEntry, ...] = ()) -> tuple[World, Executor]:
    """The last executor is lost; the others have agreed on a step to do again, and the newcomer is there."""
    world = training(count, plan=plan)
    bury(world, count - 1)
    quiet(world)
    assert world.membership.members == tuple(range(count - 1))
    assert not world.membership.sealed
    assert world.executors[count].state == "held"
    return world, world.executors[count]


def names(world: World) -> list[str]:
    return [event.event for event in world.events if event.event in ("generation", "rescale")]


def reports(world: World, one: Executor, until: type) -> None:
    """What an executor has said, up to the first message of a sort."""
    while one.outbox:
        last = one.outbox[0]
        world.report(one)
        if isinstance(last, until):
            return


def test_a_newcomer_that_is_there_joins_after_the_step_that_is_done_again() -> None:
    world, newcomer = replacing()
    again = world.membership.current
    assert world.seal(again)
    quiet(world)
    assert newcomer.members == (0, 1, 3)
    assert newcomer.step == world.executors[0].step == 2
    assert world.seal(newcomer.generation)
    quiet(world)
    assert world.membership.members == (0, 1, 3)


def test_before_all_have_agreed_no_group_is_formed_for_it() -> None:
    world = training(3)
    bury(world, 2)
    only(world, 3)
    assert world.membership.roster[3].state == "held"
    assert world.membership.attempt is None
    quiet(world)
    assert world.membership.attempt is not None


def test_one_that_comes_later_joins_one_step_later() -> None:
    world = training(3)
    bury(world, 2)
    only(world, 0, 1)
    assert world.seal(world.membership.current)
    quiet(world)
    assert world.executors[0].members == (0, 1)
    assert world.seal(world.membership.current)
    quiet(world)
    assert world.executors[0].members == (0, 1, 3)


def test_another_loss_meanwhile_leaves_the_newcomer_waiting_and_starts_nobody() -> None:
    world, newcomer = replacing(4)
    assert world.membership.attempt is not None
    assert world.membership.attempt.switch_sent
    bury(world, 2)
    quiet(world)
    assert newcomer.state == "held"
    assert set(world.executors) == {0, 1, 2, 3, 4}, "a step that ends whoever does it would end others, too"
    assert world.membership.attempt is None, "two are wanted, and one is there"
    world.settle()
    assert world.membership.members == (0, 1, 4, 5)


def test_a_newcomer_that_is_lost_meanwhile_is_replaced_after_the_step() -> None:
    world, newcomer = replacing()
    bury(world, newcomer.executor)
    quiet(world)
    assert set(world.executors) == {0, 1, 2, 3}
    world.settle()
    assert world.membership.members == (0, 1, 4)


def test_all_others_are_lost_in_that_step_and_the_job_begins_again() -> None:
    world, _ = replacing(2)
    bury(world, 0)
    assert not world.restarts, "the newcomer may have got the state, as far as anybody knows"
    world.settle()
    assert world.restarts == 1
    assert len(world.membership.members) == 2


def test_a_newcomer_is_heard_before_those_who_have_sealed_the_step() -> None:
    world, newcomer = replacing()
    assert world.seal(world.membership.current)
    for one in list(world.executors.values()):
        world.live(one)
    reports(world, newcomer, m.Landed)
    assert not world.membership.sealed
    assert world.seal(newcomer.generation)
    before = len(names(world))
    reports(world, newcomer, m.Sealed)
    assert names(world)[before:] == ["rescale", "generation", "rescale"]
    first = [event for event in world.events if event.event == "rescale"][-2]
    assert (first.fields["from"], first.fields["to"], first.fields["step"]) == (3, 2, 1)
    quiet(world)
    assert world.membership.members == (0, 1, 3)
    assert all(one.alive and not one.core.leave for one in world.executors.values() if one.executor != 2)


def test_a_newcomer_that_has_landed_is_not_taken_for_one_who_left() -> None:
    """The others' word that the step is sealed comes after the newcomer's that it has the state."""
    world, newcomer = replacing()
    assert world.seal(world.membership.current)
    for one in list(world.executors.values()):
        world.live(one)
    reports(world, newcomer, m.Landed)
    reports(world, world.executors[0], m.Sealed)
    assert world.membership.sealed
    assert not any(isinstance(message, m.Leave) for message in newcomer.inbox)
    quiet(world)
    assert world.seal(newcomer.generation)
    quiet(world)
    assert world.membership.members == (0, 1, 3)


def test_one_who_is_told_to_go_meanwhile_goes_after_that_step() -> None:
    world = training(3)
    bury(world, 2)
    world.notice(world.executors[1])
    quiet(world)
    assert world.seal(world.membership.current)
    quiet(world)
    assert world.executors[0].members in ((0,), (0, 3))


def test_with_a_plan_it_waits_for_a_seal() -> None:
    """Whoever holds for the plan's step goes over when it is told to, and the others may still wait for its seal."""
    world, newcomer = replacing(plan=(PlanEntry(4000, DeviceSet.parse("cpu*2")),))
    assert world.membership.attempt is None
    assert world.seal(world.membership.current)
    quiet(world)
    assert newcomer.state == "held"
    assert world.membership.attempt is not None


def test_a_request_meanwhile_is_met_after_that_step() -> None:
    world, newcomer = replacing()
    world.request(devices("cpu*1"))
    quiet(world)
    assert newcomer.state == "held", "the order to switch is out: it joins, and leaves"
    world.settle()
    assert world.membership.members == (0,)


def test_one_that_has_got_the_state_of_a_generation_that_will_not_be_is_no_newcomer_any_more() -> None:
    world = training(2)
    world.request(devices("cpu*3"))
    quiet(world)
    assert world.seal(world.membership.current)
    world.live(world.executors[0])  # it goes over, and hands the state to the newcomer
    reports(world, world.executors[2], m.Received)
    bury(world, 1)
    world.request(devices("cpu*2"))
    only(world, 0)
    assert world.membership.members == (0,)
    assert world.executors[0].generation == world.membership.current
    assert world.membership.attempt is None
    world.settle()
    assert world.membership.members == (0, 3)
