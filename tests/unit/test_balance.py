"""Shares by measured speeds, from made-up beats and from recorded ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isoscale.protocol import messages as m
from isoscale.runtime.membership.rebalance import Move, Rebalance
from isoscale.types import Settings

MEMBERS, SHARES, KINDS = (3, 7), (4, 4), ("cpu", "cpu")
RECORDED = Path(__file__).parent / "scheduling" / "recorded"


def beat(turn_s: float, *, last_turn_s: float = 0.0, steps: int = 10) -> m.Beat:
    return m.Beat(step=1, place="turn", place_s=0.0, steps=steps, turn_s=turn_s, last_turn_s=last_turn_s)


def heard(
    balance: Rebalance, times: tuple[float, ...], rounds: int = 1, shares: tuple[int, ...] = SHARES
) -> list[Move]:
    moves = []
    for _ in range(rounds):
        for executor, turn_s in zip(MEMBERS, times, strict=True):
            moves.append(balance.measure(executor, beat(turn_s), MEMBERS, shares, may_move=True))
    return [move for move in moves if move is not None]


# ---- shares of a new generation ----


def test_an_even_split_unless_speeds_surely_differ_by_more_than_a_stragglers_may() -> None:
    balance = Rebalance(8, Settings(straggler_ratio=1.2, straggler_steps=10**6))
    assert balance.split(MEMBERS, KINDS) == (4, 4)
    heard(balance, (1.0, 1.2), 20)
    assert balance.split(MEMBERS, KINDS) == (4, 4)
    heard(balance, (1.0, 3.0), 20)
    assert balance.split(MEMBERS, KINDS) == (6, 2)
    assert balance.split((3, 7, 9), ("cpu", "cpu", "cpu")) == (5, 1, 2), "a newcomer is taken for the mean"
    balance.forget(7)
    assert balance.split(MEMBERS, KINDS) == (4, 4)


def test_noise_does_not_make_a_split_uneven() -> None:
    balance = Rebalance(8, Settings(straggler_steps=10**6))
    for n in range(30):
        heard(balance, (1.0, 3.0) if n % 3 == 0 else (1.0, 1.0))
        assert n < 3 or balance.split(MEMBERS, KINDS) == (4, 4)


def test_nothing_moves_that_is_not_to_be_moved() -> None:
    balance = Rebalance(8, Settings(rebalance=False))
    assert heard(balance, (0.1, 0.3), 100) == []
    assert balance.split(MEMBERS, KINDS) == (4, 4)


# ---- moves ----


def test_members_are_compared_when_all_are_heard() -> None:
    balance = Rebalance(8, Settings(straggler_steps=10))
    assert balance.measure(7, beat(0.3), MEMBERS, SHARES, may_move=True) is None
    move = balance.measure(3, beat(0.1), MEMBERS, SHARES, may_move=True)
    assert move == Move((6, 2), (), 7, pytest.approx(3.0), pytest.approx(2.0))


def test_one_that_slows_the_job_with_a_single_worker_is_set_aside() -> None:
    balance = Rebalance(8, Settings(straggler_steps=10))
    (move,) = heard(balance, (0.1, 2.0), 8, shares=(7, 1))
    assert (move.shares, move.aside, move.slowest) == ((8,), (7,), 7)
    assert move.gain == pytest.approx(2.0 / 0.8)


def test_what_was_heard_of_another_generation_or_of_one_that_is_gone_does_not_count() -> None:
    balance = Rebalance(8, Settings(straggler_steps=10))
    balance.measure(7, beat(0.3), MEMBERS, SHARES, may_move=True)
    balance.begin_anew()
    assert balance.measure(3, beat(0.1), MEMBERS, SHARES, may_move=True) is None
    balance.forget(3)
    assert balance.measure(7, beat(0.3), MEMBERS, SHARES, may_move=True) is None
    assert balance.measure(99, beat(0.1), MEMBERS, SHARES, may_move=True) is None, "no member"


def test_a_change_that_is_being_made_goes_first() -> None:
    balance = Rebalance(8, Settings(straggler_steps=10))
    balance.measure(7, beat(0.3), MEMBERS, SHARES, may_move=False)
    assert balance.measure(3, beat(0.1), MEMBERS, SHARES, may_move=False) is None


def test_a_costly_switch_needs_more_evidence() -> None:
    balance = Rebalance(8, Settings(straggler_steps=10))
    balance.switched(200.0)
    assert heard(balance, (0.1, 0.3)) == []
    assert heard(balance, (0.1, 0.3), 5) != []


def test_an_exchange_in_the_last_turn_makes_nobody_a_straggler() -> None:
    """Turns of 10 ms, of which a step's last takes 30 ms: the mean of one turn is 30 ms, that of three is 17 ms."""
    balance = Rebalance(4, Settings())
    for _ in range(50):
        balance.measure(3, beat(0.05 / 3, last_turn_s=0.03), MEMBERS, (3, 1), may_move=False)
        balance.measure(7, beat(0.03, last_turn_s=0.03), MEMBERS, (3, 1), may_move=False)
    moves = []
    for executor, turn_s in ((3, 0.05 / 3), (7, 0.03)):
        moves.append(balance.measure(executor, beat(turn_s, last_turn_s=0.03), MEMBERS, (3, 1), may_move=True))
    assert balance.split(MEMBERS, KINDS) == (2, 2)
    assert moves[1] is not None
    assert (moves[1].shares, moves[1].ratio) == ((2, 2), pytest.approx(1.0))


