"""What both tutorial scripts train: a small network, and points whose class is a ring around the origin."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset


def points(*, train: bool) -> TensorDataset:
    """The same points in every process and every run, drawn without touching the global random streams."""
    generator = torch.Generator().manual_seed(0 if train else 1)
    places = 2 * torch.rand(512 if train else 128, 2, generator=generator) - 1
    return TensorDataset(places, (3 * places.norm(dim=1)).long().clamp(max=2))


def network() -> nn.Module:
    """BatchNorm and dropout: what usually gives other numbers when the number of processes changes."""
    return nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
