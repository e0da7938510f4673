"""A job that prints more than anybody reads while it trains. Arguments: lines, a file whose presence ends it."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import isoscale

LINES, DONE = int(sys.argv[1]), Path(sys.argv[2])
AT_ONCE = 1000


def flood() -> None:
    print("\x1b]0;not a title\x07the first line", flush=True)
    for number in range(LINES // AT_ONCE):
        sys.stdout.write("".join(f"line {number * AT_ONCE + i}\n" for i in range(AT_ONCE)))
    sys.stdout.write("z" * 5_000_000)
    sys.stdout.write("\n")
    sys.stdout.buffer.write(b"\xff\xfe not text\n")
    print("no more lines")
    sys.stdout.write("and no end of line")
    DONE.with_name("flooded").touch()


def train(job: isoscale.Job) -> None:
    model = job.model(torch.nn.Linear(2, 1))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(TensorDataset(torch.ones(16, 2)), batch_size=2)
    threading.Thread(target=flood, daemon=True).start()
    for _ in job.steps(100_000):
        for step in loader:
            for (x,) in step:
                model(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.02)
            step_done(job)


def step_done(job: isoscale.Job) -> None:
    if DONE.exists():
        job.stop("the test is done")


if __name__ == "__main__":
    isoscale.run(train)