# ---- recorded beats of executors that are equally fast, on two cores with other processes ----


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return found


def replayed(name: str, *, factor: float = 1.0, begins: int = 0, times: int = 1) -> list[tuple[int, Move]]:
    """Moves by step, had the last executor been `factor` times slower from a step on. The recording knows nothing of
    moves, so the turns of a step are scaled to the present share."""
    record = recorded(name)
    shares = tuple(record["shares"])
    members = everybody = tuple(range(len(shares)))
    balance, step, moves = Rebalance(sum(shares), Settings()), 0, []
    for rows in record["rounds"] * times:
        slow = {everybody[-1]: factor} if step >= begins else {}
        step += min(row[0] for row in rows)
        for executor, (steps, turn_s, last_s, exchange_s) in zip(everybody, rows, strict=True):
            if executor not in members:
                continue
            scale = slow.get(executor, 1.0)
            one = m.Beat(
                step=step,
                place="turn",
                place_s=0.0,
                steps=steps,
                turn_s=scale * turn_s,
                last_turn_s=scale * last_s,
                exchange_s=exchange_s,
            )
            move = balance.measure(executor, one, members, shares, may_move=True)
            if move is not None:
                moves.append((step, move))
                members, shares = tuple(e for e in members if e not in move.aside), move.shares
    return moves


@pytest.mark.parametrize("name", ["calm", "eight", "three"])
def test_a_recorded_run_beside_others_moves_nothing(name: str) -> None:
    assert replayed(name) == []


def test_a_recorded_run_beside_a_dozen_others_moves_once_to_and_fro() -> None:
    """Bursts of three seconds in which one executor is four times slower. The streaks that used to decide moved workers
    eleven times in these 662 steps."""
    assert [move.shares for _, move in replayed("bursts")] == [(3, 1), (2, 2)]


@pytest.mark.parametrize(
    ("name", "begins", "found_by"),
    [("calm", 0, 42), ("calm", 300, 348), ("eight", 0, 15), ("eight", 300, 322)],
)
def test_a_slow_device_is_found_in_a_recorded_run_as_soon_as_it_was_by_streaks(
    name: str, begins: int, found_by: int
) -> None:
    """`found_by`: the step at which ten steps in a row over 1.2 times the median used to move workers."""
    step, move = replayed(name, factor=1.9, begins=begins, times=2)[0]
    assert begins < step <= found_by
    assert (move.slowest, move.aside) == (1, ())


def test_a_device_that_is_three_times_slower_keeps_few_workers_through_bursts() -> None:
    moves = replayed("bursts", factor=3.0, times=3)
    assert [move.shares for _, move in moves] == [(3, 1)]


def test_one_that_is_six_times_slower_is_set_aside_in_a_recorded_run() -> None:
    (step, move) = replayed("three", factor=6.0)[0]
    assert (move.shares, move.aside) == ((2, 2), (2,))
    assert step <= 250
