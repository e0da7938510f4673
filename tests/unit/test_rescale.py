"""The rules of `runtime.membership.state_machine` one by one, and stories that went wrong once."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.membership.instructions import Ask, Done, Fail, Tell
from isoscale.runtime.membership.target import PlanEntry
from isoscale.types import Settings, Whereabouts
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


def only(world: World, *executors: int) -> None:
    """All that these can do, with the coordinator, while nothing is heard of anybody else."""
    those = [world.executors[executor] for executor in executors]
    while any(world.live(one) for one in those) or any(one.inbox or one.outbox for one in those):
        for one in those:
            while one.inbox:
                world.deliver(one)
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
    assert world.membership._completion.saver == 1
    world.executors[1].wrote = False  # it was killed before it had
    world.executors[1].outbox.clear()
    bury(world, 1)
    world.settle()
    assert isinstance(world.outcome, Done)


def test_a_switch_of_an_earlier_coordinator_is_undone() -> None:
    """The only holder was told to hand over and leave. Its successor does not know to whom, and asks it to stay."""
    world = training(1)
    world.request(devices("cpu*1"), (0,))
    quiet(world)
    assert world.executors[0].core.action_in_hold() is not None
    world.seal(1)
    world.replace_coordinator()
    world.settle()
    assert world.calm()
    assert len(world.membership.members) == 1


def replacing_all(count: int = 2) -> World:
    """All have gone over to newcomers, of which the first one has the state; the old ones wait."""
    world = training(count)
    world.request(devices(f"cpu*{count}"), tuple(range(count)))
    quiet(world)
    world.seal(1)
    for executor in range(count):
        world.live(world.executors[executor])
    world.live(world.executors[0])
    assert [one.executor for one in world.alive() if one.holds_state] == list(range(count + 1))
    return world


def test_only_the_first_of_those_who_leave_forms_a_group_with_newcomers_and_hands_over() -> None:
    world = training(3)
    orders: dict[int, m.Prepare] = {}
    world.request(devices("cpu*3"), (0, 1, 2))
    while len(orders) < 6:
        for one in list(world.executors.values()):
            world.live(one)
            for order in one.inbox:
                if isinstance(order, m.Prepare):
                    orders[one.executor] = order
        world.talk()
    assert {order.sender for order in orders.values()} == {0}
    assert {executor: order.index for executor, order in orders.items()} == {0: -1, 1: -1, 2: -1, 3: 0, 4: 1, 5: 2}
    assert orders[3].senders == {0: -1, 1: -1, 2: -1}


def test_nobody_switches_before_the_one_who_hands_over_has_met_the_newcomers() -> None:
    world = training(2)
    world.request(devices("cpu*2"), (0, 1))
    while not any(isinstance(message, m.Prepared) for message in world.executors[0].outbox):
        for one in list(world.executors.values()):
            world.live(one)
            while one.inbox:
                world.deliver(one)
            while one.outbox and one.executor != 0:
                world.report(one)
    assert not any(isinstance(order, m.Switch) for order in world.executors[1].inbox)
    world.report(world.executors[0])
    assert any(isinstance(order, m.Switch) for order in world.executors[1].inbox)


def test_the_one_who_hands_over_dies_and_the_others_who_leave_go_on() -> None:
    world = replacing_all()
    before = world.executors[1].step
    bury(world, 0)
    world.settle()
    assert world.restarts == 0
    assert world.calm()
    assert not set(world.membership.members) & {0, 1}
    assert min(world.executors[e].step for e in world.membership.members) > before


def test_all_who_leave_die_and_the_newcomer_that_has_the_state_is_the_last_one() -> None:
    """The coordinator hears of one death, and would go on with the other one, of whose death it has not heard."""
    world = replacing_all()
    assert isinstance(world.executors[2].outbox[0], m.Received)
    world.report(world.executors[2])
    bury(world, 0)
    assert world.membership.members == (1,)
    assert not any(isinstance(order, m.Leave) for order in world.executors[2].inbox)
    bury(world, 1)
    assert world.membership.members == (2,)
    world.settle()
    assert world.restarts == 0
    assert world.calm()


def test_all_who_leave_die_before_the_word_of_the_newcomer_that_has_the_state() -> None:
    """By the first loss the others go on without the newcomer; by the second one it is the last that has the state."""
    world = replacing_all()
    bury(world, 0)
    assert world.membership.members == (1,)
    bury(world, 1)
    assert world.restarts == 0, "it may have got the state, and not have said so yet"
    world.tick(0.2)
    assert not any(isinstance(order, m.Leave) for order in world.executors[2].inbox)
    world.report(world.executors[2])
    assert world.membership.members == (2,)
    world.settle()
    assert world.restarts == 0
    assert world.calm()


@pytest.mark.parametrize("said", [True, False])
def test_a_newcomer_that_may_be_the_last_one_is_told_to_go_and_stays_until_others_have_come(said: bool) -> None:
    world = replacing_all()
    bury(world, 0)
    newcomer = world.executors[2]
    if said:
        world.report(newcomer)
    newcomer.outbox.appendleft(m.Notice(reason="SIGTERM"))  # it was told before it got the state
    world.report(newcomer)
    assert not any(isinstance(order, m.Leave) for order in newcomer.inbox)
    bury(world, 1)
    if not said:
        world.report(newcomer)
    assert world.membership.members == (2,)
    world.settle()
    assert world.restarts == 0
    assert not newcomer.alive


def test_newcomers_that_cannot_have_the_state_are_not_waited_for() -> None:
    world = training(2)
    world.request(devices("cpu*3"))
    while world.membership.attempt is None:
        _ = [world.live(one) for one in list(world.executors.values())], world.talk()
    assert not world.membership.attempt.switch_sent
    bury(world, 0)
    bury(world, 1)
    assert world.restarts == 1

    world = training(2)
    world.request(devices("cpu*3"))
    quiet(world)
    bury(world, 1)
    only(world, 0)
    assert world.seal(world.membership.current)
    only(world, 0)
    assert world.membership.sealed
    assert world.membership.attempt is None, "another one is wanted"
    bury(world, 0)
    assert world.restarts == 1


def test_when_the_last_newcomer_that_is_waited_for_is_gone_the_job_begins_again() -> None:
    world = replacing_all(1)
    bury(world, 0)
    bury(world, 1)
    assert world.restarts == 1
    world = replacing_all()
    for executor in (0, 1, 2, 3):
        assert world.restarts == 0
        bury(world, executor)
    world.tick(0.2)
    assert world.restarts == 1


def test_while_a_newcomers_word_is_awaited_no_change_is_begun() -> None:
    world = training(2)
    world.request(devices("cpu*3"))
    quiet(world)
    world.seal(1)
    world.live(world.executors[0])  # it goes over, and hands the state to the newcomer
    bury(world, 1)
    only(world, 0)
    world.request(devices("cpu*2"))
    assert world.membership.attempt is not None, "the newcomer joins before the step that is done again has ended"
    bury(world, 0)
    world.request(devices("cpu*1"))
    assert world.membership.attempt is None
    world.settle()
    assert world.restarts == 0
    assert world.membership.members == (2,)


def test_a_newcomer_may_get_the_state_while_a_new_coordinator_comes() -> None:
    world = training(2)
    world.request(devices("cpu*3"))
    quiet(world)
    world.seal(1)
    world.replace_coordinator()
    assert world.membership.members == (0, 1)
    world.live(world.executors[0])  # it goes over before it hears of the recovery
    assert world.executors[2].holds_state
    bury(world, 0)
    bury(world, 1)
    world.settle()
    assert world.restarts == 0
    assert len(world.membership.members) == 3


def test_a_newcomer_that_was_overtaken_goes_when_the_others_have_sealed_a_step() -> None:
    world = replacing_all()
    assert isinstance(world.executors[2].outbox[0], m.Received)
    world.report(world.executors[2])
    bury(world, 0)
    world.settle()
    assert not world.executors[2].alive
    assert world.restarts == 0


def test_those_who_left_are_asked_when_all_who_came_are_gone_and_another_coordinator_rules() -> None:
    """It goes on with the one newcomer that has the state. Whoever handed it over is there until a step is sealed."""
    world = replacing_all()
    world.replace_coordinator()
    assert world.membership.members == (2,)
    bury(world, 2)
    assert world.membership.members == (0, 1)
    world.settle()
    assert world.restarts == 0
    assert world.calm()


def test_a_newcomer_that_has_got_the_state_goes_on_alone_when_the_one_who_gave_it_is_gone() -> None:
    world = training(1)
    world.request(devices("cpu*2"))
    quiet(world)
    world.seal(1)
    world.live(world.executors[0])
    reports = world.executors[1].outbox
    assert [type(report) for report in reports] == [m.Received, m.Landed]
    bury(world, 0)
    assert world.restarts == 0, "it may have got the state, and not have said so yet"
    world.report(world.executors[1])
    assert world.membership.members == (1,)
    world.settle()
    assert world.restarts == 0
    assert len(world.membership.members) == 2


@pytest.mark.parametrize("count", [1, 2])
def test_a_newcomer_that_has_not_got_the_state_is_not_waited_for_long(count: int) -> None:
    world = training(count)
    world.request(devices(f"cpu*{count + 1}"))
    quiet(world)
    world.seal(1)
    for executor in range(count):
        bury(world, executor)
    world.tick(0.2)
    assert world.restarts == 0
    world.tick(4.0)
    assert world.restarts == 1
    world.settle()
    assert len(world.membership.members) == count + 1


def test_a_successor_knows_who_was_told_to_go() -> None:
    world = training(2)
    world.notice(world.executors[1])
    world.executors[1].outbox.clear()  # the coordinator dies before it hears of it
    world.replace_coordinator()
    world.settle()
    assert 1 not in world.membership.members


def test_one_who_is_told_to_go_before_training_begins_is_replaced() -> None:
    world = World(devices("cpu*2"))
    world.begin()
    world.live(world.executors[0])
    world.report(world.executors[0])
    world.notice(world.executors[0])
    world.report(world.executors[0])
    world.settle()
    assert world.membership.members == (1, 2)
    assert not world.executors[0].alive


def test_all_are_told_to_go_and_stay_until_others_have_come() -> None:
    world = training(2)
    for executor in (0, 1):
        world.notice(world.executors[executor])
    world.settle()
    assert world.outcome is None
    assert world.membership.members == (2, 3)
    assert world.restarts == 0


def test_all_are_told_to_go_and_nobody_comes_in_time() -> None:
    world = training(2, notice_s=30.0)
    world.membership._recruiting.settings = replace(world.settings, spawn=False)
    for executor in (0, 1):
        world.notice(world.executors[executor])
    quiet(world)
    asked: list[Ask] = []
    for _ in range(40):
        asked += [one for one in world.membership.on_tick(world.now) if isinstance(one, Ask)]
        world.now += 1.0
    assert [one.request for one in asked] == ["checkpoint", "stop"]
    assert world.membership.members == (0, 1), "they train until the job ends"


def test_one_who_is_to_be_replaced_stays_for_one_who_was_told_to_go() -> None:
    world = training(2)
    world.request(devices("cpu*2"), (1,))
    world.notice(world.executors[0])
    world.report(world.executors[0])
    assert world.membership.attempt is not None
    assert world.membership.attempt.members == (1,), "at once, not when newcomers have come"
    world.settle()
    assert not set(world.membership.members) & {0, 1}


def test_while_the_job_is_about_to_end_no_change_is_begun() -> None:
    world = training(1)
    world.perform(world.membership.on_stopping(True))
    world.request(devices("cpu*2"))
    assert list(world.executors) == [0]
    world.perform(world.membership.on_stopping(False))
    world.settle()
    assert len(world.membership.members) == 2


def test_a_plans_change_that_an_earlier_coordinator_had_ordered_holds_up_nothing() -> None:
    """They went over at its step; its successor does not know, and orders the change again when they are beyond."""
    world = training(1, plan=(PlanEntry(2, devices("cpu*1")),))
    world.seal(1)
    quiet(world)
    world.replace_coordinator()
    quiet(world)
    world.seal(max(world.generations()))
    world.settle()
    assert world.membership.goal.plan == []
    assert world.calm()


def test_two_that_are_apart_do_not_hold_up_for_ever_a_plan_that_was_given_up() -> None:
    """They wait at the plan's step and exchange nothing, so nothing breaks; but their next group never forms."""
    world = World(devices("cpu*2"), plan=(PlanEntry(1, devices("cpu*2")),))
    world.begin()
    quiet(world)
    world.apart.add(frozenset((0, 1)))
    world.seal(1)
    world.settle()
    assert not world.membership.goal.plan
    assert not set(world.membership.members) >= {0, 1}
    assert world.calm()


