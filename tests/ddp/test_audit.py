"""The audit, which runs by default: state that training changes but nobody keeps is found and named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ddp_cases.toolkit import Points, mlp, sgd
from ddp_pool import Pool

from isoscale.core.reduction.exchange import LocalExchange
from isoscale.errors import AuditError
from isoscale.runtime.training.execute import code_of, execute
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.types import JobSpec


class Audits:
    """Remembers at which steps digests were compared."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def step(self, **facts: Any) -> None: ...

    def logged(self, **facts: Any) -> None: ...

    def audited(self, *, step: int, digest: str) -> None:
        self.steps.append(step)


def run_alone(train: Callable[[Job], None], **spec: Any) -> list[int]:
    """All logical workers in this process, with the options a user gets; returns the audited steps."""
    sink = Audits()
    execute(TrainingLoop(JobSpec(workers=2, **spec), LocalExchange(2), sink, train_code=code_of(train)), train)
    return sink.steps


def steps(job: Job, model: Any, *, size: int = 24) -> Any:
    """Steps whose inner loop and optimizer are done; the caller's code comes after them."""
    optimizer = sgd(job, model)
    for step in job.loader(Points(size), batch_size=2, shuffle=True):
        for x, y in step:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        yield step


@torch.no_grad()
def follow(average: torch.nn.Module, model: torch.nn.Module) -> None:
    for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
        mine.lerp_(theirs, 0.1)


def caught(train: Callable[[Job], None], **spec: Any) -> AuditError:
    with pytest.raises(AuditError) as error:
        run_alone(train, **spec)
    return error.value


def test_averaged_model_that_is_not_kept() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        ema = copy.deepcopy(model)
        for _ in steps(job, model):
            follow(ema, model)

    error = caught(train)
    assert error.tensor == "variable 'ema'"
    assert "ema = job.keep('ema', ema)" in str(error)


def test_averaged_model_that_is_kept() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        ema = job.keep("ema", copy.deepcopy(model))
        for _ in steps(job, model):
            follow(ema, model)

    run_alone(train)


def test_a_copy_of_the_model_is_a_module_like_any_other() -> None:
    """It may be called in a turn, in whatever mode, without taking part."""

    def train(job: Job) -> None:
        model = job.model(torch.nn.Sequential(torch.nn.Linear(12, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)))
        teacher = copy.deepcopy(model).eval()
        optimizer = sgd(job, model)
        for step in job.loader(Points(24), batch_size=2):
            for x, _ in step:
                with torch.no_grad():
                    target = teacher(x)
                F.mse_loss(model(x), target).backward()
            optimizer.step()
            optimizer.zero_grad()

    run_alone(train)


def test_averaged_tensors_in_a_dict() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        for _ in steps(job, model):
            for name, p in model.named_parameters():
                shadow[name].lerp_(p.detach(), 0.1)

    error = caught(train)
    assert error.tensor == "variable 'shadow'"
    assert "job.state['shadow']" in str(error)


def test_averaged_tensors_in_job_state() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        job.state["shadow"] = {name: p.detach().clone() for name, p in model.named_parameters()}
        for _ in steps(job, model):
            shadow = job.state["shadow"]
            for name, p in model.named_parameters():
                shadow[name].lerp_(p.detach(), 0.1)

    run_alone(train)


def test_averaged_tensors_in_a_dict_that_are_replaced() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        for _ in steps(job, model):
            for name, p in model.named_parameters():
                shadow[name] = 0.9 * shadow[name] + 0.1 * p.detach()

    assert caught(train).tensor == "variable 'shadow'"


class Shadow:
    """The same average as an object that can be kept."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.tensors = {name: p.detach().clone() for name, p in model.named_parameters()}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self.tensors)

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.tensors = {name: tensor.clone() for name, tensor in state.items()}


def test_averaged_tensors_that_are_kept() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        shadow = job.keep("shadow", Shadow(model))
        tensors = shadow.tensors
        for _ in steps(job, model):
            for name, p in model.named_parameters():
                tensors[name].lerp_(p.detach(), 0.1)

    run_alone(train)


def test_optimizer_that_is_not_kept() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        second = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for step in job.loader(Points(24), batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
            second.step()
            second.zero_grad()

    assert caught(train).tensor == "variable 'second'"


def test_state_that_begins_to_change_later_is_found_at_the_next_audit() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        ema = copy.deepcopy(model)
        for _ in steps(job, model, size=64):
            if job.step >= 6:
                follow(ema, model)

    assert caught(train, audit_every=5).tensor == "variable 'ema'"


def test_metrics_that_only_grow() -> None:
    def train(job: Job) -> None:
        model = job.model(mlp())
        losses: list[float] = []
        norms: list[torch.Tensor] = []
        seen: dict[int, torch.Tensor] = {}
        for step in steps(job, model):
            losses.append(step.means["loss"])
            norms.append(torch.stack([p.detach().norm() for p in model.parameters()]).norm())
            seen[job.step] = norms[-1]

    run_alone(train)


def test_temporaries_are_not_state() -> None:
    """Batches, losses and what is computed anew in every step change, but nothing depends on them."""

    def train(job: Job) -> None:
        model = job.model(mlp())
        frozen = copy.deepcopy(model)
        for _ in steps(job, model):
            difference = [a.detach() - b.detach() for a, b in zip(model.parameters(), frozen.parameters(), strict=True)]
            total = sum(d.abs().sum() for d in difference)
            job.log(distance=total)

    run_alone(train)


def test_audits_come_every_hundred_steps_by_default() -> None:
    def train(job: Job) -> None:
        model = job.model(torch.nn.Linear(12, 3))
        for _ in steps(job, model, size=404):
            pass

    assert run_alone(train) == [100]


@pytest.mark.processes
@pytest.mark.parametrize("shares", [(1, 1), (1, 2)])
def test_executors_that_drift_apart(shares: tuple[int, ...], pool: Pool) -> None:
    """A variable that is computed in turns differs between executors; what it is used for shows in the parameters."""
    with pytest.raises(AuditError) as error:
        pool.elastic("ddp_cases.rules:unkept_state_updated_in_turns", shares=shares)
    assert error.value.tensor == "Sequential.0.weight"
    assert error.value.executors == (0, 1)
    assert "step.totals" in str(error.value)


@pytest.mark.processes
def test_one_executor_has_nothing_to_compare_with(pool: Pool) -> None:
    """The same script passes on one executor: what it computes there is at least consistent."""
    outcome = pool.elastic("ddp_cases.rules:unkept_state_updated_in_turns", shares=(2,))
    assert outcome.parts[0].audits == 6
