"""How gradients come about and what is done to them: accumulation, holding over, clipping, buckets, optimizers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ddp_cases.toolkit import Points, case, fit, mlp, sgd


def accumulating_fit(job: Any, model: Any) -> None:
    """Two halves of every batch: the first stays local (`no_sync`), the second is averaged."""
    optimizer = sgd(job, model)
    loader = job.loader(Points(48), batch_size=6, shuffle=True, drop_last=True)
    for _ in job.epochs(2):
        for step in loader:
            for x, y in step:
                with step.accumulate():
                    loss = F.cross_entropy(model(x[:3]), y[:3]) / 2
                    loss.backward()
                step.log(loss=loss)
                loss = F.cross_entropy(model(x[3:]), y[3:]) / 2
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


@case((4,), (2, 2), (1, 1, 1, 1))
@case((3,), (1, 2))
@case((4,), (1, 3), order="tree")
def accumulate(job: Any) -> None:
    accumulating_fit(job, job.model(mlp(), bucket_cap_mb=0.001))


@case((4,), (1, 3), (1, 1, 1, 1))
def accumulate_with_batchnorm(job: Any) -> None:
    """The accumulating forward starts from worker 0's statistics, the last one from the worker's own."""
    net = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    accumulating_fit(job, job.model(net))


@case((4,), (2, 2), (1, 1, 1, 1))
def accumulate_without_broadcast(job: Any) -> None:
    net = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    accumulating_fit(job, job.model(net, broadcast_buffers=False))


@case((4,), (2, 2), (1, 1, 1, 1))
def some_steps_accumulate(job: Any) -> None:
    """The first step, in which the buckets are found, does; later ones do not."""
    model = job.model(mlp(), bucket_cap_mb=0.001)
    optimizer = sgd(job, model)
    for _ in job.epochs(2):
        for step in job.loader(Points(48), batch_size=4, shuffle=True):
            for x, y in step:
                if job.step % 2 == 0:
                    with step.accumulate():
                        F.cross_entropy(model(x.flip(1)), y).backward()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


@case((4,), (3, 1), (1, 1, 1, 1))
@case((3,), (1, 2), order="tree")
def gradients_are_never_cleared(job: Any) -> None:
    """The average of the last step is part of every worker's gradient in the next."""
    model = job.model(mlp())
    optimizer = sgd(job, model, lr=0.01)
    for _ in job.epochs(2):
        for step in job.loader(Points(30), batch_size=3, shuffle=True):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()


@case((4,), (1, 3), (1, 1, 1, 1))
@case((3,), (1, 1, 1), order="tree")
def gradients_are_zeroed_in_place(job: Any) -> None:
    model = job.model(mlp())
    fit(job, model, sgd(job, model, foreach=False), Points(30), set_to_none=False)


@case((3,), (1, 2), (1, 1, 1))
def clipping_by_norm(job: Any) -> None:
    model = job.model(mlp())
    norms = job.state.setdefault("norms", [])
    clip = nn.utils.clip_grad_norm_
    optimizer = job.keep("optimizer", torch.optim.Adam(model.parameters(), lr=0.05, foreach=True))
    fit(job, model, optimizer, Points(30), between=lambda _: norms.append(clip(model.parameters(), 0.3).item()))


@case((5,), (2, 3))
def clipping_by_value(job: Any) -> None:
    model = job.model(mlp())
    clip = nn.utils.clip_grad_value_
    optimizer = job.keep("optimizer", torch.optim.AdamW(model.parameters(), lr=0.05, foreach=False))
    fit(job, model, optimizer, Points(31), between=lambda _: clip(model.parameters(), 0.01))


@case((4,), (2, 2))
def adam_that_loops(job: Any) -> None:
    model = job.model(mlp())
    optimizer = job.keep("optimizer", torch.optim.Adam(model.parameters(), foreach=False, amsgrad=True))
    fit(job, model, optimizer, Points(30))


def deep() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(12, 20)]
    for _ in range(6):
        layers += [nn.ReLU(), nn.Linear(20, 20)]
    return nn.Sequential(*layers, nn.Linear(20, 3))


@case((4,), (1, 3), (1, 1, 1, 1))
@case((5,), (2, 3), order="tree")
def many_small_buckets(job: Any) -> None:
    model = job.model(deep(), bucket_cap_mb=0.001)
    fit(job, model, sgd(job, model), Points(36))


@case((4,), (3, 1), (1, 1, 1, 1))
@case((3,), (2, 1))
def rebuilt_into_several_large_buckets(job: Any) -> None:
    """More than 1 MiB: one bucket in the first step, several from the second on; segments of gloo's ring are cut."""
    net = nn.Sequential(nn.Linear(12, 700), nn.ReLU(), nn.Linear(700, 701), nn.ReLU(), nn.Linear(701, 3))
    model = job.model(net)
    fit(job, model, sgd(job, model), Points(16), batch_size=2)


class Backwards(nn.Module):
    """Layers registered in another order than they are used: the rebuilt layout is not the reversed registration."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first, self.middle = nn.Linear(30, 3), nn.Linear(12, 30), nn.Linear(30, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))


@case((4,), (2, 2), (1, 1, 1, 1))
def order_of_readiness_is_not_registration(job: Any) -> None:
    model = job.model(Backwards(), bucket_cap_mb=0.003)
    fit(job, model, sgd(job, model), Points(30))