def test_one_whose_order_to_begin_was_lost_is_not_waited_for() -> None:
    world = World(devices("cpu*3"))
    world.begin()
    while len(world.executors[2].inbox) == 0:
        for one in world.executors.values():
            world.live(one)
            while one.outbox:
                world.report(one)
    world.deliver(world.executors[0])
    world.deliver(world.executors[1])
    world.replace_coordinator()
    world.settle()
    assert world.calm()
    assert len(world.membership.members) == 3


def test_leavers_of_a_switch_at_the_last_step_are_not_waited_for() -> None:
    world = training(2)
    world.request(devices("cpu*1"))
    quiet(world)
    world.seal(1)
    world.end = world.executors[0].step
    world.settle()
    assert isinstance(world.outcome, Done)
    assert world.executors[1].state == "leaving"


def test_until_the_order_to_switch_is_out_a_newer_target_counts() -> None:
    world = training(1)
    world.request(devices("cpu*2"))
    for one in list(world.executors.values()):
        world.live(one)
    world.request(devices("cpu*1"))
    world.settle()
    assert world.membership.members == (0,)
    assert world.membership.current == 1, "nobody had to change anything"


def test_after_it_the_attempt_ends_first() -> None:
    world = training(1)
    world.request(devices("cpu*2"))
    quiet(world)
    assert world.switching == 2
    world.request(devices("cpu*1"))
    assert world.membership.attempt is not None
    world.settle()
    assert len(world.membership.members) == 1
    assert world.membership.current > 2


