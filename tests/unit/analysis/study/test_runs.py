"""Directories of our own runs: status, attempts, rescales, repeated steps, why they failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isoscale.analysis.study.analysis import analyse, as_json
from isoscale.analysis.study.formats import open_trace, sources
from isoscale.analysis.study.reading import Reading

T0 = 1_794_787_000.0


def write(home: Path, *events: tuple[float, str, dict[str, Any]], output: str = "") -> None:
    (home / "logs").mkdir(parents=True)
    lines = [json.dumps({"t": T0 + t, "event": name, **fields}) for t, name, fields in events]
    (home / "events.jsonl").write_text("\n".join(lines) + "\n")
    (home / "logs" / "executor-0.log").write_text(output)


def begin(t: float, term: int = 1) -> tuple[float, str, dict[str, Any]]:
    return t, "coordinator_started", {"pid": 1, "term": term, "target": "cpu*2"}


def generation(t: float, number: int, step: int, members: list[int]) -> tuple[float, str, dict[str, Any]]:
    shares = [4 // len(members)] * len(members)
    fields = {"generation": number, "step": step, "members": members, "shares": shares, "reason": "started"}
    return t, "generation", fields


def step(t: float, number: int, executors: int, of: int = 1) -> tuple[float, str, dict[str, Any]]:
    return t, "step", {"step": number, "loss": 1.0, "seconds": 2.0, "executors": executors, "generation": of}


def rescale(t: float, number: int, before: int, after: int, pause_s: float) -> tuple[float, str, dict[str, Any]]:
    fields = {"generation": number, "from": before, "to": after, "step": 3, "pause_s": pause_s, "reason": "asked"}
    return t, "rescale", fields


def runs(tmp_path: Path) -> Path:
    write(
        tmp_path / "good",
        begin(0),
        generation(10, 1, 0, [0, 1]),
        step(12, 1, 2),
        step(14, 2, 2),
        generation(20, 2, 2, [0, 1, 2, 3]),
        rescale(22, 2, 2, 4, 0.5),
        step(22, 3, 4, 2),
        (30, "finished", {"step": 3, "digest": "ab"}),
    )
    write(
        tmp_path / "bad",
        begin(100),
        generation(105, 1, 0, [0]),
        step(107, 1, 1),
        step(109, 2, 1),
        begin(200, 2),
        generation(205, 2, 1, [0]),
        step(207, 2, 1, 2),
        (210, "failed", {"step": 2, "error": "executor 0, logical worker 2: ValueError: no"}),
        output="Traceback (most recent call last):\nModuleNotFoundError: No module named 'apex'\n",
    )
    return tmp_path


def test_a_directory_of_runs_is_one_trace(tmp_path: Path) -> None:
    trace = open_trace(sources(str(runs(tmp_path)))[0], Reading(strict=True))
    found = as_json(analyse(trace, simulate_jobs=0))
    assert found["format"] == "isoscale-run"
    assert found["jobs"] == 2
    assert found["status"]["by_jobs"] == {"passed": 1, "failed": 1}
    assert found["queue_s"]["all"]["count"] == 2
    by_name = dict(zip(trace.jobs.names, range(2), strict=True))
    good, bad = by_name["good"], by_name["bad"]
    assert trace.jobs.queue_s[good] == 10.0
    assert trace.jobs.run_s[good] == 20.0
    # Two executors for 10 s, then four for 10 s.
    assert trace.device_s[good] == 60.0
    assert found["retries"]["by_attempts"] == {
        "1": {"jobs": 1, "passed": 1, "failed": 0},
        "2": {"jobs": 1, "passed": 0, "failed": 1},
    }
    assert trace.attempts.number[trace.attempts.job == bad].tolist() == [0, 1]
    assert found["failures"]["classes"]["import error"]["trials"] == 2
    own = found["own"]
    assert (own["rescales"], own["grown"], own["steps_redone"], own["redone_s"]) == (1, 1, 1, 2.0)
    assert own["pause_s"]["mean"] == 0.5
    assert own["device_s_in_pauses"] == 2.0
    assert "STATE" in found["missing"]["own.forecast_errors"]


def test_one_run_and_its_log_are_the_same(tmp_path: Path) -> None:
    home = runs(tmp_path) / "good"
    texts = []
    for path in (home, home / "events.jsonl"):
        found = as_json(analyse(open_trace(sources(str(path))[0], Reading()), simulate_jobs=0))
        found.pop("trace")
        texts.append(json.dumps(found))
    assert texts[0] == texts[1]
