"""What jobs tell reaches policies: costs of changes, turns by batch size; and pictures, however they are made."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from isoscale.cluster import engine as engine_module
from isoscale.cluster.batches import Batches
from isoscale.cluster.change_costs import RESCALE_S, ChangeCosts
from isoscale.cluster.engine import Engine, _Told
from isoscale.cluster.learning import Learner
from isoscale.cluster.live import Live
from isoscale.cluster.publishing import picture_of
from isoscale.cluster.requests import learned
from isoscale.cluster.run import Seen
from isoscale.cluster.transaction import Transaction
from isoscale.cluster.values import JobRecord, Submission
from isoscale.scheduling.driving import JobAdopted, JobState, Standing, StateChanged
from isoscale.scheduling.events import RequestChanged
from isoscale.scheduling.state import Cluster, Node
from tests.unit.cluster.conftest import World
from tests.unit.cluster.test_engine_rounds import START, an_engine

CLUSTER = Cluster(nodes=(Node(name="local", kind="cpu", num_devices=2),))


def a_status(step: int, **fields: Any) -> Any:
    member = {"executor": 0, "kind": "cpu", "logical_workers": [0, 1], "turn_s": 0.1}
    return {
        "state": "training",
        "step": step,
        "loss": 0.5,
        "total": 1000,
        "executors": [member],
        "steps_per_s": 5.0,
        **fields,
    }


def a_live() -> Live:
    submission = Submission(code="c", workers=2, batch_sizes=(8, 16))
    record = JobRecord(id="j1", number=1, submission=submission, name="n", tenant="t", owner="o")
    return Live(record, Learner(workers=2, kinds=("cpu",)))


def asked_anew(live: Live, status: Any, now: float = 0.0) -> list[float | None]:
    events = learned(live, status, CLUSTER, now)
    return [event.request.restart_s for event in events if isinstance(event, RequestChanged)]


def test_what_a_change_costs_a_job_is_told_when_it_is_known_and_when_it_is_another() -> None:
    live = a_live()
    assert asked_anew(live, a_status(1)) == []
    assert asked_anew(live, a_status(2, switch_s=None)) == []
    assert asked_anew(live, a_status(3, switch_s=0.08)) == [0.08]
    assert asked_anew(live, a_status(4, switch_s=0.09)) == []
    assert asked_anew(live, a_status(5, switch_s=1.5)) == [1.5]
    # Another coordinator has seen no change yet: what was seen before counts.
    assert asked_anew(live, a_status(6, switch_s=None)) == []
    assert live.restart_s == 1.5


def test_what_others_showed_is_expected_of_a_job_that_has_not() -> None:
    costs = ChangeCosts()
    assert costs.costs().rescale_s == RESCALE_S
    for seconds in (0.1, 0.2, 9.0):
        costs.changed(seconds)
    costs.started(1.0)
    costs.started(3.0)
    assert costs.costs().rescale_s == costs.rescale_s == 0.2
    assert costs.costs().start_s == costs.costs().resume_s == 2.0


def test_turns_of_the_size_before_are_not_taken_for_those_of_the_new_one() -> None:
    batches = Batches(workers=2, kinds=("cpu",), sizes=(8, 16), begun_with=8, size=8)

    def look(step: int, size: int, turn_s: float, now: float) -> Mapping[str, tuple[float, float]] | None:
        member = {"executor": 0, "kind": "cpu", "logical_workers": [0, 1], "turn_s": turn_s}
        declared = {"size": size, "sizes": [8, 16], "rule": "linear"}
        batches.look(a_status(step, executors=[member], batch=declared), now)
        model = batches.model()
        return model.turns if model is not None else None

    for step in range(40):
        look(step, 8, 0.1, float(step))
    # It has switched, and its coordinator still tells the mean of before for some beats.
    for step in range(40, 45):
        look(step, 16, 0.1, float(step))
    for step in range(45, 60):
        look(step, 16, 0.2, float(step))
    fixed, per_sample = batches._told.turns["cpu"]  # type: ignore[union-attr]
    assert (fixed, round(per_sample * 16, 6)) == (0.0, 0.2)
    # And steps that take long are believed when there were some.
    for number in range(4):
        assert look(60 + number, 8, 7.0, 1000.0 * number) is None or batches._told.turns["cpu"][0] == 0.0  # type: ignore[union-attr]


def adopt(world: World, engine: Engine, job: str, device: str) -> None:
    """It runs, on this device."""
    record = world.service.store.job(job)
    assert record is not None
    live = engine.live[job] = Live(record, engine.learner(record), is_offered=True)
    held = Standing(state="running", granted=(device,), holds=(device,), number=1, attempt=1, is_up=True)
    engine.turn([JobAdopted(engine.submission(live), held)])


def test_who_looks_sees_how_far_jobs_are_while_nothing_can_be_written_down(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_DISK_S", 0.01)
    world.submit()
    engine = an_engine(world, lambda: START, 1.0)
    adopt(world, engine, "j1", "local/cpu/0")
    called: list[int] = []
    steps: list[int] = []

    def write() -> str:
        if len(steps) == 3:
            return "written"
        for step in (10 * len(steps) + 1, 10 * len(steps) + 2):
            engine.post(Seen("j1", 1, a_status(step, samples=32 * step)))
            engine.call(lambda engine, step=step: called.append(step) or [])
        steps.append(engine.picture.jobs["j1"].step)
        raise sqlite3.OperationalError("database or disk is full")

    assert engine.persist(write) == "written"
    assert steps == [0, 2, 12]
    assert (engine.picture.jobs["j1"].step, engine.picture.jobs["j1"].samples) == (22, 22 * 32)
    assert called == []
    # What was posted meanwhile is done afterwards, in its order; of what a job said of itself only the last counts.
    messages = engine._next_messages()
    assert [one.status["step"] for one in messages if isinstance(one, Seen)] == [22]
    engine.turn(messages)
    assert called == [1, 2, 11, 12, 21, 22]
    engine.close()


def test_what_could_not_be_written_down_at_first_is_told_whole(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.submit()
    engine = an_engine(world, lambda: START, 1.0)
    adopt(world, engine, "j1", "local/cpu/0")

    def turn(old: JobState, new: JobState, after_s: float) -> None:
        engine._recorder.record([StateChanged("j1", old, new, "policy")], engine.live, START + after_s)

    turn("queued", "starting", 0.0)
    turn("starting", "running", 0.0)
    turn("running", "resizing", 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "set_state", full)
        with pytest.raises(sqlite3.OperationalError):
            turn("resizing", "running", 2.0)
    turn("resizing", "running", 3.5)
    assert world.service.store.events()[-1].fields["took_s"] == 2.5
    engine.close()


def full(*arguments: object, **fields: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_a_node_that_goes_while_nothing_can_be_written_down_is_written_down_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_DISK_S", 0.01)
    service, tried = world.service, []
    engine = an_engine(world, lambda: START, 1.0)
    monkeypatch.setattr(service, "_engine", engine)
    write = service.store.write

    def full(**told: Any) -> Any:
        tried.append(told)
        if len(tried) < 3:
            raise sqlite3.OperationalError("database or disk is full")
        return write(**told)

    monkeypatch.setattr(service.store, "write", full)
    service._on_gone(["local/cpu/1"])
    engine.turn(engine._next_messages())
    assert engine.away == {"local/cpu/1"}
    assert len(tried) >= 3
    engine.close()


def test_a_quiet_turn_shows_what_a_whole_picture_shows(world: World) -> None:
    for _ in range(3):
        world.submit()
    at = [START]
    engine = an_engine(world, lambda: at[0], 1.0)
    engine._driver.controller.policy.watches_time = True
    running = ("j1", "j2")
    for job, device in zip(running, ("local/cpu/0", "local/cpu/1"), strict=True):
        adopt(world, engine, job, device)
    engine.turn([_Told("submitted", "j3")])

    def whole() -> Any:
        return picture_of(
            engine._driver,
            engine.device_names,
            engine.live,
            now=at[0],
            policy=engine.policy,
            quotas=engine.quotas,
            away=engine.away,
            cores={},
            estimates=engine.estimates,
        )

    for number in range(1, 20):
        at[0] += 0.4
        job = running[number % len(running)]
        engine.turn([Seen(job, engine._driver.standing(job).attempt, a_status(number))])
        assert engine.picture.jobs[job].step == number
        assert engine.picture == replace(whole(), t=engine.picture.t)
        if number % 5 == 0:
            before = engine._driver.controller.num_rounds
            at[0] = engine._due_s
            engine.turn([])
            assert engine._driver.controller.num_rounds == before + 1
            assert engine.picture == replace(whole(), t=engine.picture.t)
    assert engine.picture.queue == ("j3",)
    engine.close()
