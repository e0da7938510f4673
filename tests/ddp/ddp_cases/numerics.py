"""Memory layouts, dtypes, mixed precision, denormals, infinities and NaNs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ddp_cases.toolkit import Images, Points, case, fit, mlp, sgd


@case((4,), (1, 3), (1, 1, 1, 1))
@case((3,), (2, 1), (1, 1, 1), order="tree")
def channels_last(job: Any) -> None:
    """Gradients lie in memory as the weights do, and the norm is taken in that order."""
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 3)
    )
    model = job.model(net.to(memory_format=torch.channels_last))
    clip = nn.utils.clip_grad_norm_
    fit(job, model, sgd(job, model), Images(24), between=lambda _: clip(model.parameters(), 0.5))


class OddStrides(nn.Module):
    """A transposed weight, one that is a slice with gaps, one with a dimension of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.transposed = nn.Parameter(torch.randn(12, 10).t())
        self.gaps = nn.Parameter(torch.randn(10, 16)[:, ::2] * 0.3)
        self.thin = nn.Parameter(torch.randn(8, 1, 3).transpose(0, 2).contiguous().transpose(0, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.linear(x, self.transposed)) @ self.gaps @ self.thin.squeeze(1)


def odd_strides_fit(job: Any, **options: Any) -> None:
    model = job.model(OddStrides(), bucket_cap_mb=0.0005)
    clip = nn.utils.clip_grad_norm_
    optimizer = sgd(job, model, lr=0.01)
    fit(job, model, optimizer, Points(36), between=lambda _: clip(model.parameters(), 0.5), **options)


@case((4,), (3, 1), (1, 1, 1, 1))
@case((4,), (3, 1), (1, 1, 1, 1), order="tree")
def odd_strides(job: Any) -> None:
    odd_strides_fit(job)


@case((3,), (1, 2), (1, 1, 1))
@case((3,), (1, 2), (1, 1, 1), order="tree")
def odd_strides_zeroed_in_place(job: Any) -> None:
    odd_strides_fit(job, set_to_none=False)


@case((4,), (1, 3), (1, 1, 1, 1))
@case((4,), (1, 3), (1, 1, 1, 1), order="tree")
def gradients_are_laid_out_anew(job: Any) -> None:
    """The script replaces `.grad` by a copy with other strides, and later turns add to it."""
    model = job.model(nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 3)))
    optimizer = sgd(job, model, lr=0.01)
    for _ in job.epochs(2):
        for step in job.loader(Points(36), batch_size=3, shuffle=True):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            if job.step == 2:
                for weight in (model[0].weight, model[2].weight):
                    weight.grad = weight.grad.t().contiguous().t()


@case((4,), (1, 3), (1, 1, 1, 1))
def double_precision(job: Any) -> None:
    torch.set_default_dtype(torch.float64)
    model = job.model(mlp())
    optimizer = sgd(job, model)
    for _ in job.epochs(2):
        for step in job.loader(Points(30), batch_size=3, shuffle=True):
            for x, y in step:
                loss = F.cross_entropy(model(x.double()), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


class Cast(nn.Module):
    """Layers of given dtypes, one after the other."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        self.dtypes = dtypes
        self.layers = nn.ModuleList(nn.Linear(12, 12, dtype=d) for d in dtypes)
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, dtype in zip(self.layers, self.dtypes, strict=True):
            x = torch.tanh(layer(x.to(dtype)))
        return self.head(x.float())


@case((4,), (3, 1), (1, 1, 1, 1))
@case((3,), (1, 2), (1, 1, 1), order="tree")
def bfloat16_parameters(job: Any) -> None:
    model = job.model(Cast(torch.bfloat16, torch.bfloat16))
    fit(job, model, sgd(job, model), Points(36))


@case((5,), (2, 3), (1, 1, 1, 1, 1))
@case((3,), (1, 2), (1, 1, 1), order="tree")
def mixed_dtypes(job: Any) -> None:
    """One bucket per dtype, float16 with its narrow range among them."""
    model = job.model(Cast(torch.bfloat16, torch.float64, torch.float16, torch.float32))
    fit(job, model, sgd(job, model), Points(36))


@case((4,), (2, 2), (1, 1, 1, 1))
def bfloat16_autocast(job: Any) -> None:
    model = job.model(mlp())
    optimizer = sgd(job, model)
    for _ in job.epochs(2):
        for step in job.loader(Points(30), batch_size=3, shuffle=True):
            for x, y in step:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


@case((4,), (1, 3), (1, 1, 1, 1))
def grad_scaler_meets_an_overflow(job: Any) -> None:
    """One worker's loss overflows in the third step: all skip it, and the scale drops."""
    model = job.model(mlp())
    optimizer = sgd(job, model)
    scaler = job.keep("scaler", torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2))
    for _ in job.epochs(3):
        for step in job.loader(Points(40), batch_size=4, shuffle=True):
            for x, y in step:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(x), y)
                if job.step == 2 and x[0, 0] > 0:
                    loss = loss * 1e38 * 1e4
                scaler.scale(loss).backward()
                step.log(loss=loss)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            job.state[f"scale-{job.step}"] = scaler.get_scale()


