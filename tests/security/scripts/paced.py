"""A job that goes as far as it is allowed to, so that things can happen to it. Arguments: steps, a file, "print".

After step k it waits until the file holds a number above k. Without a file it waits for nothing.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import isoscale

STEPS = int(sys.argv[1])
GATE = Path(sys.argv[2]) if len(sys.argv) > 2 else None


def train(job: isoscale.Job) -> None:
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(64, 6, generator=generator), torch.randint(0, 3, (64,), generator=generator))
    net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 3))
    model = job.model(net)
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loader = job.loader(data, batch_size=4, shuffle=True)
    for _ in job.epochs(1 + STEPS // 4):
        for step in loader:
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            if "print" in sys.argv:
                print(f"step {job.step} " + "." * 3000)
            if job.step == STEPS:
                job.stop("enough")
            while job.step >= allowed() and job.step < STEPS:
                time.sleep(0.01)


def allowed() -> int:
    return STEPS if GATE is None else int(GATE.read_text() or 0)


if __name__ == "__main__":
    isoscale.run(train)
