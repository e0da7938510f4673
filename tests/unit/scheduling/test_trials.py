"""What became of moves, and the evidence that the next one needs."""

from __future__ import annotations

from isoscale.scheduling.trials import HORIZON, Trials
from isoscale.scheduling.turn_history import Round

EVEN, UNEVEN, FAST, SLOW = (2, 2), (3, 1), (1.0, 1.0), (1.0, 3.0)
MEMBERS = (4, 7)
QUIET = 0.002


def made(trials: Trials, before: tuple[int, ...], after: tuple[int, ...], evidence: int) -> None:
    trials.propose(MEMBERS, before, after, evidence)
    trials.moved(MEMBERS, after)


def needed(trials: Trials) -> tuple[int, int]:
    """To take workers from the slow one, and to give them back."""
    return trials.needed(MEMBERS, EVEN, UNEVEN), trials.needed(MEMBERS, UNEVEN, EVEN)


def test_a_move_that_is_undone_doubles_the_evidence_in_its_direction_only() -> None:
    trials = Trials(10)
    assert needed(trials) == (10, 10)
    made(trials, EVEN, UNEVEN, 10)
    trials.hear(Round(10, FAST), QUIET)
    made(trials, UNEVEN, EVEN, 10)
    assert needed(trials) == (20, 10)
    made(trials, EVEN, UNEVEN, 20)
    trials.hear(Round(30, SLOW), QUIET)
    made(trials, UNEVEN, EVEN, 10)
    assert needed(trials) == (100, 20), "what has misled lasted for 50 steps; and giving back was undone, too"


def test_a_move_that_helps_over_its_horizon_proves_right() -> None:
    trials = Trials(10)
    made(trials, EVEN, UNEVEN, 10)
    made(trials, UNEVEN, EVEN, 10)
    assert needed(trials) == (20, 10)
    made(trials, EVEN, UNEVEN, 20)
    for _ in range(HORIZON * 2):
        trials.hear(Round(10, SLOW), QUIET)
    assert needed(trials)[0] == 10
    made(trials, UNEVEN, EVEN, 10)
    assert needed(trials)[0] == 10, "the world has changed, it was right then"


def test_a_move_that_does_not_help_counts_as_wrong() -> None:
    trials = Trials(10)
    made(trials, EVEN, UNEVEN, 10)
    for _ in range(HORIZON):
        trials.hear(Round(10, (1.0, 1.5)), QUIET)  # as fast as before
    assert needed(trials) == (20, 10)


def test_only_moves_that_were_made_are_judged() -> None:
    trials = Trials(10)
    trials.propose(MEMBERS, EVEN, UNEVEN, 10)
    trials.moved(MEMBERS, (1, 3))  # somebody else's idea
    trials.hear(Round(1000, FAST), QUIET)
    trials.propose(MEMBERS, EVEN, UNEVEN, 10)
    trials.moved((4, 7, 9), (2, 1, 1))
    trials.hear(Round(1000, (1.0, 1.0, 1.0)), QUIET)
    assert needed(trials) == (10, 10)


def test_further_in_the_same_direction_is_no_verdict() -> None:
    trials = Trials(10)
    trials.propose(MEMBERS, (4, 4), (5, 3), 10)
    trials.moved(MEMBERS, (5, 3))
    trials.propose(MEMBERS, (5, 3), (6, 2), 10)
    trials.moved(MEMBERS, (6, 2))
    assert needed(trials) == (10, 10)


def test_whoever_is_gone_has_no_record() -> None:
    trials = Trials(10)
    made(trials, EVEN, UNEVEN, 10)
    made(trials, UNEVEN, EVEN, 10)
    for executor in MEMBERS:
        trials.forget(executor)
    assert needed(trials) == (10, 10)
