"""What a run's log tells, read as it grows: nothing lost, nothing kept without bound, whatever is in the file."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoscale.cluster.logs import search_log
from isoscale.cluster.records.buckets import Buckets, thinned
from isoscale.cluster.records.compare import compare_logs
from isoscale.cluster.records.events import run_events
from isoscale.cluster.records.run_log import RunLog
from isoscale.cluster.records.series import series_window
from isoscale.cluster.records.shelf import Shelf
from isoscale.cluster.records.story import run_story
from isoscale.timelines.timeline import timeline

T = 1.8e9


def step(number: int, loss: Any = None, *, t: float | None = None, generation: int = 1, **more: Any) -> dict[str, Any]:
    loss = 1.0 / number if loss is None else loss
    at = T + 0.05 * number if t is None else t
    fields = {"step": number, "epoch": 0, "loss": loss, "seconds": 0.05, "executors": 2, "generation": generation}
    return {"t": at, "event": "step", **fields, **more}


def write(directory: Path, events: list[Any], mode: str = "w") -> RunLog:
    directory.mkdir(exist_ok=True)
    with (directory / "events.jsonl").open(mode) as file:
        file.writelines(event if isinstance(event, str) else json.dumps(event) + "\n" for event in events)
    log = RunLog(directory)
    log.update()
    return log


def window(log: RunLog, **options: Any) -> dict[str, Any]:
    asked = {"by": "step", "begin": None, "end": None, "points": 100, **options}
    return {one.name: one for one in series_window(log, **asked).series}


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400),
    st.integers(1, 9),
    st.integers(2, 50),
    st.randoms(use_true_random=False),
)
def test_however_much_comes_and_goes_no_extreme_is_lost(
    values: list[float], most: int, points: int, rng: random.Random
) -> None:
    buckets, at = Buckets(most=most), 0
    while at < len(values):
        size = rng.randint(1, 60)
        part = np.array(values[at : at + size])
        x = np.arange(at, at + len(part), dtype=float)
        buckets.extend(x, T + x, part)
        at += size
    rows = buckets.window(-math.inf, math.inf, "step")
    assert len(rows) <= 2 * most + buckets.num_values_per_bucket
    curve = thinned(rows, points, "step")
    assert len(curve.x) <= points
    assert (rows[:, 2].min(), rows[:, 3].max()) == (min(values), max(values))
    assert (min(curve.low), max(curve.high)) == (float(f"{min(values):.7g}"), float(f"{max(values):.7g}"))
    assert curve.x[0] == 0
    assert list(curve.x) == sorted(curve.x)
    counts, means = rows[:, 5], rows[:, 4] / rows[:, 5]
    assert counts.sum() == len(values)
    assert np.isclose((counts * means).sum(), sum(values), atol=1e-3)


def test_a_long_run_is_short_and_its_spike_is_where_it_was(tmp_path: Path) -> None:
    events = [step(n, 50.0 if n == 12_345 else 0.5) for n in range(1, 40_001)]
    log = write(tmp_path, events)
    loss = window(log)["loss"]
    assert len(loss.x) <= 100
    assert max(loss.high) == 50.0
    assert loss.last == 0.5
    close = window(log, begin=12_340, end=12_350)["loss"]
    assert close.x == tuple(range(12_340, 12_351))
    assert close.value[5] == close.low[5] == close.high[5] == 50.0
    by_time = window(log, by="time", begin=T + 0.05 * 12_340, end=T + 0.05 * 12_350)["loss"]
    assert max(by_time.value) == 50.0
    assert log.num_bytes < 5_000_000
    rates = window(log)["steps_per_s"]
    assert rates.value == pytest.approx([20.0] * len(rates.value), rel=1e-3)


def test_what_is_logged_and_what_the_batch_size_was(tmp_path: Path) -> None:
    change = {"step": 40, "from": 4, "to": 8, "reason": "plan", "factor": 2.0, "learning_rates": [0.2]}
    log = write(
        tmp_path,
        [
            *(step(n, noise_scale=3.0) for n in range(1, 41)),
            {"t": T + 2, "event": "batch", **change},
            *(step(n) for n in range(41, 61)),
            *({"t": T + n, "event": "log", "step": 10 * n, "epoch": 0, "accuracy": n / 10} for n in range(1, 7)),
        ],
    )
    found = window(log)
    assert found["accuracy"].source == "log"
    assert found["accuracy"].x == (10, 20, 30, 40, 50, 60)
    assert found["noise_scale"].last == 3.0
    assert (found["batch_size"].x, found["batch_size"].value) == ((1, 40, 60), (4, 8, 8))
    assert found["learning_rate"].value == (0.2, 0.2)
    assert set(window(log, names=["loss", "batch_size"])) == {"loss", "batch_size"}
    assert window(log, begin=50, end=55)["batch_size"].value == (8, 8)


def test_losses_that_are_no_numbers_are_told_and_drawn_around(tmp_path: Path) -> None:
    log = write(tmp_path, [step(1), step(2, "nan"), step(3, "inf"), step(4)])
    loss = window(log)["loss"]
    assert (loss.num_bad, loss.bad, loss.x) == (2, (2, 3), (1, 4))
    assert any("step 2" in mark.text for mark in run_story(log).marks)


def test_steps_that_are_done_again_replace_those_before(tmp_path: Path) -> None:
    again = [step(n, 2.0, t=T + 100 + n) for n in range(6, 12)]
    log = write(tmp_path, [*(step(n, 1.0) for n in range(1, 11)), *again])
    loss = window(log)["loss"]
    assert loss.x == tuple(range(1, 12))
    assert loss.value == (1.0,) * 5 + (2.0,) * 6
    assert run_story(log).steps_redone == 1


def test_a_log_is_read_on_where_it_was_left_and_anew_when_it_is_another(tmp_path: Path) -> None:
    log = write(tmp_path, [step(1), json.dumps(step(2))[:20]])
    assert log.last == (1, pytest.approx(T + 0.05))
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(json.dumps(step(2))[20:] + "\n" + json.dumps(step(3)) + "\n")
    log.update()
    assert window(log)["loss"].x == (1, 2, 3)
    assert log.offset == log.size
    (tmp_path / "events.jsonl").unlink()
    write(tmp_path, [step(7)])
    log.update()
    assert window(log)["loss"].x == (7,)
    assert window(write(tmp_path / "none", [])) == {}


def test_lines_that_are_no_events_and_fields_that_make_no_sense_are_passed_over(tmp_path: Path) -> None:
    odd = [
        "\0\0\0\n",
        "[" * 5_000 + "\n",
        '{"event": "step", "step": 2, "t": "soon"}\n',
        '{"event": "step", "step": -4, "t": 1}\n',
        '{"event": "step", "step": 1' + "0" * 400 + ', "t": 1}\n',
        '{"event": "log", "step": [1], "t": 1, "a": {}}\n',
        '{"event": "executor_speed", "executor": [1], "generation": {}}\n',
        '{"event": 3}\n',
        "x" * 600_000 + "\n",
        "\n",
    ]
    log = write(tmp_path, [step(1), *odd, step(3)])
    assert window(log)["loss"].x == (1, 3)
    assert run_story(log).step == 3
    assert [event.event for event in run_events(tmp_path).events if event.event != "step"] == []


def test_names_without_end_are_bounded(tmp_path: Path) -> None:
    log = write(tmp_path, [{"t": T, "event": "log", "step": 1, f"name{n}": 1.0} for n in range(500)])
    assert len(window(log)) == 64


def test_a_timeline_is_that_of_the_whole_log(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [
        {"t": T, "event": "coordinator_started", "pid": 1, "term": 1, "command": "isoscale run train.py"},
        *({"t": T, "event": "executor_started", "executor": n, "pid": 10 + n, "kind": "cpu"} for n in (0, 1)),
        {"t": T, "event": "generation", "generation": 1, "step": 0, "members": [0, 1], "shares": [2, 2]},
        *(step(n) for n in range(1, 301)),
        {"t": T + 15.1, "event": "executor_lost", "executor": 1, "pid": 11, "reason": "killed by SIGKILL"},
        {"t": T + 15.2, "event": "generation", "generation": 2, "step": 300, "members": [0], "shares": [4]},
        *(step(n, t=T + 1 + 0.05 * n, generation=2) for n in range(301, 401)),
        {
            **{"t": T + 16.2, "event": "rescale", "generation": 2, "from": 2, "to": 1, "step": 300, "pause_s": 0.1},
            **{"wait_s": 0.0, "reason": "executor 1 lost", "members": [0], "shares": [4]},
        },
        *(
            {"t": T + n, "event": "executor_speed", "executor": 0, "generation": 1, "turn_s": 0.01 * n, "steps": 10}
            for n in range(1, 4)
        ),
        {"t": T + 22, "event": "finished", "step": 400, "digest": "ab"},
    ]
    log = write(tmp_path, events)
    found, whole = run_story(log), timeline(events)
    for name in ("state", "start", "seconds", "step", "sizes", "lives", "rescales", "marks", "digest", "command"):
        assert getattr(found, name) == getattr(whole, name), name
    assert found.longest_gap_s == pytest.approx(whole.longest_gap_s, abs=1e-5)
    assert found.rescales[0].gap_s == pytest.approx(1.05, abs=1e-3)
    assert found.lives[0].turn_s == pytest.approx(0.02)
    assert not found.truncated


def test_a_shelf_keeps_the_newest_logs_only(tmp_path: Path) -> None:
    shelf = Shelf(most_logs=2)
    for n in range(4):
        write(tmp_path / str(n), [step(1)])
        with shelf.log(tmp_path / str(n)) as log:
            assert log.last is not None
    with shelf.log(tmp_path / "3") as log:
        pass
    assert len(shelf._logs) == 2


def test_events_come_page_by_page_from_both_ends(tmp_path: Path) -> None:
    told = [{"t": T + n, "event": "checkpoint", "step": n} for n in range(10)]
    write(tmp_path, [one for n, event in enumerate(told, 1) for one in (step(n), event)])
    newest = run_events(tmp_path, limit=4)
    assert [event.fields["step"] for event in newest.events] == [6, 7, 8, 9]
    before = run_events(tmp_path, before=newest.older, limit=4)
    assert [event.fields["step"] for event in before.events] == [2, 3, 4, 5]
    first = run_events(tmp_path, before=before.older, limit=4)
    assert [event.fields["step"] for event in first.events] == [0, 1]
    assert first.older is None
    assert run_events(tmp_path, after=newest.newer).events == ()
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(json.dumps({"t": T + 99, "event": "warning", "message": "late"}) + "\n")
    (late,) = run_events(tmp_path, after=newest.newer).events
    assert late.fields == {"message": "late"}
    assert run_events(tmp_path, after=late.at).events == (late,)


def test_two_runs_are_equal_to_the_bit_or_differ_from_a_step_on(tmp_path: Path) -> None:
    write(tmp_path / "a", [step(n, 0.1 * n) for n in range(1, 101)])
    again = [step(n, 9.9) for n in range(50, 60)]
    write(
        tmp_path / "b", [*(step(n, 0.1 * n) for n in range(1, 60)), *again, *(step(n, 0.1 * n) for n in range(50, 90))]
    )
    write(tmp_path / "c", [step(n, math.nextafter(0.1 * n, 2.0) if n >= 13 else 0.1 * n) for n in range(1, 101)])
    same = compare_logs(tmp_path / "a", tmp_path / "b")
    assert (same.steps_compared, same.first_difference) == (89, None)
    other = compare_logs(tmp_path / "a", tmp_path / "c")
    assert other.first_difference is not None
    assert other.first_difference.step == 13
    assert float(other.first_difference.a) == 0.1 * 13
    assert compare_logs(tmp_path / "a", tmp_path / "nothing").steps_compared == 0


def test_a_search_finds_every_line_in_pieces_and_never_leaves_the_directory(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    lines = [f"line {n} " + ("ERROR: <b>bad</b>" if n % 1000 == 7 else "fine" * 10) for n in range(30_000)]
    text = "\n".join(lines) + "\n"
    (logs / "executor-0.log").write_text(text)
    found, before = [], -1
    while True:
        page = search_log(tmp_path, "0", "error: <B>", before=before, limit=7)
        found += page.matches
        assert len(page.matches) <= 7
        if page.next_before is None:
            break
        before = page.next_before
    assert [one.line for one in found] == [line for line in reversed(lines) if "ERROR" in line]
    assert all(text[one.offset :].startswith(one.line) for one in found)
    (tmp_path / "secret.log").write_text("ERROR")
    for source in ("../secret", "9", "", "coordinator"):
        assert search_log(tmp_path, source, "error").matches == ()
    (logs / "executor-1.log").write_text("x" * 1_000_000 + "needle")
    assert len(search_log(tmp_path, "1", "needle").matches) == 1
