"""Takes its time after every step, for tests that interrupt it. Arguments: seconds, a mark, "only-in-reference"."""

from __future__ import annotations

import os
import sys
import time

import torch
from torch.utils.data import TensorDataset

import isoscale

IS_SLOW = "only-in-reference" not in sys.argv or "ISOSCALE_REFERENCE" in os.environ


def train(job: isoscale.Job) -> None:
    model = job.model(torch.nn.Linear(2, 1))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(TensorDataset(torch.ones(16, 2)), batch_size=2)
    for _ in job.epochs(1):
        for step in loader:
            for (x,) in step:
                loss = model(x).sum()
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            if IS_SLOW:
                time.sleep(float(sys.argv[1]))


if __name__ == "__main__":
    isoscale.run(train)
