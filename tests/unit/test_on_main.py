"""`job.on_main`: who has the object when, what it is told, and what its failures cost."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import isoscale
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.rules import Turn
from isoscale.core.streams import rng
from isoscale.errors import TurnRuleError, UserError
from isoscale.runtime.training.execute import execute
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.on_main import MainObjects, MainRun
from isoscale.runtime.training.tracker_shapes import close_of, log_of
from isoscale.types import JobSpec

DATA = TensorDataset(torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2)


class Tracker:
    def __init__(self, run: MainRun, told: list[Any]) -> None:
        self.run, self.told = run, told
        told.append(("made", run.step))

    def log(self, values: dict[str, Any], step: int) -> None:
        self.told.append((step, *values))

    def finish(self) -> None:
        self.told.append("closed")

    def note(self, text: str) -> str:
        self.told.append(text)
        return text


class Place:
    """An executor that is moved about by a test."""

    def __init__(self) -> None:
        self.is_main, self.step, self.warnings, self.told = False, 0, list[str](), list[Any]()
        self.objects = MainObjects(
            Path("runs/one"),
            Turn(),
            is_main=lambda: self.is_main,
            step=lambda: self.step,
            warn=self.warnings.append,
        )

    def add(self, factory: Callable[..., Any] | None = None, **options: Any) -> isoscale.OnMain[Any]:
        made = factory or (lambda run: Tracker(run, self.told))
        return self.objects.add(made, **({"log": "auto", "close": None, "every": 1} | options))

    def commit(self) -> None:
        self.step += 1
        self.objects.tell(self.step, {"loss": 0.5}, is_step=True)


def test_a_successor_tells_what_its_predecessor_may_not_have_written() -> None:
    place = Place()
    place.add()
    for _ in range(3):
        place.commit()
    assert place.told == []
    place.is_main = True
    place.commit()
    assert place.told == [("made", 0), *((step, "loss") for step in (1, 2, 3, 4))]


def test_what_was_handed_over_is_not_told_again() -> None:
    place = Place()
    place.add()
    place.commit()
    place.commit()
    place.objects.handed_over()
    place.is_main = True
    place.objects.settle()
    place.commit()
    assert place.told == [("made", 2), (3, "loss")]


def test_what_a_main_one_lost_in_a_switch_should_have_told_is_told_again() -> None:
    place = Place()
    place.add()
    place.commit()
    place.objects.handed_over()
    place.objects.handed_over()  # the first attempt came to nothing
    place.objects.recovered()
    place.is_main = True
    place.commit()
    assert place.told == [("made", 0), (1, "loss"), (2, "loss")]


def test_a_step_after_a_switch_shows_that_all_was_told_before_it() -> None:
    place = Place()
    place.add()
    place.commit()
    place.objects.handed_over()
    place.commit()
    place.objects.recovered()
    place.is_main = True
    place.commit()
    assert place.told == [("made", 1), (2, "loss"), (3, "loss")]


def test_the_last_words_need_nothing_that_comes_after_them() -> None:
    place = Place()
    place.add()
    place.commit()
    place.objects.tell_left()
    assert place.told == []
    place.is_main = True
    place.objects.tell_left()
    place.objects.tell_left()
    assert place.told == [("made", 0), (1, "loss")]


def test_it_is_closed_when_another_executor_has_it_and_made_anew_when_it_comes_back() -> None:
    place = Place()
    place.add()
    place.is_main = True
    place.commit()
    place.is_main = False
    place.commit()
    place.objects.settle()
    assert place.told == [("made", 0), (1, "loss"), "closed"]
    place.objects.handed_over()
    place.is_main = True
    place.commit()
    place.objects.close()
    place.objects.close()
    assert place.told[3:] == [("made", 2), (3, "loss"), "closed"]


def test_a_job_from_a_checkpoint_does_not_tell_what_it_comes_by_on_its_way() -> None:
    place = Place()
    tracker = place.add()
    place.is_main, place.objects.begin_step = True, 40
    tracker.note("set-up")
    place.objects.tell(0, {"accuracy": 0.1}, is_step=False)
    place.step = 40
    place.objects.tell(40, {"accuracy": 0.5}, is_step=False)
    place.commit()
    assert place.told == [("made", 40), "set-up", (40, "accuracy"), (41, "loss")]


def test_methods_give_nothing_back_and_do_nothing_elsewhere() -> None:
    place = Place()
    tracker = place.add()
    assert tracker.note("elsewhere") is None
    assert tracker.here is None
    place.is_main = True
    assert tracker.note("here") is None
    assert isinstance(tracker.here, Tracker)
    assert place.told == [("made", 0), "here"]


def test_it_is_refused_in_a_turn() -> None:
    place = Place()
    tracker = place.add()
    place.objects.turn.logical_rank = 2
    with pytest.raises(TurnRuleError, match=r"logical worker 2: an object of job\.on_main is used in a turn"):
        tracker.note("x")


def test_every_says_how_often_steps_are_told() -> None:
    place = Place()
    place.is_main = True
    place.add(every=2)
    place.commit()
    place.commit()
    place.objects.tell(2, {"accuracy": 1.0}, is_step=False)
    assert place.told == [("made", 0), (2, "loss"), (2, "accuracy")]


def test_a_factory_that_fails_ends_the_job_only_before_it_has_trained() -> None:
    def broken() -> object:
        raise OSError("no route to the server")

    place = Place()
    place.add(broken)
    place.is_main = True
    with pytest.raises(OSError, match="no route"):
        place.objects.settle()
    place.step = 7
    place.objects.settle()
    place.objects.settle()
    (warning,) = place.warnings
    assert "broken): the object could not be made" in warning
    assert "OSError: no route to the server" in warning


def test_a_tracker_that_fails_costs_one_warning_of_each_sort() -> None:
    class Broken:
        def log(self, values: object, step: int) -> None:
            raise ConnectionError("gone")

        def close(self) -> None:
            raise ConnectionError("gone for good")

    place = Place()
    place.add(Broken)
    place.is_main = True
    for _ in range(3):
        place.commit()
    place.objects.close()
    told, closed = place.warnings
    assert "did not take what was logged at step 1; training goes on (ConnectionError: gone)" in told
    assert "could not be closed" in closed


def test_random_numbers_of_a_tracker_are_its_own() -> None:
    place = Place()
    tracker = place.add(lambda: random.seed(1) or Restless())
    with rng.isolated():
        rng.seed_all(5)
        place.is_main = True
        place.commit()
        tracker.draw()
        place.objects.close()
        drawn = (random.random(), torch.rand(1).item())
        rng.seed_all(5)
        assert drawn == (random.random(), torch.rand(1).item())


class Restless:
    def draw(self, *_: object, **__: object) -> None:
        random.random()
        torch.rand(3)

    log = close = draw


def test_shapes_of_trackers() -> None:
    told: list[Any] = []

    class Board:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            told.append((name, value, step))

        def close(self) -> None:
            told.append("close")

    class Flow:
        def log_metrics(self, values: dict[str, float], step: int) -> None:
            told.append((values, step))

        def end_run(self) -> None:
            told.append("end_run")

        def close(self) -> None:
            raise AssertionError

    for one in (Board(), Flow()):
        log_of(one)(one, {"a": 1, "best": True, "note": "x", "none": None}, 3)
        close_of(one)(one)
    assert told == [("a", 1.0, 3), ("best", 1.0, 3), "close", ({"a": 1.0, "best": 1.0}, 3), "end_run"]
    with pytest.raises(UserError, match=r"=int: has none of the methods .* give job.on_main\(factory, log=...\)"):
        log_of(3)
    close_of(3)(3)


def test_a_whole_job(tmp_path: Path) -> None:
    """Means of steps and `job.log` reach it, in order, and it is known before the first step."""
    told: list[Any] = []

    def train(job: Job) -> None:
        tracker = job.on_main(lambda run: Tracker(run, told))
        tracker.note(f"{job.num_logical_workers} workers")
        model = job.model(nn.Linear(3, 2))
        optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in job.epochs(1):
            for step in job.loader(DATA, batch_size=3):
                for x, y in step:
                    loss = F.cross_entropy(model(x), y)
                    loss.backward()
                    step.log(loss=loss)
                optimizer.step()
                optimizer.zero_grad()
            job.log(accuracy=0.5, note="good")

    class Silent:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda **facts: None

    sink: Any = Silent()
    loop = TrainingLoop(JobSpec(workers=2, out=str(tmp_path)), LocalExchange(2), sink)
    with rng.isolated():
        execute(loop, train)
    loop.main_objects.close()
    assert told == [("made", 0), "2 workers", (1, "loss"), (2, "loss"), (2, "accuracy", "note"), "closed"]
