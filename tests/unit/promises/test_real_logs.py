"""Logs of real runs: those of faults that ended with equal digests, and one in which every change must be seen."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.analysis.promises import check
from tests.unit.promises.histories import Event, real, real_record

SETTINGS = {"lost_after_s": 2.0, "heartbeat_s": 0.4}


@pytest.mark.parametrize(
    ("name", "promise", "words"),
    [
        (
            "paused_coordinator",
            "sealed",
            "steps 1-51 were done again: executor 0 held them, was alive, and was killed by mistake",
        ),
        (
            "paused_coordinator",
            "killed",
            "executor 0 was killed: silent for 5.0 s, but 0.0 s before it had sealed step 51",
        ),
        ("stopped_without_checkpoint", "answered", "stopped at step 4: without a checkpoint"),
        (
            "stopped_without_checkpoint",
            "sealed",
            "steps 1-4 were done again: they were sealed when the job was stopped on request",
        ),
        (
            "crash_loop",
            "progress",
            "began again 6 times without coming beyond step 7: it should have been given up",
        ),
        (
            "burst",
            "target",
            "the target was given up after one burst: scaling is given up: "
            "3 newcomers ended before they could join: killed by SIGKILL",
        ),
    ],
)
def test_what_a_digest_cannot_show(name: str, promise: str, words: str) -> None:
    findings = check(real(name), settings=SETTINGS).findings
    assert words in [f"{one.what}: {one.why}" for one in findings if one.promise == promise]


def test_each_of_them_breaks_only_what_it_broke() -> None:
    broken = {
        name: check(real(name), settings=SETTINGS).broken
        for name in ("paused_coordinator", "stopped_without_checkpoint", "crash_loop", "burst")
    }
    assert broken == {
        "paused_coordinator": ["sealed", "killed"],
        "stopped_without_checkpoint": ["sealed", "answered"],
        "crash_loop": ["progress"],
        "burst": ["target"],
    }


def storm() -> list[Event]:
    """A kill, a scale-out, a notice, a death of all, a death of the coordinator; with a request that is answered."""
    events = real("storm")
    at = next(i for i, event in enumerate(events) if event.get("step") == 75)
    t = events[at]["t"]
    events[at + 1 : at + 1] = [
        {"t": t, "event": "request", "id": 1, "request": "scale", "target": "3", "away": [], "reason": "asked"},
        {"t": t, "event": "answered", "id": 1, "outcome": "done", "detail": ""},
    ]
    return events


def test_a_storm_that_was_weathered() -> None:
    for record in (None, real_record("storm")):
        verdict = check(storm(), record=record)
        assert [(one.promise, one.said) for one in verdict.judgements if one.said != "kept"] == []


def test_without_its_record_a_loss_would_have_no_cause() -> None:
    record = real_record("storm")
    record.deeds = [deed for deed in record.deeds if deed.executor != 1]
    assert check(storm(), record=record).broken == ["killed"]


#: of which every one matters
WEIGHTY = ("step", "coordinator_started", "generation", "finished", "request", "answered", "executor_lost")
STORM, RECORD = storm(), real_record("storm")
PLACES = [i for i, event in enumerate(STORM) if event["event"] in WEIGHTY]


def found(events: list[Event]) -> bool:
    return bool(check(events, record=RECORD).findings)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([i for i in PLACES if STORM[i]["event"] in ("step", "request", "answered")]))
def test_an_event_that_is_missing_is_missed(place: int) -> None:
    assert found([event for i, event in enumerate(STORM) if i != place]), f"without {STORM[place]}"


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([i for i in PLACES if STORM[i]["event"] != "executor_lost"]))
def test_an_event_that_comes_twice_is_noticed(place: int) -> None:
    assert found([*STORM[: place + 1], STORM[place], *STORM[place + 1 :]]), STORM[place]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_steps_in_another_order_are_noticed(data: st.DataObject) -> None:
    steps = [i for i in PLACES if STORM[i]["event"] == "step"]
    one = data.draw(st.sampled_from(steps[:-1]))
    two = data.draw(st.sampled_from([i for i in steps if i > one and STORM[i]["step"] != STORM[one]["step"]]))
    events = list(STORM)
    events[one], events[two] = events[two], events[one]
    assert found(events), (STORM[one]["step"], STORM[two]["step"])


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([i for i in PLACES if STORM[i]["event"] == "step"]), st.sampled_from(["step", "batch", "loss"]))
def test_a_step_with_another_value_is_noticed(place: int, field: str) -> None:
    step = STORM[place]["step"]
    if field == "loss" and sum(event.get("step") == step and event["event"] == "step" for event in STORM) < 2:
        return  # a loss that was reported once is compared with nothing
    if field == "batch" and STORM[place]["batch"] == STORM[place]["of"] - 1 and step == STORM[-1]["step"]:
        return  # nothing follows it
    events = copy.deepcopy(STORM)
    events[place][field] += 1
    assert found(events), STORM[place]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([i for i in PLACES if STORM[i]["event"] == "generation"]), st.integers(20, 99))
def test_a_member_that_nobody_started_is_noticed(place: int, stranger: int) -> None:
    events = copy.deepcopy(STORM)
    events[place]["members"][0] = stranger
    assert found(events)


def test_a_loss_that_is_not_written_down_makes_steps_be_done_again_beside_the_living() -> None:
    losses = [
        i for i, event in enumerate(STORM) if event["event"] == "executor_lost" and event["executor"] in (2, 4, 5)
    ]
    assert len(losses) == 3
    for place in losses:
        events = [event for i, event in enumerate(STORM) if i != place]
        assert "sealed" in check(events, record=real_record("storm")).broken
