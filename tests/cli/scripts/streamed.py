"""A stream with everything that could differ by placement: FILES TAIL BUFFER EPOCHS [SECONDS PER TURN [PROCESSES]].

Every turn writes down which samples it got: DIR/turns-PID.jsonl, lines of [epoch, step, ids].
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import isoscale
from isoscale.testing.short_job import do_without_compiler

FILES, TAIL, BUFFER, EPOCHS = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
TURN_S = float(sys.argv[5]) if sys.argv[5:] else 0.0
PROCESSES = int(sys.argv[6]) if sys.argv[6:] else 0


def noisy(line: str) -> tuple[torch.Tensor, int, int]:
    v = int(line)
    noise = 0.1 * torch.randn(3) + 0.01 * random.random() + 0.01 * float(np.random.rand())
    return torch.tensor([v % 7, v % 11, v % 13]) / 10 + noise, v % 2, v


def train(job: isoscale.Job) -> None:
    model = job.model(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    options: Any = {"tail": TAIL, "shuffle_buffer": BUFFER, "transform": noisy, "ledger": True}
    options["num_workers"] = PROCESSES
    loader = job.stream(isoscale.text_lines(FILES, partition_bytes=60), batch_size=4, **options)
    val = job.stream(isoscale.text_lines(FILES), batch_size=16, train=False, transform=int)
    for epoch in job.epochs(EPOCHS):
        for step in loader:
            for x, y, ids in step:
                with (job.out / f"turns-{os.getpid()}.jsonl").open("a") as file:
                    file.write(json.dumps([epoch, job.step + 1, ids.tolist()]) + "\n")
                time.sleep(TURN_S)
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
                step.sum(seen=len(ids), total=ids.sum())
            optimizer.step()
            optimizer.zero_grad()
        for step in val:
            for ids in step:
                step.sum(seen=len(ids), total=ids.sum())
        job.log(seen=loader.totals["seen"], total=loader.totals["total"], checked=val.totals["total"])


if __name__ == "__main__":
    do_without_compiler()
    isoscale.run(train)