def test_one_that_the_others_cannot_reach_is_left_out() -> None:
    """The coordinator reaches everybody: nobody would ever be taken for lost."""
    world = training(4)
    world.apart = {frozenset((1, 0)), frozenset((1, 2)), frozenset((1, 3))}
    for executor in (0, 1):
        world.executors[executor].breaks()
    world.settle()
    assert not world.executors[1].alive
    assert all(world.executors[e].alive for e in (0, 2, 3))
    assert world.membership.members == (0, 2, 3, 4), "and is replaced"
    assert any("executors 0, 2, 3 cannot reach each other" in line for line in world.story)


def test_a_newcomer_that_cannot_reach_a_member_is_replaced_by_another() -> None:
    world = training(2)
    world.apart = {frozenset((1, 2))}
    world.request(devices("cpu*3"))
    world.settle()
    assert world.membership.members == (0, 1, 3)
    assert any("cannot reach each other" in line for line in world.story)


def test_newcomers_that_cannot_reach_a_member_one_after_the_other_end_the_attempt() -> None:
    world = training(2)
    world.apart = {frozenset((1, newcomer)) for newcomer in range(2, 9)}
    world.request(devices("cpu*3"))
    world.settle()
    assert world.membership.members == (0, 1)
    assert "newcomers ended before they could join, 3 times in a row" in world.membership.goal.refused


