"""Trains for a while and says what it does: by `print`, by `job.log`, or by failing before its first step."""

from __future__ import annotations

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import isoscale


def train(job: isoscale.Job) -> None:
    if "broken" in sys.argv:
        raise ValueError("no data here")
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(64, 6, generator=generator), torch.randint(0, 3, (64,), generator=generator))
    model = job.model(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3)))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loader = job.loader(data, batch_size=4, shuffle=True)
    for epoch in job.epochs(4):
        for step in job.loader(data, batch_size=4, shuffle=True) if "late" in sys.argv else loader:
            for x, y in step:
                if "slow" in sys.argv and not (job.out / "hurry").exists():
                    time.sleep(0.5)
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        print(f"printed in epoch {epoch}")
        job.log(mark=epoch)
        print(f"printed after the log of epoch {epoch}")


isoscale.run(train)
