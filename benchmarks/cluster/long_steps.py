"""The job of `reclaims`: every turn computes for as long as told, without a pause in which others could get at it.

    isoscale run long_steps.py --workers 2 -- SECONDS_PER_TURN compute|sleep DIR

What it multiplies until then goes nowhere, so its bits do not depend on the time. With `sleep` it waits instead: so
several of them have long steps on two cores at once. A process that begins a turn leaves a file in DIR, by the name of
its number. Parameters and momentum are 25 MB.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import isoscale

_WIDTH, _LAYERS = 1024, 3


def train(job: isoscale.Job) -> None:
    model = job.model(nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS))))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    samples = torch.randn(64, _WIDTH, generator=torch.Generator().manual_seed(0))
    loader = job.loader(torch.utils.data.TensorDataset(samples), batch_size=4)
    for _ in job.epochs(10**6):
        for step in loader:
            for (x,) in step:
                Path(sys.argv[3], str(os.getpid())).touch()
                (time.sleep if sys.argv[2] == "sleep" else _compute)(float(sys.argv[1]))
                loss = F.mse_loss(model(x), x)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()


def _compute(seconds: float) -> None:
    until, factor = time.monotonic() + seconds, torch.ones(_WIDTH, _WIDTH)
    while time.monotonic() < until:
        factor @ factor


if __name__ == "__main__":
    isoscale.run(train)
