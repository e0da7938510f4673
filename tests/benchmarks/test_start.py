"""What `elastic.start` reads from events: times to the first step, to a size, and to a size after a kill."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.elastic import start


def step(t: float, executors: int, seconds: float = 0.1) -> dict[str, Any]:
    return {"event": "step", "t": t, "executors": executors, "seconds": seconds}


def test_the_first_step_counts_from_the_command() -> None:
    assert start.first_step_s([{"event": "started", "t": 4.0}, step(5.5, 1), step(5.6, 1)], 4.0) == 1.5


def test_a_size_is_reached_with_the_first_step_by_so_many_less_one_step() -> None:
    events = [
        step(1.0, 1),
        step(1.1, 1),
        {"event": "request", "t": 1.15},
        step(1.2, 1),
        step(1.5, 1, 0.3),
        step(1.6, 4),
    ]
    total, less = start.until_size_s(events, start.request_t(events, 1.0), 4)
    assert total == pytest.approx(0.45)
    assert less == pytest.approx(0.45 - 0.2), "the longer of the median steps before and meanwhile"


def test_a_step_that_all_had_sealed_before_anybody_noticed_a_death_is_no_replacement() -> None:
    events = [step(1.0, 4), step(1.11, 4), {"event": "executor_lost", "t": 1.12}, step(1.3, 3), step(2.0, 4)]
    killed_t = 1.05
    assert not start._is_complete_again(events[:4], killed_t, 4)
    assert start._is_complete_again(events, killed_t, 4)
    total, _ = start.until_size_s(start.without_the_sealed(events, killed_t), killed_t, 4)
    assert total == pytest.approx(0.95)


def test_the_step_that_is_done_again_is_not_taken_off() -> None:
    """It has waited for the loss to be noticed and for all to agree: that is what a replacement costs."""
    lost = {"event": "executor_lost", "t": 1.12}
    events = [step(1.0, 4), lost, step(1.9, 3, 0.9), step(2.1, 4)]
    assert start.until_size_s(events, 1.05, 4, redone=1) == (pytest.approx(1.05), pytest.approx(0.95))
    events = [step(1.0, 4), lost, step(1.9, 3, 0.9), step(2.2, 3, 0.3), step(2.4, 4)]
    assert start.until_size_s(events, 1.05, 4, redone=1) == (pytest.approx(1.35), pytest.approx(1.05))


def test_medians_are_held_against_limits() -> None:
    times = [{"what": "newcomer", "seconds": s + 0.1, "less_one_step_s": s} for s in (0.2, 0.9, 0.4)]
    rows = [{"model": "tiny", "started": "warm", "times": [one]} for one in times]
    (entry,) = start.summary(rows)
    assert (entry["less_one_step_s"], entry["min"], entry["max"], entry["times"]) == (0.4, 0.2, 0.9, 3)
    assert entry["meets"]
    assert "at most 0.5 s  met" in start.line(entry)
