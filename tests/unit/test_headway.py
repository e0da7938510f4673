"""Progress is what no coordinator has seen before."""

from __future__ import annotations

from isoscale.runtime.membership.headway import Headway, Loss
from isoscale.types import Whereabouts


def test_steps_that_are_done_again_forgive_nothing() -> None:
    headway = Headway(reached=29)
    for executor in range(3):
        assert not headway.restart(Loss(executor, "exit code 1"), executor + 1)
        for step in range(20, 30):
            headway.commit(step)
    assert headway.restart(Loss(3, "exit code 1"), 4)


def test_spares_that_met_the_same_as_the_others_are_not_counted_again() -> None:
    headway = Headway(reached=29)
    assert [headway.restart(Loss(executor, "killed"), 6) for executor in range(6)] == [False] * 6
    assert headway.attempts == 1
    assert not headway.restart(Loss(6, "killed"), 7)
    assert headway.attempts == 2


def test_a_new_step_does() -> None:
    headway = Headway(reached=29, attempts=3)
    headway.commit(30)
    assert (headway.reached, headway.attempts) == (30, 0)
    assert not headway.restart(Loss(0, "exit code 1"), 1)


def test_the_account_says_what_happened_where_and_what_to_do() -> None:
    headway = Headway(reached=29)
    for executor in range(4):
        headway.restart(Loss(executor, "exit code 1", Whereabouts("turn", 29, 2)), executor + 1)
    assert headway.account("runs/one") == (
        "all executors were lost 4 times without coming beyond step 29: each time exit code 1 in step 30 (turn of "
        "logical worker 2); see the end of runs/one/logs/executor-3.log; isoscale resume runs/one tries again"
    )


def test_different_ends_are_not_said_to_be_the_same() -> None:
    headway = Headway()
    headway.restart(Loss(0, "exit code 1"), 1)
    headway.restart(Loss(1, "killed by SIGKILL", Whereabouts("outside", 0)), 2)
    assert headway.account("runs/one") == (
        "all executors were lost 2 times without coming to the end of the first step: at last killed by SIGKILL "
        "outside turns, after step 0 (by the system, if memory ran out); see the end of runs/one/logs/executor-1.log; "
        "isoscale resume runs/one tries again"
    )
