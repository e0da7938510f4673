"""The profile of `simulated_against_real`, read from steps that are known, and the simulator on one that is known."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from benchmarks.cluster import simulated
from benchmarks.cluster.company import company
from benchmarks.cluster.pairs import Found
from benchmarks.cluster.profile import (
    WARM,
    Changes,
    Speeds,
    as_row,
    changes_of,
    epoch_ends,
    epoch_steps,
    gaps,
    pace,
    speeds_of,
    start_s,
)
from benchmarks.cluster.served import Step
from benchmarks.cluster.workload import Job

SPEEDS = Speeds(
    alone_s={"a": 0.1, "b": 0.2},
    both_s={"a": 0.08, "b": 0.1},
    beside_s={"a": {"a": 0.2, "b": 0.125}, "b": {"a": 0.25, "b": 0.2}},
    epoch={"a": 40, "b": 0},
    evaluation={"a": 5.0, "b": 0.0},
    start_s={"a": 1.0, "b": 2.0},
    start_both_s={"a": 1.5, "b": 3.0},
    start_beside=1.0,
    while_starting=1.0,
    end_s=0.5,
)
CHANGES = Changes(changed="a", resume_s=1.0, shrink_s=0.2, pause_s=0.2, ready_s=0.5, rescale_s=0.1)
PROFILE = simulated.Profile(SPEEDS, CHANGES)


def steps(count: int, *, epoch: int = 10, step_s: float = 0.1, end_s: float = 0.3, late_s: float = 0.0) -> list[Step]:
    """From t=5 on; an epoch's end takes `end_s` more, the first ten steps `late_s` more in all."""
    made, t = [], 5.0
    for number in range(count):
        made.append(Step(number + 1, t, 1, number // epoch))
        t += step_s + (end_s if (number + 1) % epoch == 0 else 0.0) + (late_s / 10 if number < 10 else 0.0)
    return made


def test_a_pace_leaves_out_what_belongs_to_epochs_ends() -> None:
    made = steps(60)
    assert pace(made, made[20].t, made[-1].t) == pytest.approx(0.1)
    # Of steps 30, 40 and 50: the first two end among the first steps.
    assert epoch_ends(made) == pytest.approx([3.0, 3.0, 3.0])
    assert epoch_steps(made) == 10
    assert epoch_steps(made[:10]) == 0
    assert epoch_ends(made[:10]) == []
    # 59 between 60 steps, of which five follow an epoch's end.
    assert len(gaps(made, made[0].t)) == 54
    with pytest.raises(ValueError, match="no step"):
        pace(made, 5.01, 5.02)


def test_a_start_has_what_the_first_steps_take_longer() -> None:
    # Decided at 3, first step at 5: 2 s less that step.
    assert start_s(steps(60), 3.0, 0.1) == pytest.approx(1.9)
    assert start_s(steps(60, epoch=15, late_s=0.5), 3.0, 0.1) == pytest.approx(2.4)
    assert len(steps(60)) > WARM


def test_only_the_epochs_that_end_before_the_last_step_cost_a_job_something() -> None:
    assert SPEEDS.step_s("a", 1, 40) == pytest.approx(0.1)
    assert SPEEDS.step_s("a", 1, 100) * 100 == pytest.approx(0.1 * (100 + 2 * 5))
    assert SPEEDS.step_s("a", 2, 100) * 100 == pytest.approx(0.08 * (100 + 2 * 5))
    assert SPEEDS.step_s("b", 1, 1000) == 0.2


def test_a_row_gives_the_profile_back() -> None:
    assert speeds_of(as_row("profile", 1, SPEEDS)) == SPEEDS
    assert changes_of(as_row("changes", 0, CHANGES)) == CHANGES


def test_seconds_are_measured_anew_and_shares_stay() -> None:
    again = Found(
        alone_s={"a": 0.2, "b": 0.1},
        both_s={"a": 0.1, "b": 0.3},
        start_s={"a": 3.0, "b": 4.0},
        start_both_s={"a": 5.0, "b": 6.0},
        end_s=[0.1, 0.2, 0.9],
    ).speeds(SPEEDS)
    for one, other in ((one, other) for one in "ab" for other in "ab"):
        assert again.share(one, other) == pytest.approx(SPEEDS.share(one, other))
    assert again.step_s("a", 1, 100) == pytest.approx(2 * SPEEDS.step_s("a", 1, 100)), "an epoch's end is so many steps"
    assert (again.both_s, again.start_s, again.start_both_s) == (
        {"a": 0.1, "b": 0.3},
        {"a": 3.0, "b": 4.0},
        {"a": 5.0, "b": 6.0},
    )
    assert again.end_s == 0.2


def test_jobs_in_the_simulator_cost_what_was_measured() -> None:
    alone = simulated.run([Job("one", "a", 0.0, 100, 1)], PROFILE, "fifo", phases=1)
    assert alone[0].jct_s == pytest.approx(1.0 + 0.5 + 11.0)
    assert simulated.run([Job("one", "a", 0.0, 100, 2)], PROFILE, "fifo", phases=1)[0].jct_s == pytest.approx(10.8)
    pair = [Job("one", "a", 0.0, 40, 1), Job("other", "b", 0.0, 100, 1)]
    # a: 1.5 s, then 40 steps beside b. b: 2.5 s, then beside a at 0.8 of its speed for 4 s, then alone.
    found = simulated.run(pair, PROFILE, "fifo", phases=1)
    assert [job.jct_s for job in found] == pytest.approx([6.5, 6.5 + (100 - 4 / 0.25) * 0.2])


def test_what_was_not_measured_makes_the_simulation_faster() -> None:
    slow = simulated.Profile(replace(SPEEDS, start_beside=1.5), CHANGES)
    pair = [Job("one", "a", 0.0, 100, 1), Job("other", "a", 0.0, 100, 1)]

    def mean_s(profile: simulated.Profile) -> float:
        return simulated.run(pair, profile, "fifo", phases=1)[0].jct_s

    # 1.5 s of start and end at 1.5, 110 steps' time at half the speed.
    assert mean_s(slow) == pytest.approx(2.25 + 22.0)
    less = {what: mean_s(profile) for what, profile in slow.less().items()}
    assert less["interference"] == pytest.approx(12.5)
    assert less["starts beside a neighbour"] == pytest.approx(23.5)
    assert less["evaluations"] == pytest.approx(22.25)
    # Shares of 0.5, 0.8, 0.8 and 1 for everybody.
    assert less["pairs"] == pytest.approx(2.25 + 11.0 / 0.775)


def test_what_oneself_and_waited_for_children_take_is_not_others() -> None:
    burn = "import time; end = time.process_time() + {}\nwhile time.process_time() < end: pass"
    with company() as own:
        subprocess.run([sys.executable, "-c", burn.format(0.5)], check=True)
    # Others may be at work in either; a child that is not waited for is one of them.
    child = subprocess.Popen([sys.executable, "-c", burn.format(60)])
    try:
        with company() as others:
            time.sleep(0.5)
    finally:
        child.kill()
        child.wait()
    assert 0.0 <= own.share <= 1.0
    assert 0.1 < others.share <= 1.1
