from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.timelines.timeline import as_json, jobs_of, timeline
from isoscale.timelines.values import Life, Timeline
from tests.unit.analysis.logs import Writer, crowd, old, simulated, story

STORY = timeline(story(), job="digits.py")


def life(shown: Timeline, executor: int, number: int = 0) -> Life:
    return [life for life in shown.lives if life.executor == executor][number]


def blocks(shown: Life) -> list[tuple[int | None, int | None]]:
    return [(stay.first, stay.last) for stay in shown.stays]


def test_the_headline_of_a_story() -> None:
    assert (STORY.state, STORY.step, STORY.num_logical_workers, STORY.term, STORY.generation) == (
        "finished",
        432,
        8,
        2,
        7,
    )
    assert [size for _, size in STORY.sizes] == [1, 3, 2, 4, 3, 4]
    assert STORY.digest == story()[-1]["digest"]
    assert (STORY.steps_redone, STORY.epoch, STORY.error) == (0, 8, "")
    assert dict(STORY.logged) == {"accuracy": pytest.approx(0.92, abs=0.05)}


def test_where_logical_workers_lived() -> None:
    assert blocks(life(STORY, 0)) == [(0, 7), (0, 2), (0, 3), (0, 1), (0, 2), (0, 1), (0, 2)]
    assert blocks(life(STORY, 1)) == [(3, 5)]
    # It kept its workers when generation 5 began, so that is one stay.
    assert blocks(life(STORY, 4)) == [(6, 7), (4, 5), (5, 6)]


def test_at_every_instant_of_training_each_logical_worker_lives_in_one_place() -> None:
    for t in (4.0, 14.0, 21.0, 24.0, 26.5, 30.0, 39.0):
        hosted = [
            rank
            for life in STORY.lives
            for stay in life.stays
            if stay.start <= t < stay.end and stay.first is not None and stay.last is not None
            for rank in range(stay.first, stay.last + 1)
        ]
        assert sorted(hosted) == list(range(8)), t


def test_how_executors_ended() -> None:
    assert {life.executor: life.ending for life in STORY.lives} == {
        0: "ended",
        1: "left",
        2: "ended",
        3: "lost",
        4: "ended",
        5: "ended",
    }
    lost = life(STORY, 3)
    assert lost.reason == "killed by SIGKILL"
    assert lost.stays[-1].end == lost.ended < STORY.seconds


def test_an_executor_gets_ready_before_it_joins() -> None:
    newcomer = life(STORY, 1)
    assert newcomer.joined is not None
    assert newcomer.started < newcomer.joined <= newcomer.stays[0].start


def test_idle_shares_are_those_measured() -> None:
    slow, waiting = life(STORY, 5), life(STORY, 4)
    assert slow.turn_s == pytest.approx(0.06)
    assert waiting.turn_s == pytest.approx(0.02)
    assert slow.idle is not None
    assert waiting.idle is not None
    assert slow.idle < 0.1 < 0.3 < waiting.idle
    assert STORY.idle is not None
    assert 0.1 < STORY.idle < 0.4


def test_idle_is_weighted_by_time() -> None:
    w = Writer()
    w.start(0)
    w.place([0], "start")
    w.write("executor_speed", executor=0, steps=90, step_s=1.0, idle=0.0)
    w.write("executor_speed", executor=0, steps=10, step_s=9.0, idle=1.0)
    assert life(timeline(w.events), 0).idle == pytest.approx(0.5)


def test_idle_without_a_share_is_what_exchanges_took() -> None:
    w = Writer()
    w.start(0)
    w.write("executor_speed", executor=0, exchange_s=0.2, step_s=0.8)
    assert life(timeline(w.events), 0).idle == pytest.approx(0.25)


def test_rescales_with_pause_wait_and_gap() -> None:
    first, *_, last = STORY.rescales
    assert len(STORY.rescales) == 6
    assert (first.num_before, first.num_after, first.shares, first.wait_s) == (1, 3, (3, 3, 2), 0.4)
    assert first.pause_s is not None
    assert first.gap_s is not None
    assert first.gap_s > first.pause_s + 0.4
    assert STORY.longest_gap_s == pytest.approx(first.gap_s)
    assert (last.num_before, last.num_after, last.reason) == (4, 4, "straggler")
    assert first.t == life(STORY, 1).stays[0].start


def test_marks() -> None:
    assert [(mark.kind, mark.executor) for mark in STORY.marks] == [
        ("notice", 1),
        ("lost", 3),
        ("straggler", 5),
        ("coordinator", None),
        ("warning", None),
    ]
    assert STORY.marks[2].text == "3.1 times as slow as the median"


def test_throughput_grows_with_executors() -> None:
    def rate_at(t: float) -> float:
        return max(
            (at, value) for at, value in zip(STORY.throughput.t, STORY.throughput.value, strict=True) if at <= t
        )[1]

    assert rate_at(6.0) < rate_at(16.0) < rate_at(24.0)
    assert rate_at(30.0) < rate_at(36.0), "the straggler lost workers"


