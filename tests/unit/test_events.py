from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from isoscale.clock import VirtualClock
from isoscale.protocol.events import EventLog, read_events


def test_events_come_back_in_order(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", VirtualClock())
    log.write("executor_started", executor=0, pid=7, kind="cpu")
    log.write("step", step=1, loss=0.5, extra=None)
    log.close()
    assert list(read_events(tmp_path / "events.jsonl")) == [
        {"t": 0.0, "event": "executor_started", "executor": 0, "pid": 7, "kind": "cpu"},
        {"t": 0.0, "event": "step", "step": 1, "loss": 0.5, "extra": None},
    ]


def test_a_line_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", VirtualClock())
    log.write("step", step=1)
    assert [event["step"] for event in read_events(tmp_path / "events.jsonl")] == [1]
    log.close()


def test_a_second_log_appends(tmp_path: Path) -> None:
    for step in (1, 2):
        log = EventLog(tmp_path / "events.jsonl", VirtualClock())
        log.write("step", step=step)
        log.close()
    assert [event["step"] for event in read_events(tmp_path / "events.jsonl")] == [1, 2]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_lacks_reads_back_through_float(tmp_path: Path, value: float) -> None:
    log = EventLog(tmp_path / "events.jsonl", VirtualClock())
    log.write("step", loss=value)
    log.close()
    text = (tmp_path / "events.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["loss"] == str(value)
    (event,) = read_events(tmp_path / "events.jsonl")
    assert repr(float(event["loss"])) == repr(value)


def test_torn_and_foreign_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"t": 1, "event": "a"}\n[1]\n{"t": 2}\n\nnoise\n{"t": 3, "event": "b"}\n{"t": 4, "ev')
    assert [event["event"] for event in read_events(path)] == ["a", "b"]


def test_an_event_is_not_glued_to_what_a_killed_writer_left(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"t": 1, "event": "a"}\n{"t": 2, "ev')
    log = EventLog(path, VirtualClock())
    log.write("b")
    log.write("c")
    log.close()
    assert [event["event"] for event in read_events(path)] == ["a", "b", "c"]


def test_an_event_may_have_happened_earlier(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", VirtualClock())
    log.write("step", t=12.3456789)
    log.close()
    assert [event["t"] for event in read_events(tmp_path / "events.jsonl")] == [12.345679]


def test_a_full_disk_is_told_and_tears_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "events.jsonl", os.write
    log = EventLog(path, VirtualClock())
    log.write("a")
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    with pytest.raises(OSError, match="No space"):
        log.write("b")
    monkeypatch.setattr(os, "write", write)
    log.write("b")
    log.write("c")
    log.close()
    assert [event["event"] for event in read_events(path)] == ["a", "b", "c"]
