"""Training functions in which stock DDP has a corner. Every case is run by real DDP and by isoscale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

CASES: dict[str, Callable[[Any], None]] = {}


def case(function: Callable[[Any], None]) -> Callable[[Any], None]:
    CASES[function.__name__] = function
    return function


class Points(Dataset[Any]):
    """Deterministic samples that also draw from all three random modules when asked to augment."""

    def __init__(self, size: int, features: int = 12, classes: int = 3, *, augment: bool = False) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(size, features, generator=generator)
        self.y = torch.randint(0, classes, (size,), generator=generator)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.x[index]
        if self.augment:
            import random

            import numpy as np

            x = x * (1 + 0.1 * random.random()) + 0.1 * float(np.random.randn()) + 0.1 * torch.randn(x.shape)
        return x, self.y[index]


def mlp(features: int = 12, classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 33), nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, classes))


def fit(job: Any, model: Any, optimizer: Any, data: Any, *, epochs: int = 2, batch_size: int = 3, **options: Any) -> None:
    loader = job.loader(data, batch_size=batch_size, shuffle=True, **options)
    for _ in job.epochs(epochs):
        for step in loader:
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


@case
def plain_sgd(job: Any) -> None:
    model = job.model(mlp())
    fit(job, model, job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)), Points(40))


@case
def batchnorm_augment_eval(job: Any) -> None:
    """BatchNorm, all random modules, evaluation in mid-epoch and totals."""
    net = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    model = job.model(net)
    optimizer = job.keep("optimizer", torch.optim.Adam(model.parameters(), lr=0.01))
    train, val = job.loader(Points(42, augment=True), batch_size=3, shuffle=True), job.loader(Points(23), batch_size=4, train=False)
    for _ in job.epochs(2):
        for i, step in enumerate(train):
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            if i == 1:
                model.eval()
                for evaluation in val:
                    for x, y in evaluation:
                        with torch.no_grad():
                            out = model(x)
                        evaluation.sum(correct=(out.argmax(1) == y).sum(), loss=F.cross_entropy(out, y, reduction="sum"), seen=len(y))
                model.train()
                job.state[f"totals-{job.epoch}"] = dict(val.totals)
