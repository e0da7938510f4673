"""What cases are made of: the registry, small data, small models, the usual loop."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

Train = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One training function, to be run by stock DDP with N processes and by isoscale on each placement."""

    train: Train
    placements: tuple[tuple[int, ...], ...]
    order: Literal["ddp", "tree"]

    @property
    def workers(self) -> int:
        return sum(self.placements[0])

    @property
    def name(self) -> str:
        return f"{self.train.__module__}:{self.train.__name__}"

    @property
    def id(self) -> str:
        return f"{self.train.__name__}-{self.workers}{'' if self.order == 'ddp' else '-tree'}"


CASES: list[Case] = []


def case(*placements: tuple[int, ...], order: Literal["ddp", "tree"] = "ddp") -> Callable[[Train], Train]:
    """Register a training function. Stack it for several numbers of logical workers or orders."""
    assert len({sum(shares) for shares in placements}) == 1, placements

    def register(train: Train) -> Train:
        CASES.append(Case(train, placements, order))
        return train

    return register


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
            x = x * (1 + 0.1 * random.random()) + 0.1 * float(np.random.randn()) + 0.1 * torch.randn(x.shape)
        return x, self.y[index]


class Images(Points):
    """Samples of 3 x 6 x 6."""

    def __init__(self, size: int) -> None:
        super().__init__(size, 108)
        self.x = self.x.view(size, 3, 6, 6)


class Tokens(Dataset[Any]):
    """Sequences of 7 token numbers below 40, with a class each."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(9)
        self.x = torch.randint(0, 40, (size, 7), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.x[index].sum() % 3


def mlp(features: int = 12, classes: int = 3, hidden: int = 33) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, classes))


def sgd(job: Any, model: Any, **options: Any) -> torch.optim.SGD:
    options = {"lr": 0.1, "momentum": 0.9} | options
    return job.keep("optimizer", torch.optim.SGD(model.parameters(), **options))  # type: ignore[no-any-return]


def fit(
    job: Any,
    model: Any,
    optimizer: Any,
    data: Any,
    *,
    epochs: int = 2,
    batch_size: int = 3,
    set_to_none: bool = True,
    between: Callable[[Any], None] | None = None,
    **options: Any,
) -> None:
    """The usual loop; `between` runs after the inner loop, before the optimizer."""
    loader = job.loader(data, batch_size=batch_size, shuffle=True, **options)
    for _ in job.epochs(epochs):
        for step in loader:
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            if between is not None:
                between(step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)


def evaluate(model: Any, loader: Any) -> dict[str, Any]:
    """Totals of one pass: an integer, a float sum and a tensor."""
    model.eval()
    for step in loader:
        for x, y in step:
            with torch.no_grad():
                out = model(x)
            step.sum(correct=(out.argmax(1) == y).sum(), loss=F.cross_entropy(out, y, reduction="sum"), seen=len(y))
            step.sum(per_class=torch.bincount(y, minlength=3))
    model.train()
    return dict(loader.totals)
