from __future__ import annotations

import contextlib
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from isoscale.cli.live import status_table
from isoscale.protocol.status import JobStatus

STATUS: dict[str, Any] = {
    "job": "digits.py",
    "state": "training",
    "term": 1,
    "generation": 5,
    "step": 412,
    "total": 900,
    "epoch": 7,
    "loss": 0.3124,
    "workers": 6,
    "steps_per_s": 15.25,
    "target": "cpu*3+cpu-sse*1",
    "executors": [
        {
            "executor": 0,
            "pid": 4000,
            "kind": "cpu",
            "state": "member",
            "logical_workers": [0, 5],
            "turn_s": 0.0213,
            "idle": 0.25,
            "last_seen_s": 0.3,
        },
        {
            "executor": 1,
            "pid": 4001,
            "kind": "cpu-sse",
            "state": "approaching",
            "logical_workers": None,
            "turn_s": None,
            "idle": None,
            "last_seen_s": 4.2,
        },
    ],
    "pending": "scale to cpu*4",
    "checkpoint": {"step": 400, "age_s": 75.0},
    "messages": ["the disk is full"],
}


def shown(status: dict[str, Any], *, width: int = 100, colour: bool = False) -> str:
    console = Console(width=width, force_terminal=colour, color_system="standard" if colour else None)
    with console.capture() as capture:
        console.print(status_table(cast(JobStatus, status)))
    return capture.get()


def test_everything_is_there() -> None:
    assert shown(STATUS).splitlines() == [
        "digits.py  training  target cpu*3+cpu-sse*1  generation 5  term 1",
        "━━━━━─────  step 412/900  epoch 7  loss 0.3124  15.2 steps/s  32 s left",
        "",
        "                                      logical                           ",
        "executor  kind      pid  state        workers   turn  idle        silent",
        "       0  cpu      4000  member       0-5      21 ms  █░░░░  25%  300 ms",
        "       1  cpu-sse  4001  approaching  -                            4.2 s",
        "",
        "pending  scale to cpu*4",
        "checkpoint  of step 400, 1 min 15 s ago",
        "! the disk is full",
    ]


def test_an_unknown_state_and_nothing_else() -> None:
    assert shown({}).split() == ["job", "unknown"]


@pytest.mark.parametrize("state", ["starting", "training", "rescaling", "recovering", "finished", "failed", "other"])
def test_every_state_is_named(state: str) -> None:
    assert state in shown({"job": "x.py", "state": state})


def test_no_time_is_left_for_a_finished_job() -> None:
    assert "left" not in shown({**STATUS, "state": "finished", "step": 900})
    assert "left" not in shown({**STATUS, "state": "failed"})


def test_without_a_total_there_is_no_bar() -> None:
    text = shown({**STATUS, "total": None})
    assert not set("━─") & set(text)
    assert "step 412  epoch 7" in text


def test_a_silent_executor_stands_out() -> None:
    assert "\x1b[33m 4.2 s" in shown(STATUS, colour=True)


def test_one_logical_worker_is_one_number() -> None:
    assert " 7   " in shown({"executors": [{**STATUS["executors"][0], "logical_workers": [7, 7]}]})


def test_a_diverged_loss_is_shown() -> None:
    assert "loss nan" in shown({**STATUS, "loss": "nan"})


def test_many_executors_are_cut() -> None:
    text = shown({"executors": [{"executor": number} for number in range(70)]})
    assert "and 6 more executors" in text


def test_only_the_last_messages_are_shown() -> None:
    text = shown({"messages": [f"message {number}" for number in range(9)]})
    assert "message 8" in text
    assert "message 3" not in text


def test_who_is_set_aside_is_shown_with_what_that_gives() -> None:
    aside = [{"executor": 2, "kind": "cpu", "gain": 1.5}]
    words = "set aside  executor 2 (cpu): 1.50x faster without it; isoscale scale takes it back"
    assert words in shown({**STATUS, "set_aside": aside})
    assert "set aside" not in shown({**STATUS, "set_aside": []})


def test_open_requests_are_shown_with_what_they_wait_for() -> None:
    requests = [
        {"id": 3, "request": "scale", "outcome": "done", "detail": "training on cpu*3"},
        {"id": 4, "request": "stop", "target": "", "outcome": None, "open_s": 12.3, "waits_for": "waiting for step 5"},
    ]
    lines = [line for line in shown({**STATUS, "requests": requests}).splitlines() if line.startswith("request")]
    assert lines == ["request 4  stop, waiting for step 5 (12 s)"]


def test_markup_in_messages_is_text() -> None:
    assert "[bold]x[/bold]" in shown({"job": "[red]j", "messages": ["[bold]x[/bold]"]})


ANY = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.lists(st.integers()))


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(STATUS)), ANY), st.lists(st.dictionaries(st.text(max_size=9), ANY)))
def test_what_the_decoder_lets_pass_can_be_shown(status: dict[str, Any], executors: list[dict[str, Any]]) -> None:
    for junk in (status, {"executors": [*executors, {**STATUS["executors"][0], **status}]}):
        with contextlib.suppress(msgspec.ValidationError):
            shown(cast(dict[str, Any], msgspec.convert({**STATUS, **junk}, JobStatus)))


def test_the_widest_executor_fits_80_columns() -> None:
    widest = {"executor": 10, "pid": 4194304, "kind": "cpu-avx2", "state": "approaching", "logical_workers": [100, 127]}
    text = shown({"executors": [{**widest, "turn_s": 0.000549, "idle": 1.0, "last_seen_s": 0.544}]}, width=80)
    assert "…" not in text
    assert all(word in text for word in ("4194304", "approaching", "100-127", "0.549 ms", "100%", "544 ms"))


def test_how_it_ended_is_told() -> None:
    text = shown({"job": "x.py", "state": "failed", "error": "executor 0 was lost", "stop_reason": "", "digest": "ab"})
    assert "error  executor 0 was lost" in text
    assert "digest  ab" in text
    assert "reason" not in text
