"""What the training loop does for those around it: facts, the end, what a probe sees, what a script cannot touch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.streams import rng
from isoscale.runtime.training.execute import execute
from isoscale.runtime.training.horizon import Horizon
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.sink import Facts
from isoscale.types import JobSpec
from tests.unit.faulty import Fault, Survivor, World

DATA = TensorDataset(torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2)


@pytest.fixture(autouse=True)
def leave_streams() -> Iterator[None]:
    with rng.isolated():
        yield


class Recording:
    """A sink and a probe that notes the names of what it is told, with the logical rank where there is one."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def turn_begins(self, logical_rank: int, batch: object) -> None:
        self.calls.append(("turn begins", logical_rank))

    def turn_ends(self, logical_rank: int) -> None:
        self.calls.append(("turn ends", logical_rank))

    def before_step(self, step: int) -> None:
        self.calls.append(("before", step))

    def reduced(self, step: int) -> None:
        self.calls.append(("reduced", step))

    def after_step(self, step: int) -> None:
        self.calls.append(("after", step))

    def ended(self, step: int) -> None:
        self.calls.append(("ended", step))

    def step(self, **facts: Any) -> None:
        self.calls.append(("fact", facts["step"]))

    def logged(self, **facts: Any) -> None:
        self.calls.append(("logged", facts["values"]))


def train(job: Job) -> None:
    model = job.model(nn.Linear(3, 2))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
    loader, held_out = job.loader(DATA, batch_size=3), job.loader(DATA, batch_size=6, train=False)
    for _ in job.steps(1):
        for step in loader:
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        for step in held_out:
            for x, _ in step:
                model(x)


def test_a_probe_sees_training_turns_begin_and_end_and_no_others() -> None:
    seen = Recording()
    loop = TrainingLoop(JobSpec(workers=2), LocalExchange(2), seen)  # type: ignore[arg-type]
    loop.attach(seen)
    execute(loop, train)
    assert seen.calls == [
        ("before", 1),
        ("turn begins", 0),
        ("turn ends", 0),
        ("turn begins", 1),
        ("turn ends", 1),
        ("fact", 1),
        ("reduced", 1),
        ("after", 1),
        ("ended", 1),
    ]


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_noise_is_measured_once_of_every_turn_wherever_a_step_breaks(victim: int) -> None:
    """Logical workers move: 3 lives with executor 2 when executor 3 is gone, and 2 with executor 1."""

    def work(exchange: Any, world: World | None = None, executor: int = 0) -> list[float]:
        loop = TrainingLoop(JobSpec(workers=4, measure_noise=1), exchange, Recording())  # type: ignore[arg-type]
        if world is not None:
            loop.engine.peers = Survivor(world, executor, loop.engine)
        execute(loop, train)
        assert loop.noise is not None
        return loop.noise.scale.state()

    undisturbed = work(LocalExchange(4))
    world = World()
    world.run((1, 1, 1, 1), work)
    for at in range(world.calls[0]):
        results = World(faults=[Fault(at, frozenset({victim}))]).run((1, 1, 1, 1), work)
        assert results.keys() == {0, 1, 2, 3} - {victim}
        assert all(measured == undisturbed for measured in results.values()), (at, results)


def test_a_step_carries_what_its_own_loader_knows_though_another_was_iterated_since() -> None:
    carried: list[object] = []

    def evaluates_before_the_turns(job: Job) -> None:
        model = job.model(nn.Linear(3, 2))
        loader, held_out = job.loader(DATA, batch_size=3), job.loader(DATA, batch_size=6, train=False)
        for step in loader:
            for probe in held_out:
                for x, _ in probe:
                    model(x)
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
                carried.append(loop.engine.carried is loader.batches)

    loop = TrainingLoop(JobSpec(workers=2), LocalExchange(2), Recording())  # type: ignore[arg-type]
    execute(loop, evaluates_before_the_turns)
    assert carried == [True] * 4


@pytest.mark.parametrize("name", ["step", "epoch", "device", "state", "is_main", "out", "num_logical_workers"])
def test_a_script_reads_its_progress_and_cannot_set_it(name: str) -> None:
    job = Job(TrainingLoop(JobSpec(workers=2), LocalExchange(2), Recording()))  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        setattr(job, name, getattr(job, name))


def test_facts_of_a_lost_first_executor_are_told_by_its_successor_in_order() -> None:
    told: list[int] = []
    facts = Facts()
    for number in range(300):
        facts.tell(lambda number=number: told.append(number), is_main=False)  # type: ignore[misc]
    assert told == []
    facts.tell(lambda: told.append(300), is_main=True)
    facts.tell(lambda: told.append(301), is_main=True)
    assert told == list(range(300 - 256, 302)), "the last 256 of them, each once"


def test_facts_since_a_moment_are_those_that_were_told_and_those_that_were_not() -> None:
    told: list[int] = []
    facts = Facts()
    moments = []
    for number in range(6):
        moments.append(time.monotonic())
        facts.tell(lambda number=number: told.append(number), is_main=number < 3)  # type: ignore[misc]
    assert told == [0, 1, 2]
    for tell in facts.since(moments[1]):
        tell()
    assert told == [0, 1, 2, 1, 2, 3, 4, 5]
    assert facts.since(time.monotonic() + 1) == []


def test_the_last_facts_need_none_after_them() -> None:
    told: list[int] = []
    facts = Facts()
    for number in range(3):
        facts.tell(lambda number=number: told.append(number), is_main=False)  # type: ignore[misc]
    facts.tell_left()
    facts.tell_left()
    assert told == [0, 1, 2]


def test_an_executor_on_its_way_tells_nothing() -> None:
    sink = Recording()
    loop = TrainingLoop(JobSpec(workers=2), LocalExchange(2), sink)  # type: ignore[arg-type]
    loop.approaching = True
    Job(loop).log(accuracy=1.0)
    loop.approaching = False
    Job(loop).log(accuracy=2.0)
    assert sink.calls == [("logged", {"accuracy": 2.0})]


@pytest.mark.parametrize(
    ("until", "num_steps", "num_epochs", "total"),
    [(0, 0, 0, 0), (7, 0, 0, 7), (7, 5, 0, 5), (7, 0, 1, 4), (0, 9, 2, 8)],
)
def test_the_nearest_end_counts(until: int, num_steps: int, num_epochs: int, total: int) -> None:
    horizon = Horizon(until)
    horizon.num_steps, horizon.num_epochs = num_steps, num_epochs
    assert horizon.total_steps(4) == total
    limits = [limit for limit in (until, num_steps) if limit]
    assert [horizon.is_reached(step) for step in range(10)] == [any(step >= n for n in limits) for step in range(10)]


@pytest.mark.parametrize("is_due", [False, True])
def test_a_comparison_that_only_some_have_begun_is_given_up_in_a_recovery(is_due: bool) -> None:
    """This one had sealed step 3, the first after a rescale, before it broke; whoever had not, compares nothing now."""
    spec = JobSpec(workers=2, audit_every=3 if is_due else 100)
    loop = TrainingLoop(spec, LocalExchange(2), Recording())  # type: ignore[arg-type]
    loop.step = loop.audit_at = 3
    loop.audit.take(compare=True, whole=False)
    loop.audit_after_recovery(3)
    assert (loop.audit_at, bool(loop.audit.digests)) == (4, is_due)
