"""Three tiny jobs, each run in one process with `LocalExchange`. Run as a script: prints everything as JSON.

The parent starts this with the environment of the numeric profile `sse` (see `isoscale.kinds`), so that the bits
are the same on every x86 machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from isoscale.core.numerics import determinism
from isoscale.core.numerics.fingerprint import combine_digests, kernel_digests
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.totals import Combined
from isoscale.runtime.training.execute import execute
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.types import JobSpec

PROFILE = "sse"
WORKERS = (3, 4)
ORDERS = ("ddp", "tree")
SEED = 20


class Samples(Dataset[Any]):
    """Inputs from integer arithmetic, so that they are the same bits everywhere; noise from the worker's stream."""

    def __init__(self, size: int, shape: tuple[int, ...], classes: int) -> None:
        self._size, self._shape, self._classes = size, shape, classes

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        numel = torch.Size(self._shape).numel()
        values = (torch.arange(numel) * 7919 + index * 104_729) % 1009
        x = (values.float() / 1009 - 0.5).reshape(self._shape)
        return x + torch.rand(self._shape) / 8, index % self._classes


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.feed = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 40), nn.GELU(), nn.Dropout(0.1), nn.Linear(40, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(((x + 0.5) * 28).long().clamp(0, 31))
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(self.norm(h)).chunk(3, -1))
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = h + self.feed(h)
        return h.mean(1) @ self.embed.weight.t()  # tied: two uses of one parameter


def fit(job: Any, model: Any, optimizer: Any, data: Samples) -> None:
    loader = job.loader(data, batch_size=3, shuffle=True)
    for _ in job.epochs(2):
        for step in loader:
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


def mlp(job: Any) -> None:
    model = job.model(nn.Sequential(nn.Linear(20, 33), nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, 5)))
    fit(
        job,
        model,
        job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)),
        Samples(30, (20,), 5),
    )


def conv(job: Any) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12 * 9, 5),
    )
    model = job.model(net, bucket_cap_mb=0.002)
    fit(job, model, job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.05)), Samples(30, (3, 8, 8), 5))


def transformer(job: Any) -> None:
    model = job.model(Transformer())
    fit(job, model, job.keep("optimizer", torch.optim.AdamW(model.parameters(), lr=0.01)), Samples(30, (10,), 32))


JOBS: dict[str, Callable[[Any], None]] = {"mlp": mlp, "conv": conv, "transformer": transformer}


class Losses:
    """The sink of a golden run: every step's mean loss, exactly."""

    def __init__(self) -> None:
        self.losses: list[str] = []

    def step(self, *, values: Combined, **rest: Any) -> None:
        self.losses.append(values.means["loss"].hex())

    def logged(self, **rest: Any) -> None:
        pass

    def audited(self, **rest: Any) -> None:
        pass


def run(train: Callable[[Any], None], workers: int, order: Any) -> dict[str, Any]:
    sink = Losses()
    spec = JobSpec(workers=workers, seed=SEED, order=order, profile=PROFILE)
    return {"digest": execute(TrainingLoop(spec, LocalExchange(workers), sink), train), "losses": sink.losses}


def main() -> None:
    determinism.apply("elastic", 1, PROFILE)
    kernels = kernel_digests()
    machine = {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "profile": PROFILE,
        "fingerprint": combine_digests(kernels),
        "kernels": {name: value[:16] for name, value in kernels.items()},
    }
    runs = {
        name: {f"{order}-{workers}": run(train, workers, order) for order in ORDERS for workers in WORKERS}
        for name, train in JOBS.items()
    }
    json.dump({"machine": machine, "runs": runs}, sys.stdout)


if __name__ == "__main__":
    main()