def test_fewer_train_than_are_wanted_until_somebody_has_come() -> None:
    world = training(2)
    assert not world.membership.is_short
    bury(world, 1)
    assert world.membership.is_short, "a loss"
    world.settle_until(lambda: len(world.membership.members) == 2)
    assert not world.membership.is_short
    world.request(devices("cpu*3"))
    assert world.membership.is_short, "a scale-out"
    world.settle_until(lambda: len(world.membership.members) == 3)
    world.perform(world.membership.on_request(devices("cpu*3"), (world.membership.members[0],)))
    assert not world.membership.is_short, "a migration"
    world.request(devices("cpu*1"))
    assert not world.membership.is_short, "a scale-in"


def test_a_failure_is_answered_by_all_who_hold_the_state() -> None:
    world = training(3)
    bury(world, 1)
    assert world.membership.members == (0, 2)
    assert not world.membership.sealed
    world.settle()
    assert len(world.membership.members) == 3, "the lost one is replaced"


def test_leavers_stay_until_the_new_generation_has_sealed() -> None:
    world = training(2)
    world.request(devices("cpu*1"))
    quiet(world)
    world.seal(1)
    quiet(world)
    leaver = world.executors[1]
    assert (leaver.state, leaver.alive, leaver.core.leave) == ("leaving", True, "")
    world.seal(2)
    quiet(world)
    assert not leaver.alive


