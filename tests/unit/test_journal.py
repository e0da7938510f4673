from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isoscale.clock import VirtualClock
from isoscale.protocol import messages as m
from isoscale.protocol.events import read_events
from isoscale.runtime.coordinator.journal import Journal
from isoscale.types import JobSpec


class Seen:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        self.events.append((event, fields))

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


Open = Callable[[], tuple[Journal, Seen]]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Open]:
    """Journals of coordinators that follow each other."""
    opened: list[Journal] = []

    def open_one() -> tuple[Journal, Seen]:
        seen = Seen()
        opened.append(Journal(JobSpec(workers=2, out=str(tmp_path)), seen, VirtualClock()))
        return opened[-1], seen

    yield open_one
    for one in opened:
        one.close([], tmp_path)


def step(number: int) -> m.StepDone:
    return m.StepDone(step=number, epoch=0, loss=1.0 / number, seconds=0.1, samples=1, generation=1, total=9)


def steps(path: Path) -> list[int]:
    return [event["step"] for event in read_events(path / "events.jsonl") if event["event"] == "step"]


def test_a_step_that_is_reported_again_is_written_once(tmp_path: Path, journal: Open) -> None:
    one, _ = journal()
    for number in (1, 2, 2, 1, 3):
        one.on_step(step(number))
    assert steps(tmp_path) == [1, 2, 3]
    another, _ = journal()  # of the next coordinator
    for number in (2, 3, 4):
        another.on_step(step(number))
    assert steps(tmp_path) == [1, 2, 3, 4]
    assert (another.result.step, another.result.loss) == (4, 0.25)


def test_steps_after_a_checkpoint_come_again(tmp_path: Path, journal: Open) -> None:
    one, _ = journal()
    for number in (1, 2, 3):
        one.on_step(step(number))
    one.rewind(1)
    for number in (2, 3, 4):
        one.on_step(step(number))
    assert steps(tmp_path) == [1, 2, 3, 2, 3, 4]


def test_logged_values_are_written_once(tmp_path: Path, journal: Open) -> None:
    for _ in range(2):
        one, _ = journal()
        for values in ({"accuracy": 0.5}, {"accuracy": 0.5}, {"rate": 1}):
            one.on_logged(m.Logged(step=1, epoch=0, values=values))
    logs = [event for event in read_events(tmp_path / "events.jsonl") if event["event"] == "log"]
    assert [set(event) - {"t", "event", "step", "epoch"} for event in logs] == [{"accuracy"}, {"rate"}]


def test_events_have_the_time_at_which_they_happened(tmp_path: Path) -> None:
    """A coordinator that is held up for a second hears of ten steps at once."""
    clock = VirtualClock(1000.0)
    one = Journal(JobSpec(workers=2, out=str(tmp_path)), Seen(), clock)
    one.on_step(step(1))
    clock.advance(1.0)
    one.write("coordinator_paused", seconds=1.0)
    for number in range(2, 12):
        one.on_step(step(number), 1.0 - (number - 1) / 10)
        one.on_logged(m.Logged(step=number, epoch=0, values={"a": 1}), 1.0 - (number - 1) / 10)
    one.close([], tmp_path)
    told = list(read_events(tmp_path / "events.jsonl"))
    times = [event["t"] for event in told if event["event"] == "step"]
    assert times == pytest.approx([1000 + n / 10 for n in range(11)])
    assert [e["t"] for e in told if e["event"] == "log"] == times[1:]
    assert next(e["t"] for e in told if e["event"] == "coordinator_paused") == 1001


@pytest.mark.parametrize("late_s", [1e9, -5.0])
def test_no_step_is_before_the_last_one_or_in_the_future(tmp_path: Path, late_s: float) -> None:
    clock = VirtualClock(1000.0)
    one = Journal(JobSpec(workers=2, out=str(tmp_path)), Seen(), clock)
    for number in (1, 2):
        clock.advance(1.0)
        one.on_step(step(number), late_s if number == 2 else 0.0)
    one.close([], tmp_path)
    another = Journal(JobSpec(workers=2, out=str(tmp_path)), Seen(), clock)
    clock.advance(1.0)
    another.on_step(step(3), 1e9)
    another.close([], tmp_path)
    times = [event["t"] for event in read_events(tmp_path / "events.jsonl") if event["event"] == "step"]
    assert times == ([1001, 1001, 1001] if late_s > 0 else [1001, 1002, 1002])


def test_a_full_disk_costs_one_warning_and_no_event(
    tmp_path: Path, journal: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, seen = journal()
    one.on_step(step(1))
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    for number in (2, 3, 4):
        one.on_step(step(number))
    warnings = [fields["message"] for event, fields in seen.events if event == "warning"]
    assert len(warnings) == 1
    assert "No space left" in warnings[0]
    assert steps(tmp_path) == [1]
    monkeypatch.setattr(os, "write", write)
    one.on_step(step(5))
    assert steps(tmp_path) == [1, 2, 3, 4, 5]


def test_a_successor_knows_how_far_the_job_had_ever_come(tmp_path: Path, journal: Open) -> None:
    one, _ = journal()
    for number in (1, 2, 3):
        one.on_step(step(number))
    one.write("restart", step=0, reached=3, reason="all are gone", attempt=2)
    one.rewind(0)
    one.on_step(step(1))
    second, _ = journal()
    assert (second.reached, second.attempts, second.result.step) == (3, 2, 1)
    for number in (2, 3, 4):
        second.on_step(step(number))
    third, _ = journal()
    assert (third.reached, third.attempts) == (4, 0)


@pytest.mark.parametrize("end", ["failed", "stopped"])
def test_after_an_end_that_was_told_losses_are_forgiven(tmp_path: Path, journal: Open, end: str) -> None:
    one, _ = journal()
    one.on_step(step(1))
    one.write("restart", step=0, reached=1, reason="all are gone", attempt=3)
    one.write(end, step=1, error="all executors were lost")
    second, _ = journal()
    assert (second.reached, second.attempts) == (1, 0)
