"""From the members there are to those that are wanted: what can be done now."""

from __future__ import annotations

from isoscale.protocol import messages as m
from isoscale.runtime.membership.change import Change, Orphaned, change_towards, pause_of
from isoscale.runtime.membership.roster import Wanted


def test_newcomers_come_when_all_are_ready() -> None:
    wanted = Wanted(staying=(0, 1), coming=(2, 3), missing=())
    assert not change_towards(wanted, (0, 1), ready=False, noticed=(), at_step=40)
    change = change_towards(wanted, (0, 1), ready=True, noticed=(), at_step=40)
    assert change == Change((0, 1, 2, 3), coming=(2, 3), at_step=40)


def test_one_who_is_replaced_waits_for_the_replacement() -> None:
    wanted = Wanted(staying=(0,), coming=(2,), missing=())
    assert not change_towards(wanted, (0, 1), ready=False, noticed=(), at_step=None)
    change = change_towards(wanted, (0, 1), ready=True, noticed=(), at_step=None)
    assert change == Change((0, 2), coming=(2,), leaving=(1,))


def test_one_who_was_told_to_go_does_not_wait_unless_nobody_else_is_there() -> None:
    wanted = Wanted(staying=(0,), coming=(), missing=("cpu",))
    assert change_towards(wanted, (0, 1), ready=False, noticed=(1,), at_step=None) == Change((0,), leaving=(1,))
    alone = Wanted(staying=(), coming=(), missing=("cpu",))
    assert not change_towards(alone, (1,), ready=False, noticed=(1,), at_step=None)
    replaced = Wanted(staying=(), coming=(), missing=("cpu", "cpu"))
    change = change_towards(replaced, (0, 1), ready=False, noticed=(1,), at_step=None)
    assert change == Change((0,), leaving=(1,)), "one that is to be replaced is there until it is"


def test_where_nobody_stays_the_first_of_those_who_leave_hands_the_state_over() -> None:
    assert Change((2, 3), coming=(2, 3), leaving=(0, 1)).sender == 0
    assert Change((1, 3), coming=(3,), leaving=(0,)).sender == -1
    assert Change((0, 1)).sender == -1


def test_a_pause_lasts_from_the_last_who_left_to_the_first_who_started_less_what_was_waited() -> None:
    def switched(left_at: float, started_at: float, waited_s: float) -> m.Switched:
        return m.Switched(generation=2, step=5, left_at=left_at, started_at=started_at, waited_s=waited_s)

    pause, waited = pause_of({0: switched(10.0, 11.0, 0.25), 1: switched(10.5, 11.5, 0.0)})
    assert (pause, waited) == (0.25, 0.25)
    assert pause_of({}) == (0.0, 0.0)


def test_for_a_newcomers_word_is_waited_from_the_first_look_and_for_the_first_reason() -> None:
    orphaned = Orphaned()
    assert not orphaned
    for reason in ("executor 1 lost", "executor 2 lost"):
        orphaned.begin(reason)
    assert orphaned.reason == "executor 1 lost"
    assert [orphaned.is_overdue(now) for now in (10.0, 12.9, 13.0)] == [False, False, True]
    orphaned.end()
    assert not orphaned
    orphaned.begin("executor 3 lost")
    assert not orphaned.is_overdue(20.0)