def test_a_leaver_helps_when_the_stayer_dies_first() -> None:
    world = training(2)
    world.request(devices("cpu*1"))
    quiet(world)
    world.seal(1)
    world.live(world.executors[1])
    assert world.executors[1].state == "leaving"
    bury(world, 0)
    assert world.membership.members == (1,)
    assert world.restarts == 0


def test_newcomers_that_die_one_after_the_other_end_the_attempt() -> None:
    world = training(1)
    world.request(devices("cpu*2"))
    for _ in range(3):
        newest = max(world.executors)
        world.executors[newest].started = True
        bury(world, newest)
        world.tick(3.0)
    assert world.membership.goal.refused == (
        "newcomers ended before they could join, 3 times in a row: killed; isoscale scale runs/one 2 tries again"
    )
    world.settle()
    assert world.membership.members == (0,)


def test_a_plan_takes_effect_at_exactly_its_step() -> None:
    world = training(1, plan=(PlanEntry(5, devices("cpu*2")), PlanEntry(8, devices("cpu*1"))))
    steps: list[tuple[int, int]] = []
    for _ in range(60):
        quiet(world)
        world.tick(0.5)
        for generation in world.generations():
            if world.seal(generation):
                group = world.members_of(generation)
                steps += [(group[0].step, len(group))] if group else []
    committed = dict(steps)
    assert [committed[step] for step in (4, 5, 6, 7, 8, 9, 10)] == [1, 1, 2, 2, 2, 1, 1]


def test_everybody_gone_begins_again_from_the_checkpoint() -> None:
    world = training(2)
    for _ in range(4):
        world.seal(1)
    world.checkpoint = 3
    for one in list(world.executors.values()):
        world.die(one)
    world.settle()
    assert world.restarts == 1
    assert world.calm()
    assert min(one.step for one in world.alive() if one.trains) >= 3


def test_who_was_let_go_before_everybody_began_again_was_not_lost() -> None:
    world = training(2)
    world.request(devices("cpu*1"))
    quiet(world)
    world.seal(1)
    quiet(world)
    world.seal(2)
    only(world, 0)
    assert world.membership.roster[1].state == "leaving"
    world.die(world.executors[0])
    world.die(world.executors[1])
    only(world, 0)
    ends = [(one.event, one.fields["executor"]) for one in world.events if one.event.startswith("executor_l")]
    assert ends == [("executor_lost", 0), ("executor_left", 1)]
    world.settle()
    assert world.restarts == 1


def test_a_newcomer_that_fails_after_the_order_to_switch_leads_to_a_recovery() -> None:
    """The others go over to its generation, and would wait there for it for ever."""
    world = training(1)
    world.request(devices("cpu*2"))
    quiet(world)
    attempt = world.membership.attempt
    assert attempt is not None
    assert attempt.switch_sent
    (newcomer,) = attempt.coming
    failed = m.Failed(
        executor=newcomer, error="ValueError", summary="no", traceback="", logical_rank=None, exit_code=1, step=0
    )
    instructions = world.membership.on_failed(failed)
    assert [i.executor for i in instructions if isinstance(i, Tell) and isinstance(i.message, m.Recover)] == [0]


# ---- bursts ----


def started(world: World) -> int:
    return len(world.executors)


def test_starting_executors_that_are_killed_together_are_one_failure() -> None:
    world = World(devices("cpu*4"))
    world.begin()
    for executor in (0, 1, 2):
        bury(world, executor)
    assert world.outcome is None
    world.settle()
    assert len(world.membership.members) == 4
    assert started(world) == 7, "each is replaced once"


