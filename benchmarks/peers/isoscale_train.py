"""isoscale's side of the benchmark: `isoscale run isoscale_train.py --workers 2 -- --workload ...`.

The script cannot know how many executors there are, so it writes 0 and the harness counts who wrote a step.
"""

from __future__ import annotations

import torch

import isoscale
from benchmarks.peers.committed import MOMENTUM, RATE, commit_log, options


def train(job: isoscale.Job) -> None:
    load, steps, folder = options()
    committed = commit_log(folder)
    model = job.model(load.make())
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM))
    loader = job.loader(load.data, batch_size=load.batch, shuffle=True)
    for _ in job.steps(steps):
        for step in loader:
            for x, y in step:
                loss = load.loss(model, x, y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            committed(job.step, 0)


if __name__ == "__main__":
    isoscale.run(train)
