"""How long an executor may be silent, and how long it may keep others waiting."""

from __future__ import annotations

import math

from isoscale.protocol import messages as m
from isoscale.runtime.coordinator.liveness import KillReason, Liveness
from isoscale.runtime.membership.roster import Roster
from isoscale.types import Settings

SETTINGS = Settings(heartbeat_s=1.0, lost_after_s=10.0, stalled_after_s=60.0, orphan_s=600.0)


def beat(place: str, seconds: float) -> m.Beat:
    return m.Beat(step=1, place=place, place_s=seconds)


def never() -> bool:
    raise AssertionError("the system is asked about one that was heard just now")


def listening(silences: dict[int, float], holders: tuple[int, ...] | None = None, now: float = 100.0) -> Liveness:
    hearing = Liveness(SETTINGS)
    hearing.listen(silences, silences if holders is None else holders, now)
    return hearing


def reason(verdict: KillReason | None) -> str:
    return "" if verdict is None else verdict.reason


def test_silence_is_death_while_others_are_heard() -> None:
    hearing = listening({0: 0.5, 1: 10.5})
    assert hearing.too_silent(1, 10.5, local=False) == KillReason("no heartbeat for 10.5 s", 10.5, 10.0)
    assert reason(hearing.why_dead(1, 10.5, None, 0.0, lambda: False)) == "no heartbeat for 10.5 s"


def test_the_only_executor_is_judged_by_its_silence_if_nothing_lies_between() -> None:
    hearing = listening({0: 11.0})
    assert hearing.limit(0, local=True) == 10.0
    assert hearing.limit(0, local=False) == math.inf


def test_if_nobody_is_heard_nobody_is_dead() -> None:
    hearing = listening({0: 30.0, 1: 31.0})
    for executor, silent in ((0, 30.0), (1, 31.0)):
        assert hearing.why_dead(executor, silent, None, 0.0, lambda: False) is None
        assert hearing.too_silent(executor, silent, local=False) is None


def test_not_all_come_back_at_once() -> None:
    hearing = listening({0: 30.0, 1: 31.0}, now=100.0)
    hearing.listen({0: 0.5, 1: 33.0}, (0, 1), now=102.0)
    assert hearing.too_silent(1, 33.0, local=True) is None
    hearing.listen({0: 0.5, 1: 63.0}, (0, 1), now=132.0)
    assert hearing.too_silent(1, 63.0, local=True) is not None


def test_a_spare_that_is_heard_is_no_evidence_against_all_who_hold_the_state() -> None:
    """They may all do something at once that stops their heartbeats; a spare does not run the script."""
    hearing = listening({0: 11.0, 1: 11.5, 7: 0.2}, holders=(0, 1))
    assert hearing.too_silent(0, 11.0, local=True) is None
    alone = listening({0: 11.0, 7: 0.2}, holders=(0,))
    assert alone.too_silent(0, 11.0, local=True) is not None, "one that hangs alone"


def test_a_newcomer_that_is_silent_while_members_are_heard() -> None:
    hearing = listening({0: 0.1, 5: 12.0, 6: 12.0}, holders=(0,))
    assert hearing.limit(5, local=True) == 10.0
    assert listening({0: 12.0, 1: 12.0, 5: 12.0}, holders=(0, 1)).limit(5, local=True) == 600.0


def test_those_who_are_silent_together_for_too_long_are_given_up_one_at_a_time() -> None:
    hearing, given_up, silences = Liveness(SETTINGS), [], {0: 0.0, 1: 0.0, 2: 0.0}
    for second in range(2000):
        hearing.listen(silences, tuple(silences), float(second))
        dead = [e for e in silences if hearing.why_dead(e, silences[e], None, 0.0, lambda: False)]
        assert len(dead) <= 1 or not silences
        for executor in dead:
            given_up.append((executor, second))
            del silences[executor]
        silences = {e: s + 1.0 for e, s in silences.items()}
    assert [executor for executor, _ in given_up] == [2, 1, 0]
    first, second, third = (when for _, when in given_up)
    assert first > 600
    assert second > first + 600
    assert third <= second + 1, "one that is left is judged by its own silence"


