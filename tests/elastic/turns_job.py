"""A job of a dozen steps that writes down which turns ran where, into files of the directory `turns` of its run.

    isoscale run turns_job.py -- [unused]

Convolutions in channels_last, batch norm, dropout, a bucket of more than 1 MiB, streams and objects of each logical
worker. With `unused` every logical worker leaves out a layer of its own, and gradients are not cleared.
"""

from __future__ import annotations

import random
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import isoscale
from isoscale import env

STEPS = 12


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.choice = nn.ModuleList([nn.Linear(8 * 6 * 6, 640) for _ in range(4)])
        self.wide = nn.Linear(640, 640)
        self.last = nn.Linear(640, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, without: int) -> torch.Tensor:
        self.calls += 1
        hidden = F.dropout(F.relu(self.norm(self.first(x))).flatten(1), 0.2, self.training)
        chosen = [layer(hidden) for i, layer in enumerate(self.choice) if i != without]
        return self.last(F.relu(self.wide(torch.stack(chosen).sum(0))))


def train(job: isoscale.Job) -> None:
    unused = "unused" in sys.argv[1:]
    net = Net().to(memory_format=torch.channels_last)
    model = job.model(net, find_unused_parameters=unused)
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    noise = job.keep_per_worker("noise", lambda rank: torch.Generator().manual_seed(rank))
    memory = job.keep_per_worker("memory", dict)
    log = job.out / "turns"
    log.mkdir(exist_ok=True)
    # A batch size that leaves the last step of a pass with fewer samples.
    data = torch.utils.data.TensorDataset(torch.randn(100, 3, 6, 6), torch.randint(2, (100,)))
    loader = job.loader(data, batch_size=5, shuffle=True)
    for _ in job.steps(STEPS):
        for step in loader:
            for x, y in step:
                with (log / f"{env.executor()}").open("a") as file:
                    file.write(f"{job.step + 1} {step.logical_rank}\n")
                memory["loss"] = memory.get("loss", 0.0) * random.random()
                noisy = x.to(memory_format=torch.channels_last) + 0.1 * torch.randn(x.shape, generator=noise)
                loss = F.cross_entropy(model(noisy, step.logical_rank if unused else -1), y) * (1 + memory["loss"])
                time.sleep(0.1)  # so that nobody has lost another one before it begins its own turn
                loss.backward()
                memory["loss"] += loss.item()
                step.log(loss=loss)
                step.sum(seen=len(y))
                step.gather(labels=y)
            assert step.totals["seen"] == sum(map(len, step.gathered["labels"]))
            optimizer.step()
            if not unused:
                optimizer.zero_grad()


if __name__ == "__main__":
    isoscale.run(train)