def test_newcomers_that_are_killed_together_are_one_failure() -> None:
    world = training(1)
    world.request(devices("cpu*4"))
    for executor in (1, 2, 3):
        bury(world, executor)
    world.settle()
    assert world.membership.goal.refused == ""
    assert len(world.membership.members) == 4


def test_what_also_meets_the_first_replacements_is_still_one_failure() -> None:
    world = World(devices("cpu*2"))
    world.begin()
    for executor in (0, 1, 2, 3):
        bury(world, executor)
    assert started(world) == 4, "they are not replaced at once again"
    world.tick(0.5)
    assert started(world) == 4
    world.tick(1.0)
    assert started(world) == 6
    world.settle()
    assert len(world.membership.members) == 2


def test_executors_that_die_before_training_again_and_again_end_the_job_after_pauses() -> None:
    world = World(devices("cpu*2"))
    world.begin()
    begun: list[float] = []
    while world.outcome is None and world.now < 100:
        for one in list(world.alive()):
            begun.append(world.now)
            bury(world, one.executor)
        world.tick(0.2)
    assert isinstance(world.outcome, Fail)
    assert "executors ended before training 3 times in a row" in str(world.outcome.error)
    assert "runs/one/logs/executor-" in str(world.outcome.error)
    assert started(world) <= 8, "no more than two at a time, with pauses"
    assert begun[-1] >= 2.0


def test_a_burst_is_forgiven_when_somebody_has_joined() -> None:
    world = training(1)
    for wanted in (2, 3, 4):
        world.request(devices("cpu*4"))
        newest = max(world.executors)
        bury(world, newest)
        world.tick(3.0)
        world.request(devices(f"cpu*{wanted}"))
        world.settle()
        assert len(world.membership.members) == wanted
        assert world.membership.goal.refused == ""


def test_newcomers_that_hold_the_state_and_die_before_the_first_seal_end_the_attempt() -> None:
    """A device on which the script cannot run a step: others go on, and would replace it for ever."""
    world = training(1)
    world.request(devices("cpu*2"))
    for _ in range(40):
        quiet(world)
        landed = [one for one in world.alive() if one.executor and one.state == "member"]
        for one in landed:
            bury(world, one.executor)
        for generation in world.generations():
            world.seal(generation)
        world.tick(0.5)
    assert "3 times in a row" in world.membership.goal.refused
    assert started(world) <= 6


def test_newcomers_that_die_soon_after_they_joined_are_replaced_at_longer_and_longer_intervals() -> None:
    world = training(1)
    world.request(devices("cpu*2"))
    while world.now < 60:
        quiet(world)
        for one in [one for one in world.alive() if one.executor and one.state == "member"]:
            if one.core.has_sealed:
                bury(world, one.executor)
        for generation in world.generations():
            world.seal(generation)
        world.tick(0.2)
    assert world.membership.goal.refused == "", "they can join, so the target stands"
    assert 4 <= started(world) <= 9


def test_spares_that_die_for_ever_are_started_at_longer_intervals_and_cost_no_target() -> None:
    world = World(devices("cpu*1"), settings=Settings(spares=1))
    world.begin()
    world.live(world.executors[0])
    while world.now < 60:
        while new := [one for one in world.alive() if one.state == "starting" and one.executor]:
            bury(world, new[0].executor)
        quiet(world)
        for generation in world.generations():
            world.seal(generation)
        world.tick(0.2)
    assert world.membership.goal.refused == ""
    assert 4 <= started(world) <= 9


def test_a_target_that_was_given_up_says_once_how_to_go_on() -> None:
    world = training(1)
    world.request(devices("cpu*1+cpu-avx2*2"))
    while not world.membership.goal.refused:
        for one in [one for one in world.alive() if one.executor]:
            bury(world, one.executor)
        world.tick(0.5)
    warnings = [one.fields["message"] for one in world.events if one.event == "warning"]
    assert len(warnings) == 1
    assert warnings[0].endswith("isoscale scale runs/one 'cpu*1+cpu-avx2*2' tries again")
    world.request(devices("cpu*2"))
    world.settle()
    assert len(world.membership.members) == 2


