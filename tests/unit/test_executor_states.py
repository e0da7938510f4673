"""An executor's state machine: events in, instructions out."""

from __future__ import annotations

from typing import Any

import pytest

from isoscale.protocol import messages as m
from isoscale.runtime.executor.instructions import (
    BreakOff,
    Form,
    GoOver,
    HoldForPlan,
    Meet,
    Pause,
    Quit,
    Send,
    Train,
)
from isoscale.runtime.executor.state_machine import MemberState

PAUSE = Pause(1.0, 2.5, 0.5)
HELLO = m.Hello(executor=0, pid=1, kind="cpu", fingerprint="f", kernels={}, factors={})


def prepare(generation: int, **fields: Any) -> m.Prepare:
    order = {"shares": (2, 2), "members": (0, 1), "index": 0, "store": "store"}
    return m.Prepare(generation=generation, **(order | fields))


def recover(generation: int, **fields: Any) -> m.Recover:
    order = {"shares": (4,), "members": (0,), "index": 0, "store": "store"}
    return m.Recover(generation=generation, **(order | fields))


def member(generation: int = 1, *, step: int = 5, hold_at: int | None = None) -> MemberState:
    """Executor 0 of two, whose generation has sealed a step."""
    state = MemberState(0)
    order = m.Begin(generation=generation, shares=(2, 2), members=(0, 1), index=0, store="store", hold_at=hold_at)
    assert state.on_order(order) == []
    assert state.first is order
    assert state.begin(order) == []
    sealed = m.Sealed(generation=generation, step=0, members=(0, 1), shares=(2, 2))
    assert state.sealed(step) == [Send(sealed)]
    return state


def ready_to_switch(state: MemberState, order: m.Prepare) -> None:
    state.on_order(order)
    state.formed(order)
    state.on_order(m.Switch(generation=order.generation))


def test_only_newer_generations_are_prepared() -> None:
    state, orders = member(), {generation: prepare(generation) for generation in (2, 3, 4)}
    assert state.on_order(orders[3]) == [Form(orders[3])]
    assert state.on_order(orders[2]) == []
    assert state.on_order(prepare(3)) == []
    assert state.on_order(orders[4]) == [BreakOff(3), Form(orders[4])]
    assert not state.awaits(orders[3])
    assert state.highest == 4


def test_a_group_is_reported_once_it_is_formed_and_broken_off_if_it_is_too_late() -> None:
    state, first, second = member(), prepare(2), prepare(3)
    state.on_order(first)
    state.on_order(second)
    assert state.formed(first) == [BreakOff(2)]
    assert state.not_formed(first, "nobody came") == []
    assert state.formed(second) == [Send(m.Prepared(generation=3))]


def test_a_group_that_cannot_form_is_reported_and_its_switch_never_counts() -> None:
    state, order = member(), prepare(2)
    state.on_order(order)
    broken = m.Broken(generation=2, reason="nobody came", unreachable=(1,))
    assert state.not_formed(order, "nobody came", (1,)) == [Send(broken)]
    state.on_order(m.Switch(generation=2))
    assert not state.is_ready()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"index": -1, "members": (1, 2), "senders": {1: 0}}, False),
        ({"index": -1, "members": (2, 3), "senders": {0: -1, 1: -1}, "sender": 0}, True),
        ({"index": -1, "members": (2, 3), "senders": {0: -1, 1: -1}, "sender": 1}, False),
    ],
)
def test_of_those_who_leave_only_the_one_that_hands_over_has_a_group_to_report(
    fields: dict[str, Any], says: bool
) -> None:
    state, order = member(), prepare(2, **fields)
    assert state.on_order(order) == [Form(order)]
    assert state.formed(order) == ([Send(m.Prepared(generation=2))] if says else [])


def test_an_order_to_switch_counts_for_the_generation_that_is_prepared_only() -> None:
    state = member()
    state.on_order(m.Switch(generation=3))
    assert not state.is_ready()
    state.on_order(prepare(3))
    state.on_order(m.Switch(generation=2))
    assert not state.is_ready()
    state.on_order(m.Switch(generation=3))
    assert state.is_ready()
    state.on_order(prepare(4))
    assert not state.is_ready()