def test_it_is_said_once_that_nobody_is_heard() -> None:
    hearing = Liveness(SETTINGS)
    said = [hearing.listen({0: 1.0 * s, 1: 1.0 * s}, (0, 1), 100.0 + s) for s in range(60)]
    assert [text for text in said if text] == [
        "none of 2 executors has been heard for 10 s, so nobody is taken for dead: is their machine out of memory, "
        "or out of reach? In 600 s one is given up"
    ]


def test_a_stopped_process_is_dead_after_two_beats() -> None:
    hearing = listening({0: 2.5, 1: 0.1})
    assert hearing.why_dead(0, 1.5, None, 0.0, never) is None
    assert hearing.why_dead(0, 2.5, None, 0.0, lambda: False) is None
    assert hearing.why_dead(0, 2.5, None, 0.0, lambda: True) == KillReason("stopped by a signal", 2.5, 2.0)


def test_all_that_are_stopped_together_have_the_time_of_one_that_is_silent() -> None:
    """Somebody holds the whole job for a moment."""
    assert listening({0: 2.5, 1: 2.6}).why_dead(0, 2.5, None, 0.0, lambda: True) is None
    late = listening({0: 10.5, 1: 10.6})
    assert reason(late.why_dead(0, 10.5, None, 0.0, lambda: True)) == "stopped by a signal"


def test_a_member_may_wait_for_others_but_not_let_them_wait() -> None:
    hearing = listening({0: 0.1, 1: 0.1})
    assert hearing.why_dead(0, 0.1, beat("exchange", 1000.0), 1000.0, never) is None
    assert hearing.why_dead(0, 0.1, beat("turn", 59.0), 1000.0, never) is None
    assert reason(hearing.why_dead(0, 0.1, beat("turn", 61.0), 70.0, never)) == "kept the others waiting for 61 s"


def test_a_member_for_which_nobody_waits_takes_its_time() -> None:
    """All evaluate something of their own for an hour, outside steps."""
    hearing = listening({0: 0.1, 1: 0.1})
    assert hearing.why_dead(0, 0.1, beat("outside", 3600.0), 0.0, never) is None
    assert hearing.why_dead(0, 0.1, beat("outside", 3600.0), 59.0, never) is None, "the first one is through"


def test_connections_that_are_all_closed_at_once_have_longer_to_come_back() -> None:
    assert listening({0: 0.1, 1: 4.0}).away_limit(3.0) == 3.0
    assert listening({0: 3.5, 1: 4.0}).away_limit(3.0) == 10.0
    assert listening({0: 4.0}).away_limit(3.0) == 3.0, "one alone is rather dead"


def test_everybody_is_judged_by_what_there_is_to_know_of_them() -> None:
    roster = Roster()
    for _ in range(4):
        roster.add("cpu", needed=True).state = "member"
    roster[0].beat, roster[1].beat = beat("exchange", 61.0), beat("turn", 100.0)
    silences = {0: 0.1, 1: 0.1, 2: 3.0, 3: 11.0}
    hearing = listening(silences, holders=(0, 1, 2, 3))
    found = hearing.judge(silences, roster, {0: 1000, 1: 1001, 2: 1002}, lambda pid: pid == 1002)
    assert [(executor, verdict.reason) for executor, verdict in found] == [
        (1, "kept the others waiting for 61 s"),
        (2, "stopped by a signal"),
        (3, "no heartbeat for 11.0 s"),
    ]


def test_one_that_sets_itself_up_may_be_silent_for_longer() -> None:
    hearing = Liveness(Settings(heartbeat_s=0.2, lost_after_s=1.0))
    hearing.listen({0: 0.1, 1: 5.0}, (), 100.0, starting={1})
    assert hearing.why_dead(1, 5.0, None, 0.0, lambda: False) is None
    assert reason(hearing.why_dead(1, 5.0, None, 0.0, lambda: True)) == "stopped by a signal"
    assert reason(hearing.why_dead(1, 61.0, None, 0.0, lambda: False)) == "no heartbeat for 61.0 s"
    hearing.listen({0: 5.0, 1: 0.1}, (), 100.0, starting={1})
    assert reason(hearing.why_dead(0, 5.0, None, 0.0, lambda: False)) == "no heartbeat for 5.0 s", (
        "it waits, and is mute"
    )
