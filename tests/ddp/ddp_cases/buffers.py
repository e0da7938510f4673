"""Buffers: broadcast or not, replaced in forward, written behind the version counter's back, large and constant."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ddp_cases.toolkit import Images, Points, case, evaluate, fit, sgd


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


@case((4,), (2, 2), (3, 1), (1, 1, 1, 1))
@case((5,), (1, 4))
def batchnorm_with_broadcast(job: Any) -> None:
    model = job.model(normalised())
    fit(job, model, sgd(job, model), Points(44))


@case((4,), (2, 2), (3, 1), (1, 1, 1, 1))
def batchnorm_of_every_workers_own(job: Any) -> None:
    model = job.model(normalised(), broadcast_buffers=False)
    optimizer = sgd(job, model)
    val = job.loader(Points(21), batch_size=3, train=False)
    fit(job, model, optimizer, Points(44))
    job.state["totals"] = evaluate(model, val)


class Reassigns(nn.Module):
    """The textbook moving average: `self.ema = ...` puts a new tensor into the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(12, 8), nn.Linear(8, 3)
        self.register_buffer("ema", torch.zeros(8))
        self.register_buffer("calls", torch.tensor(0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(x)
        if self.training:
            self.ema = 0.9 * self.ema + 0.1 * hidden.detach().mean(0)
            self.calls += 1
        return self.head(torch.relu(hidden - self.ema / self.calls.clamp(min=1)))


@case((4,), (1, 3), (1, 1, 1, 1))
def buffer_is_reassigned(job: Any) -> None:
    model = job.model(Reassigns())
    fit(job, model, sgd(job, model), Points(44))
    job.state["totals"] = evaluate(model, job.loader(Points(9), batch_size=2, train=False))


@case((3,), (2, 1), (1, 1, 1))
def buffer_of_every_workers_own_is_reassigned(job: Any) -> None:
    model = job.model(Reassigns(), broadcast_buffers=False)
    fit(job, model, sgd(job, model), Points(44))


@case((4,), (2, 2), (1, 3))
def instance_norm_with_statistics(job: Any) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.Flatten(), nn.Linear(64, 3)
    )
    model = job.model(net)
    fit(job, model, sgd(job, model, lr=0.01), Images(24))


class Homemade(nn.Module):
    """Calls the functional batch norm on buffers that no library class owns; from `begins` on if told so."""

    def __init__(self, begins: int = 0) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(12, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))
        self.register_buffer("table", torch.linspace(0.5, 1.5, 8))
        self.learns = begins == 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        learns = self.training and self.learns
        hidden = F.batch_norm(self.inner(x), self.mean, self.var, training=learns)
        return self.head(torch.relu(hidden) * self.table)


@case((4,), (3, 1), (1, 1, 1, 1))
def homemade_batchnorm(job: Any) -> None:
    model = job.model(Homemade())
    fit(job, model, sgd(job, model), Points(44))
    job.state["totals"] = evaluate(model, job.loader(Points(9), batch_size=2, train=False))


@case((4,), (3, 1), (2, 2), (1, 1, 1, 1))
def homemade_batchnorm_that_begins_later(job: Any) -> None:
    """Statistics are frozen for five steps; then the kernel writes them without a trace."""
    model = job.model(Homemade(begins=5))
    optimizer = sgd(job, model)
    for _ in job.epochs(3):
        for step in job.loader(Points(44), batch_size=3, shuffle=True):
            model.learns = job.step >= 5
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


class Table(nn.Module):
    """A large constant buffer beside a small one that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 3)
        self.register_buffer("table", torch.randn(600_000))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.shape[0]
        return self.inner(x + self.table[:12])


@case((4,), (2, 2), (1, 1, 1, 1))
def large_constant_buffer(job: Any) -> None:
    model = job.model(Table())
    fit(job, model, sgd(job, model), Points(30))


@case((4,), (1, 3), (1, 1, 1, 1))
def buffers_change_outside_turns(job: Any) -> None:
    """The script resets statistics between epochs, on every executor alike."""
    model = job.model(normalised())
    optimizer = sgd(job, model)
    for _ in job.epochs(2):
        for step in job.loader(Points(30), batch_size=3, shuffle=True):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            if job.step == 2:
                for module in model.modules():
                    if isinstance(module, nn.BatchNorm1d):
                        module.reset_running_stats()


@case((4,), (2, 2), (1, 1, 1, 1))
def statistics_are_estimated_outside_turns(job: Any) -> None:
    """A train-mode forward between steps, the same on every executor, moves statistics without a trace."""
    model = job.model(normalised())
    optimizer = sgd(job, model)
    calibration = torch.randn(9, 12)
    for _ in job.epochs(2):
        for step in job.loader(Points(44), batch_size=3, shuffle=True):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            if job.step % 2 == 0:
                with torch.no_grad():
                    model(calibration)


@case((4,), (2, 2), (1, 3), (1, 1, 1, 1))
def turns_end_in_eval_mode(job: Any) -> None:
    """What a train-mode forward wrote belongs to its turn, whatever mode the script leaves behind."""
    model = job.model(normalised())
    optimizer = sgd(job, model)
    for _ in job.epochs(2):
        for step in job.loader(Points(44), batch_size=3, shuffle=True):
            for x, y in step:
                model.train()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
                model.eval()
            optimizer.step()
            optimizer.zero_grad()
