"""Numbers in variables of a script: refused in its first steps, or where they differ after a join."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.streams import rng
from isoscale.errors import AuditError, TurnRuleError, UserError
from isoscale.runtime.training import number_audit
from isoscale.runtime.training.execute import code_of, execute
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.types import JobSpec
from tests.unit.test_snapshot import Quiet, Watching

DATA = TensorDataset(torch.randn(24, 3, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 2)
STEPS = 6  # of an epoch

Train = Callable[[Job], None]


@pytest.fixture(autouse=True)
def leave_streams() -> Iterator[None]:
    with rng.isolated():
        yield


def run(train: Train, elastic: Any = None) -> TrainingLoop:
    loop = TrainingLoop(JobSpec(workers=2), LocalExchange(2), Quiet(), train_code=code_of(train))  # type: ignore[arg-type]
    loop.elastic = elastic
    execute(loop, train)
    return loop


def set_up(job: Job) -> tuple[Any, Any]:
    """The loader, and what does the whole of a step and gives its loss."""
    model = job.model(nn.Linear(3, 2))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))

    def do(step: Any) -> float:
        for x, y in step:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        return float(step.means["loss"])

    return job.loader(DATA, batch_size=2, shuffle=True), do


class Meter:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.count, self.sum = 0, 0.0

    def update(self, value: float) -> None:
        self.count, self.sum = self.count + 1, self.sum + value


# ---- counting loops ----


def enumerates(job: Job) -> None:
    loader, do = set_up(job)
    for _ in job.epochs(2):
        for _i, step in enumerate(loader):
            do(step)


def enumerates_behind_a_bar(job: Job) -> None:
    loader, do = set_up(job)
    for _i, step in enumerate(tqdm(loader, disable=True)):
        do(step)


def zips(job: Job) -> None:
    loader, do = set_up(job)
    for step, _ in zip(loader, range(100), strict=False):
        do(step)


@pytest.mark.parametrize("train", [enumerates, enumerates_behind_a_bar, zips])
def test_a_loop_that_counts_by_itself_is_refused_before_its_first_step(train: Train) -> None:
    with pytest.raises(TurnRuleError, match=r"test_number_audit\.py:\d+: .* use step\.index"):
        run(train)


def test_step_index_and_position_count_within_the_epoch() -> None:
    seen: list[tuple[int, int]] = []

    def train(job: Job) -> None:
        loader, do = set_up(job)
        for _ in job.epochs(2):
            for step in loader:
                do(step)
                seen.append((step.index, loader.position))
            assert loader.position == STEPS

    run(train)
    assert seen == [(i, i) for i in range(STEPS)] * 2


# ---- numbers that change ----


def counts(job: Job) -> None:
    loader, do = set_up(job)
    number = 0
    for step in loader:
        do(step)
        number += 1  # noqa: SIM113 - that is the mistake


def anneals(job: Job) -> None:
    loader, do = set_up(job)
    temperature = 1.0
    for step in loader:
        do(step)
        temperature *= 0.9


def reads_ahead(job: Job) -> None:
    loader, do = set_up(job)
    batch = torch.randn(3)
    for step in loader:
        do(step)
        batch.sum()
        batch = torch.randn(3)


def remembers_once(job: Job) -> None:
    loader, do = set_up(job)
    first = True
    for step in loader:
        do(step)
        if first:
            first = False


def counts_in_a_dict(job: Job) -> None:
    loader, do = set_up(job)
    seen = {"steps": 0}
    for step in loader:
        do(step)
        seen["steps"] += 1


def counts_in_a_record(job: Job) -> None:
    loader, do = set_up(job)
    args = SimpleNamespace(done=0)
    for step in loader:
        do(step)
        args.done += 1


def measures(job: Job) -> None:
    loader, do = set_up(job)
    losses = Meter()
    for step in loader:
        losses.update(do(step))


class Trainer:
    def __init__(self, job: Job) -> None:
        self.loader, self.do = set_up(job)
        self.done = 0

    def epoch(self) -> None:
        for step in self.loader:
            self.do(step)
            self.done += 1


def is_an_object(job: Job) -> None:
    Trainer(job).epoch()


TOTAL = 0


def counts_in_a_global(job: Job) -> None:
    global TOTAL
    loader, do = set_up(job)
    for step in loader:
        do(step)
        TOTAL += 1


@pytest.mark.parametrize(
    ("train", "variable", "remedy"),
    [
        (counts, "number", "step.index"),
        (anneals, "temperature", "job.state['temperature']"),
        (reads_ahead, "batch", "job.state['batch']"),
        (remembers_once, "first", "job.state['first']"),
        (counts_in_a_dict, "seen['steps']", "job.state"),
        (counts_in_a_record, "args.done", "job.keep('args', args)"),
        (measures, "losses.count", "losses = job.keep('losses', losses)"),
        (is_an_object, "self.done", "job.state['done']"),
        (counts_in_a_global, "TOTAL", "step.index"),
    ],
)
def test_a_number_that_steps_change_is_refused_in_the_second(train: Train, variable: str, remedy: str) -> None:
    with pytest.raises(AuditError) as error:
        run(train)
    assert error.value.tensor.startswith("test_number_audit.py:")
    assert f"variable {variable!r}" in error.value.tensor
    assert remedy in str(error.value)


def test_the_line_that_is_named_is_the_one_that_changes_it() -> None:
    with pytest.raises(AuditError) as error:
        run(counts)
    line = counts.__code__.co_firstlineno + 5
    assert error.value.tensor == f"test_number_audit.py:{line}: variable 'number'"


def test_a_number_that_epochs_change_is_refused_in_the_second() -> None:
    def train(job: Job) -> None:
        loader, do = set_up(job)
        best = 1e9
        for _ in job.epochs(3):
            loss = 0.0
            for step in loader:
                loss = do(step)
            best = min(best, loss)

    with pytest.raises(AuditError, match=r"variable 'best' changes from epoch to epoch .* job\.state\['best'\]"):
        run(train)


def test_what_decides_nothing_or_is_written_anew_is_let_be() -> None:
    def train(job: Job) -> None:
        loader, do = set_up(job)
        job.unkept("throughput", "spent")
        begun, nanoseconds, throughput, spent, history = time.time(), time.perf_counter_ns(), 0.0, Meter(), []
        for epoch in job.epochs(3):
            rate = 0.1**epoch  # whoever joins in this epoch computes it too
            mean = 0.0
            for step in loader:
                loss = do(step)
                history.append(loss)
                count = step.index + 1
                now = time.time()
                throughput = 0.9 * throughput + rate / (now - begun)
                spent.update(now - begun)
                begun, nanoseconds = now, max(nanoseconds, time.perf_counter_ns())
            mean = sum(history[-count:]) / count + rate
            job.log(loss=loss, mean=mean, rate=rate)

    assert run(train).step == 3 * STEPS


def test_groups_of_an_optimizer_that_is_kept_are_kept() -> None:
    def train(job: Job) -> None:
        model = job.model(nn.Linear(3, 2))
        optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
        groups, first = optimizer.param_groups, optimizer.param_groups[0]
        for step in job.loader(DATA, batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
            groups[0]["lr"] *= 0.9
            assert first["lr"] == groups[0]["lr"]
            optimizer.step()
            optimizer.zero_grad()

    assert run(train).step == STEPS


def test_a_training_function_may_be_partial_or_an_object() -> None:
    class Callee:
        def __call__(self, job: Job) -> None:
            counts(job)

    for train in (partial(counts), partial(partial(counts)), Callee()):
        with pytest.raises(AuditError, match="variable 'number'"):
            run(train)


# ---- after a join ----


def test_a_meter_is_kept_by_its_attributes() -> None:
    ends: list[tuple[int, float]] = []

    def train(job: Job) -> None:
        loader, do = set_up(job)
        losses = job.keep("losses", Meter())
        for _ in job.epochs(2):
            losses.reset()
            for step in loader:
                losses.update(do(step))
            ends.append((losses.count, losses.sum))

    watching = Watching(at=STEPS + 3)
    run(train, watching)
    run(train, Watching(staged=watching.taken))
    assert ends[2:] == ends[1:2]
    assert ends[1][0] == STEPS


def test_what_has_no_attributes_cannot_be_kept() -> None:
    def train(job: Job) -> None:
        job.keep("count", 3)

    with pytest.raises(UserError, match=r"no attributes to keep instead; put plain values into job\.state"):
        run(train)


def test_a_number_that_is_another_where_the_state_is_loaded_is_named_with_both_values() -> None:
    """As after `if exists(checkpoint): start = load(checkpoint)["epoch"]` in set-up."""
    found = [0]

    def train(job: Job) -> None:
        loader, do = set_up(job)
        start, rank = found[0], job.is_main
        for epoch in job.epochs(2):
            for step in loader:
                do(step)
                job.state["since"] = epoch - start + rank

    watching = Watching(at=STEPS + 3)
    run(train, watching)
    run(train, Watching(staged=watching.taken))
    found[0] = 1
    with pytest.raises(AuditError, match=r"variable 'start' is 1 where an executor joins or resumes, and was 0 where"):
        run(train, Watching(staged=watching.taken))


@pytest.mark.parametrize("bound", [640, 640.0])
def test_a_constant_may_be_the_age_of_the_machine(bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor that began at 600 s takes 640 for a reading of the clock, one that comes at 700 s does not."""
    age = [600.0]
    monkeypatch.setattr(number_audit, "_CLOCKS", (lambda: age[0],))

    def train(job: Job) -> None:
        loader, do = set_up(job)
        limit, age[0] = bound, 700.0
        for _ in job.epochs(2):
            for step in loader:
                do(step)
                job.state["within"] = step.index < limit

    watching = Watching(at=STEPS + 3)
    run(train, watching)
    run(train, Watching(staged=watching.taken))


def test_what_counts_is_no_clock_however_old_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    age = iter([1.0])
    monkeypatch.setattr(number_audit, "_CLOCKS", (lambda: next(age, 1e6),))
    with pytest.raises(AuditError, match="variable 'number'"):
        run(counts)


def test_a_number_that_changes_seldom_is_refused_when_the_state_is_taken() -> None:
    def train(job: Job) -> None:
        loader, do = set_up(job)
        worst = 0.0
        for step in loader:
            loss = do(step)
            if step.index == 3:
                worst = max(worst, loss)

    run(train)
    with pytest.raises(AuditError, match="variable 'worst' changes from step to step"):
        run(train, Watching(at=5))