def test_all_who_are_ready_go_over_between_steps() -> None:
    state, order = member(), prepare(2, members=(0, 2), senders={1: 0})
    ready_to_switch(state, order)
    assert state.sealed(6) == []
    assert state.next_action() == Train()
    assert state.sealed(7, all_ready=True) == []
    assert state.next_action() == GoOver(order)
    switched = m.Switched(generation=2, step=7, left_at=1.0, started_at=2.5, waited_s=0.5)
    assert state.switched(order, PAUSE) == [Send(switched)]
    assert (state.generation.number, state.generation.members, state.group) == (2, (0, 2), 2)
    assert state.next_action() == Train()
    assert not state.has_sealed
    assert state.sealed(8) == [Send(m.Sealed(generation=2, step=7, members=(0, 2), shares=(2, 2)))]


def test_a_seal_that_all_were_ready_in_says_nothing_of_a_generation_that_is_prepared_since() -> None:
    """The order came between the question and the seal."""
    state, newer = member(), prepare(3)
    ready_to_switch(state, prepare(2))
    assert state.is_ready()
    assert state.on_order(newer) == [BreakOff(2), Form(newer)]
    state.sealed(6, all_ready=True)
    assert state.next_action() == Train()


def test_a_plans_switch_waits_for_its_step_and_holds_there() -> None:
    state, order = member(hold_at=7), prepare(2)
    state.on_order(order)
    state.formed(order)
    state.on_order(m.Switch(generation=2, at_step=7))
    state.arrived(6)
    assert (state.next_action(), state.is_ready()) == (Train(), False)
    state.arrived(7)
    assert (state.next_action(), state.is_ready()) == (HoldForPlan(), False)
    assert state.action_in_hold() == GoOver(order)
    state.arrived(8)
    assert state.is_ready(), "the plan's step is over: an earlier coordinator ordered that change"


def test_whoever_holds_for_a_plan_waits_for_a_switch_or_a_recovery() -> None:
    state = member(step=7, hold_at=7)
    state.on_order(prepare(2))
    assert state.action_in_hold() is None
    order = recover(3)
    state.on_order(order)
    assert state.action_in_hold() == Meet(order)


def test_a_newcomer_holds_receives_and_lands() -> None:
    state, order = MemberState(2), prepare(4, members=(0, 2), index=1, senders={1: 0})
    assert state.approach() == []
    assert state.hold() == [Send(m.Held())]
    assert state.on_order(order) == [Form(order)]
    assert state.incoming() is None
    assert state.formed(order) == [Send(m.Prepared(generation=4))]
    assert state.incoming() is order
    assert state.received(order, 9) == [Send(m.Received(generation=4))]
    assert (state.phase, state.step, state.generation.began_at) == ("member", 9, 9)
    assert state.landed() == [Send(m.Landed(generation=4))]


def test_a_newcomer_whose_state_comes_with_an_order_that_is_overtaken_waits_on() -> None:
    state = MemberState(2)
    state.approach()
    state.hold()
    first, second = (prepare(g, members=(0, 2), index=1, senders={1: 0}) for g in (4, 5))
    state.on_order(first)
    state.formed(first)
    assert state.on_order(second) == [BreakOff(4), Form(second)]
    assert state.received(first, 9) == []
    assert state.phase == "held"
    assert state.not_received(first) == []
    assert state.awaits(second)
    assert state.formed(second) == [Send(m.Prepared(generation=5))]
    assert state.not_received(second) == []
    assert state.incoming() is None


def test_one_who_leaves_keeps_the_state_and_comes_back_for_a_recovery() -> None:
    state, order = member(), prepare(2, index=-1, members=(2,), shares=(4,), senders={0: -1}, sender=0)
    ready_to_switch(state, order)
    state.sealed(6, all_ready=True)
    assert state.next_action() == GoOver(order)
    assert state.go_out(order) == []
    assert (state.phase, state.next_action()) == ("leaving", Train())
    again = recover(3)
    assert state.on_order(again) == [BreakOff(2), BreakOff(1)], "also the group in which it hands over"
    assert state.next_action() == Meet(again)
    assert state.take_recovery() is again
    assert state.phase == "member"
    assert state.recovered(again, PAUSE) != []
    assert state.generation.number == 3


