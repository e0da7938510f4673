"""Training behind the job's back is refused where it happens, not when it is over."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from isoscale.core.reduction.exchange import LocalExchange
from isoscale.errors import TurnRuleError
from isoscale.runtime.training.execute import execute
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.types import JobSpec
from tests.unit.test_snapshot import Quiet

DATA = TensorDataset(torch.randn(8, 3, generator=torch.Generator().manual_seed(0)))


def refusal(train: Callable[[Job], None]) -> str:
    loop = TrainingLoop(JobSpec(workers=2), LocalExchange(2), Quiet())  # type: ignore[arg-type]
    with pytest.raises(TurnRuleError) as error:
        execute(loop, train)
    assert error.value.location.startswith(Path(__file__).name)
    return str(error.value)


def own_loop(model: nn.Module, done: list[int]) -> None:
    for number in range(100):
        model(torch.ones(2, 3)).sum().backward()
        done.append(number)


@pytest.mark.parametrize("tracked", [True, False])
def test_the_first_backward_outside_a_turn_is_the_last(tracked: bool) -> None:
    done: list[int] = []

    def train(job: Job) -> None:
        model = nn.Linear(3, 2)
        own_loop(job.model(model) if tracked else model, done)

    assert "backward() outside a" in refusal(train)
    assert done == []


def test_backward_in_an_evaluation_turn_is_refused_at_once() -> None:
    done: list[int] = []

    def train(job: Job) -> None:
        model = job.model(nn.Linear(3, 2))
        for step in job.loader(DATA, batch_size=2, train=False):
            for (x,) in step:
                model(x).sum().backward()
                done.append(0)

    assert "outside a training turn" in refusal(train)
    assert done == []


def test_a_job_that_was_given_no_model_says_so() -> None:
    def train(job: Job) -> None:
        model = nn.Linear(3, 2)
        for step in job.loader(DATA, batch_size=2):
            for (x,) in step:
                model(x).sum().backward()

    assert "the job has no model; give it the one that is trained: job.model(model)" in refusal(train)


def test_another_model_may_be_trained_beside_the_job() -> None:
    def train(job: Job) -> None:
        job.model(nn.Linear(3, 2))
        own_loop(nn.Linear(3, 2), [])

    execute(TrainingLoop(JobSpec(workers=2), LocalExchange(2), Quiet()), train)  # type: ignore[arg-type]
    own_loop(nn.Linear(3, 2), [])


def an_accelerator(job: Job) -> None:
    from accelerate import Accelerator

    Accelerator(cpu=True)


def a_trainer(job: Job) -> None:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(output_dir=str(job.out), use_cpu=True, report_to=[])
    Trainer(model=nn.Linear(3, 2), args=arguments)


@pytest.fixture
def no_accelerate() -> Iterator[None]:
    """As if nobody had imported it. In the dict itself: the interpreter looks nowhere else."""

    def forget() -> dict[str, ModuleType]:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "accelerate"}

    known = forget()
    yield
    forget()
    sys.modules.update(known)


@pytest.mark.usefixtures("no_accelerate")
@pytest.mark.parametrize("imported", ["before", "in the job"])
def test_an_accelerator_is_refused_where_it_is_made(imported: str) -> None:
    if imported == "before":
        import accelerate.state  # noqa: F401
    finders = list(sys.meta_path)
    assert "takes every executor for the main process" in refusal(an_accelerator)
    assert sys.meta_path == finders
    from accelerate import Accelerator

    made: Any = Accelerator(cpu=True)  # once the job is over
    assert made.is_main_process
    assert "use job.model, job.loader" in _refused_at_once()
    type(made.state)._reset_state(reset_partial_state=True)


def _refused_at_once() -> str:
    done: list[int] = []
    loop = TrainingLoop(JobSpec(workers=2), LocalExchange(2), Quiet())  # type: ignore[arg-type]
    with pytest.raises(TurnRuleError) as error:
        execute(loop, lambda job: done.append(0))
    assert done == []
    return str(error.value)


def test_a_hugging_face_trainer_is_refused_where_it_is_made() -> None:
    assert "a Trainer that makes one" in refusal(a_trainer)
