"""Shares by measured speeds."""

from __future__ import annotations

import pytest

from isoscale.protocol import messages as m
from isoscale.runtime.balance import Balance
from isoscale.types import Settings

MEMBERS, SHARES = (3, 7), (4, 4)


def beat(turn_s: float) -> m.Beat:
    return m.Beat(step=1, place="turn", place_s=0.0, steps=10, turn_s=turn_s)


def test_an_even_split_unless_speeds_differ_by_more_than_a_stragglers_may() -> None:
    balance = Balance(8, Settings(straggler_ratio=1.2))
    assert balance.split(2, None) == (4, 4)
    assert balance.split(2, [1.0, 1.2]) == (4, 4)
    assert balance.split(2, [1.0, 3.0]) == (6, 2)


def test_nothing_moves_that_is_not_to_be_moved() -> None:
    balance = Balance(8, Settings(rebalance=False))
    assert balance.split(2, [1.0, 3.0]) == (4, 4)
    assert balance.hear(3, beat(0.1), MEMBERS, SHARES, may_move=True) is None
    assert balance.hear(7, beat(0.3), MEMBERS, SHARES, may_move=True) is None


def test_members_are_compared_when_all_are_heard() -> None:
    balance = Balance(8, Settings(straggler_steps=10))
    assert balance.hear(7, beat(0.3), MEMBERS, SHARES, may_move=True) is None
    move = balance.hear(3, beat(0.1), MEMBERS, SHARES, may_move=True)
    assert move is not None
    assert (move.shares, move.slowest, move.ratio) == ((6, 2), 7, pytest.approx(3.0))


def test_what_was_heard_of_another_generation_or_of_one_that_is_gone_does_not_count() -> None:
    balance = Balance(8, Settings(straggler_steps=10))
    balance.hear(7, beat(0.3), MEMBERS, SHARES, may_move=True)
    balance.begin_anew()
    assert balance.hear(3, beat(0.1), MEMBERS, SHARES, may_move=True) is None
    balance.forget(3)
    assert balance.hear(7, beat(0.3), MEMBERS, SHARES, may_move=True) is None


def test_a_change_that_is_being_made_goes_first() -> None:
    balance = Balance(8, Settings(straggler_steps=10))
    balance.hear(7, beat(0.3), MEMBERS, SHARES, may_move=False)
    assert balance.hear(3, beat(0.1), MEMBERS, SHARES, may_move=False) is None
