"""Who is called up, awaited and let go."""

from __future__ import annotations

from typing import Any

from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.membership.instructions import Instruction, Start, Tell
from isoscale.runtime.membership.recruiting import Recruiting
from isoscale.runtime.membership.roster import Roster
from isoscale.types import Settings

TWO, THREE = DeviceSet.parse("cpu*2"), DeviceSet.parse("cpu*3")


def recruiting(**settings: Any) -> Recruiting:
    return Recruiting(Roster(), Settings(**settings))


def told(instructions: list[Instruction], sort: type) -> list[int]:
    return [one.executor for one in instructions if isinstance(one, Tell) and isinstance(one.message, sort)]


def trained_by(count: int, **settings: Any) -> Recruiting:
    one = recruiting(**settings)
    for _ in range(count):
        one.roster.add("cpu", needed=True).state = "member"
    return one


def test_what_is_missing_is_started_and_spares_beside_it() -> None:
    one = recruiting(spares=1)
    assert one.gather(TWO) == [Start(0, "cpu"), Start(1, "cpu"), Start(2, "cpu")]
    assert [executor.executor for executor in one.roster.spares()] == [2]
    assert one.gather(TWO) == [], "they are on their way"


def test_where_others_start_executors_nobody_is_started() -> None:
    assert recruiting(spawn=False).gather(TWO) == []


def test_they_are_gathered_when_all_are_set_up() -> None:
    one = recruiting()
    one.gather(TWO)
    assert one.gathered(TWO) == ()
    one.roster[1].state = "warm"
    assert not one.one_more()
    one.roster[0].state = "warm"
    assert one.one_more()
    assert one.gathered(TWO) == (0, 1)


def test_a_spare_is_called_before_a_process_is_started() -> None:
    one = trained_by(1)
    one.roster.add("cpu", needed=False).state = "warm"
    wanted = one.roster.choose(THREE, (0,))
    instructions = one.call_up(wanted, (0,), THREE)
    assert told(instructions, m.Approach) == [1]
    assert [i for i in instructions if isinstance(i, Start)] == [Start(2, "cpu")]
    assert not one.are_there(wanted)


def test_all_are_there_when_the_last_one_waits_for_the_state() -> None:
    one = trained_by(1)
    for _ in range(2):
        one.roster.add("cpu", needed=True).state = "approaching"
    wanted = one.roster.choose(THREE, (0,))
    one.call_up(wanted, (0,), THREE)
    assert not one.arrived(2)
    assert one.arrived(1)
    assert one.are_there(wanted)


def test_newcomers_that_nobody_wants_any_more_go_and_warm_ones_stay_as_spares() -> None:
    one = trained_by(2)
    one.roster.add("cpu", needed=True).state = "held"
    one.roster.add("cpu", needed=True).state = "warm"
    instructions = one.call_up(one.roster.choose(TWO, (0, 1)), (0, 1), TWO)
    assert told(instructions, m.Leave) == [2]
    assert [executor.executor for executor in one.roster.spares()] == [3]
