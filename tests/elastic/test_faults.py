"""Faults as values: what they say, what they refuse, and that a seed is a story."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from isoscale import env
from isoscale.errors import UserError
from isoscale.runtime.executor import fault_points
from isoscale.runtime.executor.fault_points import POINTS, FaultPoint, InjectedError, install, parse
from isoscale.testing import RunningJob, faults
from isoscale.testing.chaos import DATA, Result, compare, story_of


def test_a_fault_reads_back_as_it_was_written() -> None:
    several = [
        faults.at("seal", executor=1, step=7),
        faults.at("landing", executor=12, action="stop"),
        faults.at("forming", executor=0, action="sleep", seconds=0.25),
    ]
    assert parse(";".join(map(str, several))) == several
    assert parse("executor=1,point=seal") == [FaultPoint(executor=1, point="seal")]
    assert parse("") == []


@pytest.mark.parametrize(
    "text",
    [
        "executor=1",
        "executor=one,point=seal",
        "executor=-1,point=seal",
        "executor=1,point=nowhere",
        "executor=1,point=seal,step=7.5",
        "executor=1,point=seal,action=explode",
        "executor=1,point=seal,colour=red",
        "executor=1,point=seal,action=sleep,seconds=long",
    ],
)
def test_what_is_no_fault_is_refused_with_the_points_there_are(text: str) -> None:
    with pytest.raises(UserError, match="ISOSCALE_FAULT") as caught:
        parse(text)
    assert "handover" in caught.value.remedy


def test_every_point_can_be_wrapped() -> None:
    assert fault_points._WRAP.keys() == POINTS.keys()


@pytest.mark.parametrize(("point", "written"), [("checkpoint", [8]), ("checkpointed", [8, 12])])
def test_the_step_of_a_checkpoint_is_its_own_while_training_goes_on(point: str, written: list[int]) -> None:
    steps: list[int] = []
    writer = SimpleNamespace(_write=lambda snapshot, step, generation, blocked, *, final: steps.append(step))
    member, job = SimpleNamespace(executor=0, writer=writer), SimpleNamespace(step=14)
    install(f"executor=0,point={point},step=12,action=raise", cast("Any", member), cast("Any", job))
    writer._write({}, 8, 1, 0.0)
    with pytest.raises(InjectedError):
        writer._write({}, 12, 1, 0.0)
    assert steps == written


def test_a_point_that_does_not_exist_is_refused_before_the_job_begins() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        faults.at("nowhere", executor=0)


def test_without_the_variable_there_are_no_faults() -> None:
    assert env.fault({}) is None
    assert env.fault({env.FAULT: ""}) is None
    assert env.fault({env.FAULT: "executor=0,point=seal"}) == "executor=0,point=seal"


def test_a_seed_is_a_story() -> None:
    assert [story_of(seed) for seed in range(50)] == [story_of(seed) for seed in range(50)]
    assert len({tuple(story_of(seed).lines()) for seed in range(50)}) == 50


def test_seeds_tell_of_everything() -> None:
    stories = [story_of(seed) for seed in range(300)]
    kinds = {fault.kind for story in stories for fault in story.faults}
    assert kinds == set(get_args(faults.Kind)) - {"kill_loaders", "rebatch"}
    with_loaders = [story_of(seed, DATA["processes"]) for seed in range(300)]
    assert all("kill_loaders" in {fault.kind for fault in story.faults} for story in with_loaders)
    with_sizes = [story_of(seed, DATA["live"]) for seed in range(50)]
    assert all("rebatch" in {fault.kind for fault in story.faults} for story in with_sizes)
    assert {story.executors for story in stories} == {1, 2, 3, 4}
    assert len({point.point for story in stories for point in story.points}) > 15


RESULT = Result(digest="d", state="s", losses={1: 0.5, 2: 0.25}, logged={(0, 2): {"accuracy": 0.5}}, curves={})


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (RESULT, ""),
        (replace(RESULT, digest="e", losses={1: 0.5, 2: 0.3}), "digest e is not d; the first other loss is of step 2"),
        (replace(RESULT, state="t"), "final.pt holds other values"),
        (replace(RESULT, losses={1: 0.5}), "events lack steps [2]"),
        (replace(RESULT, losses={1: 0.5, 2: 0.3}), "losses differ"),
        (replace(RESULT, logged={}), "logged values differ: {} not {(0, 2): {'accuracy': 0.5}}"),
    ],
)
def test_whatever_differs_is_named(found: Result, problem: str) -> None:
    assert compare(RESULT, found) == problem


def test_a_step_that_is_written_down_twice_must_be_the_same(tmp_path: Path) -> None:
    job = RunningJob(tmp_path)
    line, log = '{{"t": 1, "event": "step", "step": 1, "loss": {}}}\n', tmp_path / "events.jsonl"
    log.write_text(line.format(0.5) + line.format(0.5) + line.format(0.25)[:-3])
    assert job.losses() == {1: 0.5}
    with log.open("a") as file:
        file.write(line.format(0.25)[-3:])  # the rest of a line that was half written
    with pytest.raises(AssertionError, match="step 1 differs"):
        job.losses()