def test_a_log_without_generations_uses_who_joined() -> None:
    shown = timeline(old(2))
    assert [blocks(life) for life in shown.lives] == [[(None, None)], [(None, None)]]
    assert [blocks(life) for life in timeline(old(2), num_logical_workers=5).lives] == [[(0, 2)], [(3, 4)]]
    assert [size for _, size in shown.sizes] == [2]


def test_members_of_a_rescale_stand_in_for_a_missing_generation() -> None:
    events = [event for event in story() if event["event"] != "generation"]
    shown = timeline(events)
    assert blocks(life(shown, 2)) == [(6, 7), (4, 7), (2, 3), (3, 5), (2, 3), (3, 4)]


def test_members_that_only_joined_add_up() -> None:
    events = [
        {"t": 1, "event": "executor_joined", "executor": 0, "generation": 1},
        {"t": 5, "event": "executor_joined", "executor": 1, "generation": 2},
        {"t": 8, "event": "executor_lost", "executor": 0},
        {"t": 9, "event": "executor_joined", "executor": 2, "generation": 3},
        {"t": 10, "event": "step", "step": 1},
    ]
    shown = timeline(events, num_logical_workers=4)
    assert blocks(life(shown, 0)) == [(0, 3), (0, 1)]
    assert blocks(life(shown, 1)) == [(2, 3), (0, 1)]
    assert blocks(life(shown, 2)) == [(2, 3)]


@pytest.mark.parametrize(
    ("ending", "state"),
    [
        ({"event": "finished", "step": 3, "digest": "d"}, "finished"),
        ({"event": "failed", "step": 3, "error": "no"}, "failed"),
        ({"event": "stopped", "step": 3}, "stopped"),
        ({"event": "warning", "message": "hm"}, "running"),
    ],
)
def test_states(ending: dict[str, Any], state: str) -> None:
    w = Writer()
    w.start(0)
    w.place([0], "start")
    w.train(3)
    assert timeline([*w.events, {"t": w.t + 1, **ending}]).state == state


def test_a_failed_job_that_was_resumed_runs_and_redoes_steps() -> None:
    w = Writer()
    w.start(0)
    w.place([0], "start")
    w.train(9)
    w.write("failed", step=10, error="power")
    w.write("coordinator_started", term=2, pid=1)
    w.start(0)
    w.step, w.members = 6, []
    w.place([0], "resume")
    w.train(1)
    shown = timeline(w.events)
    assert (shown.state, shown.step, shown.steps_redone) == ("running", 8, 2)
    assert [life.ending for life in shown.lives] == ["ended", ""]


def test_a_number_used_again_is_another_life_even_if_nobody_saw_the_first_end() -> None:
    w = Writer()
    w.start(0)
    w.place([0], "start")
    w.start(0)
    w.members = []
    w.place([0], "resume")
    shown = timeline(w.events)
    assert [(life.pid, life.ending) for life in shown.lives] == [(4000, "lost"), (w.pids[0], "")]


def test_executors_that_end_with_the_job_are_no_fault() -> None:
    events = story()
    late = {"t": events[-1]["t"] + 1, "event": "executor_lost", "executor": 0, "pid": 1, "reason": "killed"}
    shown = timeline([*events, late])
    assert sum(mark.kind == "lost" for mark in shown.marks) == 1
    assert shown.state == "finished"


def test_events_that_were_handed_in_late_are_put_in_order() -> None:
    events = story()
    late = [event for event in events if event["event"] == "step" and 300 < event["step"] < 350]
    shown = timeline([event for event in events if event not in late] + late)
    assert shown.loss == STORY.loss
    assert shown.longest_gap_s == STORY.longest_gap_s


def test_an_empty_log() -> None:
    shown = timeline([])
    assert (shown.state, shown.step, shown.lives, shown.loss.t) == ("empty", 0, (), ())
    assert json.loads(json.dumps(as_json(shown), allow_nan=False))["state"] == "empty"


def test_unknown_events_are_passed_over() -> None:
    events = story()
    strange = [{"t": event["t"], "event": "weather", "executor": 99, "pid": 3} for event in events[:50]]
    assert timeline([*events, *strange], job="digits.py") == STORY


def test_the_first_loss_that_is_not_finite_is_told_and_not_drawn() -> None:
    w = Writer()
    w.start(0)
    w.place([0], "start")
    w.train(5)
    for event in [event for event in w.events if event["event"] == "step"][3:]:
        event["loss"] = "nan"
    shown = timeline(w.events)
    assert len(shown.loss.t) == 3
    assert [mark.text for mark in shown.marks] == ["the loss of step 4 is nan"]


def test_simulated_jobs_have_sizes_and_virtual_time() -> None:
    shown = timeline(simulated())
    assert (shown.simulated, shown.state) == (True, "finished")
    assert [size for _, size in shown.sizes] == [2, 5]
    assert [(r.num_before, r.num_after) for r in shown.rescales] == [(2, 5)]
    assert not STORY.simulated


def test_jobs_of_a_log() -> None:
    assert jobs_of(story()) == []
    assert jobs_of([*simulated(), {"t": 1, "event": "step", "job": "b"}]) == ["a", "b"]