def denormal_fit(job: Any, model: Any, parameters: Any, *, scale: float) -> None:
    """Gradients, their shares and their sums on both sides of the smallest normal number, 1.2e-38."""
    optimizer = job.keep("optimizer", torch.optim.SGD(parameters, lr=1.0, momentum=0.9))
    for _ in job.epochs(2):
        for step in job.loader(Points(30), batch_size=3, shuffle=True):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                (loss * scale).backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


@case((4,), (1, 3), (1, 1, 1, 1))
@case((3,), (1, 2), (1, 1, 1), order="tree")
def denormals_are_kept(job: Any) -> None:
    model = job.model(mlp())
    denormal_fit(job, model, model.parameters(), scale=2e-38)


@case((4,), (1, 3), (1, 1, 1, 1))
@case((4,), (2, 2), (1, 3), (1, 1, 1, 1), order="tree")
def denormals_are_flushed(job: Any) -> None:
    """The script flushes denormals in its kernels. gloo adds in threads of its own, which do not."""
    torch.set_flush_denormal(True)
    model = job.model(mlp(), bucket_cap_mb=0.001)
    denormal_fit(job, model, model.parameters(), scale=2e-37)


@case((4,), (1, 3), (1, 1, 1, 1))
@case((4,), (1, 3), order="tree")
def denormals_are_flushed_without_overlap(job: Any) -> None:
    """With find_unused_parameters sums wait for the end of the step and run in the main thread."""
    torch.set_flush_denormal(True)
    model = job.model(mlp(), find_unused_parameters=True)
    denormal_fit(job, model, model.parameters(), scale=2e-37)


@case((4,), (1, 3), (2, 2))
def denormals_are_flushed_in_two_models(job: Any) -> None:
    torch.set_flush_denormal(True)
    first, second = job.model(nn.Linear(12, 20)), job.model(nn.Linear(20, 3))
    denormal_fit(job, lambda x: second(first(x)), [*first.parameters(), *second.parameters()], scale=2e-37)


@case((4,), (1, 3), (2, 2), (1, 1, 1, 1))
@case((4,), (1, 3), (1, 1, 1, 1), order="tree")
def infinities_and_nans(job: Any) -> None:
    """Some workers' gradients are inf, -inf or NaN in places; which NaN comes out is part of the bits."""
    model = job.model(mlp())
    optimizer = sgd(job, model, lr=0.01)
    for _ in job.epochs(2):
        for step in job.loader(Points(40), batch_size=3, shuffle=True):
            for x, _ in step:
                weight = torch.ones(3)
                if job.step > 2 and x[0, 0] > 0:
                    weight[0] = float("inf") if x[0, 1] > 0 else float("-nan")
                if job.step > 3 and x[0, 0] < 0:
                    weight[1] = float("-inf")
                out = model(x)
                loss = (out * weight).sum()
                loss.backward()
                step.log(loss=loss)
            job.state[f"finite-{job.step}"] = sum(p.grad.isfinite().sum().item() for p in model.parameters())
            if job.step != 5:
                nn.utils.clip_grad_value_(model.parameters(), 1.0)
                for p in model.parameters():
                    p.grad.nan_to_num_(0.5)
            optimizer.step()
            optimizer.zero_grad()
