"""Trains a tiny convolutional network and a tiny transformer side by side, as two models of one job.

With an argument that names an operator, forward calls it: one that torch cannot run deterministically.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import isoscale

PLANTED = sys.argv[1] if len(sys.argv) > 1 else ""


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 24, 3, padding=1, bias=False),
            nn.BatchNorm2d(24),
            nn.GELU(),
        )
        self.head = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if PLANTED:
            x = getattr(x.clone(), PLANTED)(torch.tensor([0]), torch.zeros(1))
        return self.head(self.features(x).mean((2, 3)))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 24)
        self.layer = nn.TransformerEncoderLayer(24, 3, 48, 0.1, batch_first=True)
        self.head = nn.Linear(24, 40)
        self.noise = torch.Generator().manual_seed(0)  # state that is no buffer, for `check` to list

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(tokens)))


def train(job: isoscale.Job) -> None:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 40, (48, 7), generator=generator)
    images = torch.randint(-8, 9, (48, 3, 8, 8), generator=generator) / 4
    labels = torch.randint(0, 5, (48,), generator=generator)
    pictures, words = job.model(Pictures()), job.model(Words())
    sgd = job.keep("sgd", torch.optim.SGD(pictures.parameters(), lr=0.05, momentum=0.9))
    adam = job.keep("adam", torch.optim.AdamW(words.parameters(), lr=1e-3))
    loader = job.loader(TensorDataset(images, labels, tokens, tokens.roll(-1, 1)), batch_size=3, shuffle=True)
    for _ in job.epochs(2):
        for step in loader:
            for x, label, sentence, following in step:
                loss = F.cross_entropy(pictures(x), label)
                loss = loss + F.cross_entropy(words(sentence).flatten(0, 1), following.flatten())
                loss.backward()
                step.log(loss=loss)
            for optimizer in (sgd, adam):
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    isoscale.run(train)
