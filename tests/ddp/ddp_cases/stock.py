"""`basics.plain_sgd` as the tutorial writes it: DistributedDataParallel and nothing of isoscale.

Checks the reference itself. Runs as its training function, but takes no more than a rank from the job.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ddp_cases.toolkit import Points, mlp

SEED = 3


def seed(value: int) -> None:
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)


def plain_sgd(job: Any) -> None:
    seed(SEED)
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = Points(40)
    sampler = DistributedSampler(data, seed=SEED)
    loader = DataLoader(data, batch_size=3, sampler=sampler)
    seed(SEED + dist.get_rank())
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    job.state["model"] = model.module.state_dict()
    job.state["optimizer"] = optimizer.state_dict()