def test_long_logs_give_short_curves_that_keep_extremes() -> None:
    w = Writer(workers=1, turn_s=0.001)
    w.members, w.shares = [0], (1,)
    w.train(20_000)
    w.events[14_000]["loss"] = 1e3
    shown = timeline(w.events)
    assert shown.step == 20_000
    assert len(shown.loss.t) <= 1200
    assert len(shown.throughput.t) <= 241
    assert max(shown.loss.high) == 1e3
    assert len(json.dumps(as_json(shown))) < 250_000


def test_a_time_without_training_is_a_gap_and_no_line() -> None:
    times = [0.1 * number for number in range(30)] + [53.0 + 0.1 * number for number in range(30)]
    steps = [{"t": 1.8e9 + t, "event": "step", "step": n + 1, "loss": 1.0 / (n + 1)} for n, t in enumerate(times)]
    shown = timeline(steps)
    assert shown.loss.breaks == (30,)
    middle = [value for t, value in zip(shown.throughput.t, shown.throughput.value, strict=True) if 10 < t < 40]
    assert middle
    assert max(middle) == 0.0
    assert timeline(steps[:30]).loss.breaks == ()


def test_everything_that_was_logged_is_a_curve_over_steps() -> None:
    steps = [{"t": 1.8e9 + n, "event": "step", "step": n + 1, "loss": float(n)} for n in range(4)]
    again = [{"t": 1.8e9 + 10 + n, "event": "step", "step": n + 3, "loss": 10.0 + n} for n in range(2)]
    logs = [{"t": 1.8e9 + 4, "event": "log", "step": 4, "epoch": 0, "accuracy": 0.5, "note": "text"}]
    begun = [{"t": 1.8e9, "event": "coordinator_started", "term": 1, "command": "isoscale run train.py"}]
    shown = timeline([*begun, *steps, *logs, *again], directory="/runs/a")
    series = dict(shown.series)
    assert (series["loss"].t, series["loss"].value) == ((1, 2, 3, 4), (0.0, 1.0, 10.0, 11.0))
    assert (series["accuracy"].t, series["accuracy"].value) == ((4,), (0.5,))
    assert set(series) == {"loss", "accuracy"}
    assert (shown.command, shown.directory) == ("isoscale run train.py", "/runs/a")


def test_many_executors_and_changes() -> None:
    shown = timeline(crowd(64, changes=30))
    assert len({life.executor for life in shown.lives}) == 64
    assert all(life.stays == tuple(sorted(life.stays, key=lambda stay: stay.start)) for life in shown.lives)


def test_json_has_no_value_that_json_lacks() -> None:
    events = [*story(), {"t": 1e9 * 1.9, "event": "log", "step": 1, "epoch": 0, "gain": "inf"}]
    parsed = json.loads(json.dumps(as_json(timeline(events)), allow_nan=False))
    assert parsed["logged"]["gain"] == "inf"
    assert parsed["format"] == 1


NAMES = sorted({event["event"] for event in story()} | {"suspect", "failed", "stopped", "job_resized", "nonsense"})
SORTS: list[Any] = [None, True, -3, 10**30, math.nan, math.inf, "nan", [-1, 5], {"a": 1}]
FIELDS = sorted({name for event in story() for name in event} - {"event"} | {"error", "job", "ratio"})
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10),
    st.floats(),
    st.integers(),
    st.text(max_size=5),
    st.lists(st.integers(-1, 5), max_size=4),
    st.just("nan"),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


@pytest.mark.parametrize("name", NAMES)
def test_no_field_may_hold_anything_that_breaks_its_event(name: str) -> None:
    """Every sort of value in every field of an event that is whole but for it."""
    whole = {field: value for event in story() if event["event"] == name for field, value in event.items()}
    before, after = story(until="rescale")[-3:], {"t": 2e9, "event": "step", "step": 9, "loss": 1.0}
    for field in FIELDS:
        for value in SORTS:
            check_whole([*before, {**whole, "event": name, field: value}, after])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(FIELDS), VALUES)), max_size=25))
def test_no_log_is_too_broken(entries: list[tuple[str, dict[str, Any]]]) -> None:
    check_whole([{**fields, "event": name} for name, fields in entries])


def check_whole(events: list[dict[str, Any]]) -> None:
    shown = timeline(events)
    json.dumps(as_json(shown), allow_nan=False)
    assert math.isfinite(shown.seconds)
    for life in shown.lives:
        assert all(stay.start <= stay.end for stay in life.stays)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_real_log_with_holes(data: st.DataObject) -> None:
    events = story()
    for index in data.draw(st.lists(st.integers(0, len(events) - 1), max_size=40)):
        events[index].pop(data.draw(st.sampled_from(sorted(events[index]))), None)
    shown = timeline(events)
    json.dumps(as_json(shown), allow_nan=False)
    assert shown.state in ("finished", "running")


def test_a_coordinator_that_was_not_running_is_marked() -> None:
    w = Writer()
    w.start(0)
    w.place([0], "start")
    w.write("coordinator_paused", seconds=14.04)
    w.train(1)
    (mark,) = timeline(w.events).marks
    assert (mark.kind, mark.text) == ("coordinator", "the coordinator was not running for 14.0 s")
