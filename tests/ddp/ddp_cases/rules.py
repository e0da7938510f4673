"""Scripts that break a rule in a way that only two executors can show. Not compared with stock DDP."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.nn.functional as F

from ddp_cases.toolkit import Points, mlp, sgd


def inner_loop(model: Any, step: Any) -> None:
    for x, y in step:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        step.log(loss=loss)


def breaks_at_different_points(job: Any) -> None:
    """Executor 0 leaves the first epoch after two steps, the other one after three."""
    model = job.model(mlp())
    optimizer = sgd(job, model)
    for _ in job.epochs(2):
        for step in job.loader(Points(40), batch_size=2):
            inner_loop(model, step)
            optimizer.step()
            optimizer.zero_grad()
            if step.index == (1 if job.is_main else 2):
                break


def sets_different_learning_rates(job: Any) -> None:
    model = job.model(mlp())
    optimizer = sgd(job, model)
    for _ in job.epochs(1):
        for step in job.loader(Points(40), batch_size=2):
            if job.step == 3 and not job.is_main:
                optimizer.param_groups[0]["lr"] = 0.05
            inner_loop(model, step)
            optimizer.step()
            optimizer.zero_grad()


def ends_at_different_steps(job: Any) -> None:
    """Executor 0 believes that it is done while the other one goes on."""
    model = job.model(mlp())
    optimizer = sgd(job, model)
    for step in job.loader(Points(40), batch_size=2):
        inner_loop(model, step)
        optimizer.step()
        optimizer.zero_grad()
        if job.step == 2 and job.is_main:
            return


def evaluates_on_one_executor_only(job: Any) -> None:
    model = job.model(mlp())
    optimizer = sgd(job, model)
    val = job.loader(Points(8), batch_size=2, train=False)
    for step in job.loader(Points(40), batch_size=2):
        inner_loop(model, step)
        optimizer.step()
        optimizer.zero_grad()
        if job.step == 2 and job.is_main:
            for evaluation in val:
                for x, _ in evaluation:
                    evaluation.sum(seen=len(x))


def a_turn_raises_on_one_executor(job: Any) -> None:
    model = job.model(mlp())
    for step in job.loader(Points(40), batch_size=2):
        for x, y in step:
            if job.step == 1 and not job.is_main:
                raise RuntimeError("no more")
            F.cross_entropy(model(x), y).backward()


def unkept_state_updated_in_turns(job: Any) -> None:
    """A moving average that every executor computes from its own turns only, and that decides a learning rate.

    It is in a container that is not searched for state.
    """
    model = job.model(mlp())
    optimizer = sgd(job, model)
    seen = deque([torch.zeros(())], maxlen=1)
    for _ in job.epochs(1):
        for step in job.loader(Points(80), batch_size=2, shuffle=True):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                seen.append(0.9 * seen[0] + 0.1 * loss.detach())
            for p in model.parameters():
                p.grad.mul_(seen[0])
            optimizer.step()
            optimizer.zero_grad()


def two_models_in_turns_that_differ(job: Any) -> None:
    """Which model a worker uses depends on its batch: stock DDP would hang."""
    first, second = job.model(mlp()), job.model(mlp())
    for step in job.loader(Points(40), batch_size=2):
        for x, y in step:
            model = first if x[0, 0] > 0 else second
            F.cross_entropy(model(x), y).backward()
