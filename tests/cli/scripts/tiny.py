"""A small training script. Its argument plants a divergence, or a failure, that `verify` has to find."""

from __future__ import annotations

import itertools
import os
import signal
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import isoscale

MODE = sys.argv[1] if len(sys.argv) > 1 else "fine"
IS_REFERENCE = "ISOSCALE_REFERENCE" in os.environ


class Noise(nn.Module):
    """Draws from a generator of its own, which nobody keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.rand(x.shape, generator=self.generator)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = Noise() if MODE == "generator" else nn.Dropout(0.2)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(F.relu(self.norm(self.first(x)))))


def train(job: isoscale.Job) -> None:
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(48, 6, generator=generator), torch.randint(0, 3, (48,), generator=generator))
    model = job.model(Net())
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loader = job.loader(data, batch_size=4, shuffle=True)
    turns = itertools.count(1)  # state that no search finds
    for epoch in job.epochs(2):
        for step in loader:
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                if MODE == "closure":
                    loss = loss * (1 + 0.01 * next(turns))
                if job.step == 2 and (MODE == "raise" or (MODE == "raise-in-reference" and IS_REFERENCE)):
                    raise ValueError("planted in the turn")
                if MODE == "die" and IS_REFERENCE and os.environ["ISOSCALE_EXECUTOR"] == "1" and job.step == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            if MODE == "outside" and IS_REFERENCE and job.step == 3:
                with torch.no_grad():
                    model.last.bias.mul_(1.5)
        if job.is_main:
            print(f"epoch {epoch}", flush=True)


if __name__ == "__main__" and MODE != "no-run":
    isoscale.run(train)
