"""Models of the benchmarks: sizes chosen so that a turn takes 50 ms and more on one core."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset


def convnet(width: int = 32) -> nn.Module:
    """BatchNorm and dropout, about 1.7 million parameters at width 64."""
    layers: list[nn.Module] = []
    channels = 3
    for out in (width, width * 2, width * 4, width * 8):
        layers += [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)]
        channels = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.1), nn.Linear(channels * 4, 10))


class Transformer(nn.Module):
    def __init__(self, depth: int = 8, width: int = 256, vocabulary: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, width * 4, 0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(tokens)))


@dataclass(frozen=True)
class Workload:
    name: str
    make: Callable[[], nn.Module]
    loss: Callable[[Any, Any, Any], torch.Tensor]
    data: TensorDataset
    batch: int


def workloads() -> list[Workload]:
    generator = torch.Generator().manual_seed(0)
    images = TensorDataset(
        torch.randn(512, 3, 32, 32, generator=generator), torch.randint(0, 10, (512,), generator=generator)
    )
    tokens = torch.randint(0, 512, (512, 64), generator=generator)
    text = TensorDataset(tokens, tokens.roll(-1, 1))
    return [
        Workload("convnet 6.5 MB", lambda: convnet(64), lambda m, x, y: F.cross_entropy(m(x), y), images, 16),
        Workload(
            "transformer 26 MB", Transformer, lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten()), text, 4
        ),
    ]


#: for smoke runs and where the model shall cost nothing; the same with a rest in every turn, to be watched meanwhile
TINY, PACED = -1, -2
_REST_S = 0.02


def workload(number: int) -> Workload:
    """One of `workloads()`, or `TINY`, or `PACED`."""
    if number >= 0:
        return workloads()[number]

    def loss(model: Any, x: Any, y: Any) -> torch.Tensor:
        time.sleep(_REST_S if number == PACED else 0.0)
        return F.cross_entropy(model(x), y)

    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(4096, 8, generator=generator), torch.randint(0, 4, (4096,), generator=generator))
    return Workload("tiny", lambda: nn.Linear(8, 4), loss, data, 4)


def megabytes(module: nn.Module) -> float:
    return sum(p.numel() * p.element_size() for p in module.parameters()) / 2**20
