"""Goals: which devices are wanted at which step."""

from __future__ import annotations

from isoscale.kinds import DeviceSet
from isoscale.runtime.membership.target import Goal, PlanEntry

ONE, TWO, FOUR = (DeviceSet.parse(text) for text in ("cpu", "cpu*2", "cpu*4"))


def planned() -> Goal:
    return Goal(ONE, [PlanEntry(100, TWO), PlanEntry(200, FOUR)])


def test_a_planned_change_is_worked_for_when_it_is_near_in_steps_or_in_seconds() -> None:
    goal = planned()
    assert goal.next(79, 0.0) == (ONE, None)
    assert goal.next(80, 0.0) == (TWO, 100)
    assert goal.next(40, 0.5) == (TWO, 100), "60 steps of half a second"
    assert goal.next(39, 0.5) == (ONE, None)


def test_executors_hold_at_the_first_change_beyond_the_one_that_is_made() -> None:
    goal = planned()
    assert goal.hold_at() == 100
    assert goal.hold_at(100) == 200
    assert goal.hold_at(200) is None


def test_changes_that_are_overtaken_leave_their_devices_behind() -> None:
    goal = planned()
    goal.reach(99)
    assert (goal.target, goal.hold_at()) == (ONE, 100)
    goal.reach(200)
    assert (goal.target, goal.plan) == (FOUR, [])


def test_a_goal_that_is_given_up_is_what_there_is() -> None:
    goal = planned()
    goal.give_up("no", ["cpu", "cpu"])
    assert (goal.target, goal.plan, goal.refused) == (TWO, [], "no")
    assert goal.holds_for_nothing, "executors were told to hold at step 100"
    goal.told_anew()
    assert not goal.holds_for_nothing
    goal.ask(FOUR)
    assert (goal.target, goal.refused) == (FOUR, "")


def test_with_nobody_there_the_target_remains() -> None:
    goal = Goal(TWO)
    goal.give_up("no", [])
    assert goal.target == TWO
    assert not goal.holds_for_nothing, "nobody was told of a plan"