def test_told_to_leave_it_goes_between_steps_and_gives_up_what_nobody_may_ever_come_to() -> None:
    state = member()
    assert state.on_order(m.Leave(reason="scale in")) == []
    assert state.next_action() == Quit("scale in")
    for state in (member(), member()):
        order = prepare(2)
        ready_to_switch(state, order)
        state.switched(order, PAUSE)
        assert state.on_order(m.Leave(reason="scale in")) == [BreakOff(2)], "it has not sealed a step"
    state = member()
    state.broke()
    assert state.on_order(m.Leave(reason="scale in")) == [BreakOff(1)]


def test_one_that_was_refused_ends_wherever_it_is() -> None:
    state = member()
    state.on_order(prepare(2))
    assert state.on_refused("not an executor of this job") == [BreakOff(2), BreakOff(1)]
    assert state.next_action() == Quit("not an executor of this job")


def test_a_break_is_reported_unless_the_order_to_recover_is_there() -> None:
    state = member()
    broken = m.Broken(generation=1, reason="a peer is gone or cannot be reached")
    assert state.broke() == [Send(broken)]
    assert state.take_recovery() is None
    state = member()
    order = recover(2)
    assert state.on_order(order) == [BreakOff(1)]
    assert state.broke() == []
    assert state.take_recovery() is order


def test_a_recovery_of_the_past_is_ignored_and_a_new_one_drops_what_was_prepared() -> None:
    state = member(5)
    state.on_order(prepare(6))
    assert state.on_order(recover(5)) == []
    order = recover(7)
    assert state.on_order(order) == [BreakOff(6), BreakOff(5)]
    assert state.on_order(prepare(6)) == [], "an order that a recovery has overtaken"
    assert state.next_action() == Meet(order)


def test_a_newer_recovery_breaks_the_group_of_the_first() -> None:
    state, first, second = member(), recover(2), recover(3)
    state.on_order(first)
    state.take_recovery()
    assert state.met(first) == []
    assert state.on_order(second) == [BreakOff(2)]
    assert state.is_overtaken(first)
    state.not_recovered(first, "broken")
    assert state.take_recovery() is second
    state.on_order(third := recover(4))
    assert state.met(second) == [BreakOff(3)]
    assert state.take_recovery() is third


def test_after_a_recovery_that_failed_a_new_coordinator_hears_who_was_to_meet() -> None:
    """The members of one generation under the number of another would make it look for those who are dead."""
    state, order = member(), recover(3, members=(0, 2), shares=(1, 3))
    state.on_order(order)
    state.take_recovery()
    failed = m.Broken(generation=3, reason="nobody came", unreachable=(2,))
    assert state.not_recovered(order, "nobody came", (2,)) == [Send(failed)]
    assert state.rejoin(HELLO, "") == m.Rejoin(
        hello=HELLO,
        state="member",
        generation=3,
        members=(0, 2),
        shares=(1, 3),
        step=5,
        highest=3,
        waiting=True,
        sealed=False,
    )


def test_all_agree_and_go_on() -> None:
    state, order = member(), recover(3)
    state.on_order(order)
    state.take_recovery()
    state.met(order)
    switched = m.Switched(generation=3, step=5, left_at=1.0, started_at=2.5, waited_s=0.5)
    assert state.recovered(order, PAUSE) == [Send(switched)]
    assert (state.is_broken, state.recover, state.next_action()) == (False, None, Train())


def test_a_suspect_is_named_by_its_id() -> None:
    state = member()
    assert state.suspects(1, "bits differ") == [Send(m.Suspect(executor=1, reason="bits differ"))]


def test_a_successor_knows_of_no_end() -> None:
    state = MemberState(0, term=2)
    for term, goes_on in ((2, False), (3, True)):
        state.arrived(0)
        state.on_order(m.Welcome(spec=None, settings=None, kind="cpu", executor=0, term=term))  # type: ignore[arg-type]
        assert state.goes_on == goes_on
    state.arrived(0)
    state.on_order(m.GoOn())
    assert state.goes_on


def test_at_the_end_it_saves_when_asked_and_goes_when_dismissed() -> None:
    state = member()
    finished = m.Finished(executor=0, step=5, digest="d", stop_reason="")
    assert state.finish(finished) == [Send(finished)]
    assert state.take_last_word() is None
    state.on_order(m.SaveResult())
    assert (state.take_last_word(), state.take_last_word()) == ("save", None)
    state.on_order(m.Dismiss())
    assert state.take_last_word() == "end"
    assert state.rejoin(HELLO, "SIGTERM").finished == finished