# ---- crash loops ----


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_turn_that_ends_its_process_is_not_tried_for_ever(count: int) -> None:
    """Every restart repeats the steps up to it; that is no progress."""
    world = training(count)
    world.checkpoint, world.poison, world.end = 1, (6, 2), 20
    world.settle()
    assert isinstance(world.outcome, Fail)
    assert re.fullmatch(
        r"all executors were lost 4 times without coming beyond step 5: each time killed; see the end of "
        r"runs/one/logs/executor-[0-9]+\.log; isoscale resume runs/one tries again",
        str(world.outcome.error),
    )
    assert world.outcome.error.exit_code == 1
    assert world.restarts == 3
    # And the one that was to replace the first loss of the last try, where somebody was left for it to join.
    assert started(world) == 4 * count + (count > 1)
    assert world.now >= 3.0, "after pauses"


def test_the_message_names_the_logical_worker() -> None:
    world = training(1)
    for _ in range(4):
        where = Whereabouts("turn", 29, 2)
        executor = world.membership.members[0]
        world.executors[executor].alive = False
        world.perform(world.membership.on_lost(executor, "exit code 1", "", where))
        for _ in range(20):
            world.tick(0.5)
            quiet(world)
    assert isinstance(world.outcome, Fail)
    assert "each time exit code 1 in step 30 (turn of logical worker 2); see" in str(world.outcome.error)


def test_a_step_beyond_what_was_reached_forgives_the_losses_before_it() -> None:
    world = training(1)
    world.end = 20
    for step in range(3, 10):
        world.poison = (step, 0)
        world.settle_until(lambda: not any(one.trains for one in world.alive()))
        world.poison = None
        world.settle_until(lambda step=step: world.membership.step >= step)
    assert world.restarts == 7
    assert world.outcome is None


def test_a_new_coordinator_goes_on_counting() -> None:
    world = training(2)
    world.poison, world.end = (4, 0), 20
    for _ in range(30):
        if world.outcome is None:
            world.settle_until(lambda: not any(one.trains for one in world.alive()))
        if world.outcome is None and world.membership.phase == "training":
            world.replace_coordinator()
    world.settle()
    assert isinstance(world.outcome, Fail)
    assert world.restarts == 3


def test_newcomers_on_their_way_are_let_go_when_everybody_begins_again() -> None:
    world = training(1)
    world.request(devices("cpu*2"))
    quiet(world)
    assert world.executors[1].state == "held"
    bury(world, 0)
    world.settle()  # it might have got the state, which it has a moment to say
    assert world.calm()
    assert 1 not in world.membership.members
    assert not world.executors[1].alive


def test_a_step_that_only_the_lost_one_knew_of_is_progress() -> None:
    world = training(1)
    world.executors[0].alive = False
    world.perform(world.membership.on_lost(0, "exit code 1", "", Whereabouts("turn", 29, 2)))
    assert (world.membership.headway.reached, world.membership.headway.attempts) == (29, 1)


def test_members_that_can_only_use_the_connections_they_have_hear_that_a_plan_is_given_up() -> None:
    """They cannot form another group with each other, and would wait at the plan's step for ever."""
    world = training(2, plan=(PlanEntry(60, devices("cpu*4")),))
    world.apart, world.end = {frozenset((0, 1))}, 80
    world.settle()
    assert isinstance(world.outcome, Done)
    assert "cannot be formed" in world.membership.goal.refused


def test_all_are_told_to_go_at_the_moment_at_which_others_may_be_started_again() -> None:
    """One tick brings both: a checkpoint is asked for, and others are started for both."""
    world = training(2)
    for executor in (1, 2):  # the second is met by what had met the first, and not replaced at once
        bury(world, executor)
    quiet(world)
    assert world.seal(world.membership.current)
    quiet(world)
    world.notice(world.executors[0])
    quiet(world)
    assert set(world.executors) == {0, 1, 2}
    world.tick(2.0)
    assert set(world.executors) == {0, 1, 2, 3, 4}
