"""The script that the elastic benchmarks train, apart from the comparison with peers; public API only.

Writes per committed step: step, unix time, 0, and the seconds that `next()` of the loader took before it, which is
where checkpoints and switches happen. With `--gate` it trains only as far as the number in the file says, so that a
harness can let several jobs train in turn.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

import isoscale
from benchmarks.lib.models import workload
from benchmarks.peers.committed import MOMENTUM, RATE, commit_log

_POLL_S = 0.002


def chosen() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", type=int, required=True, help="-1: tiny, 0: convnet, 1: transformer")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--commits", type=Path, required=True)
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--pause-ms", type=float, default=0.0, help="after every step")
    return parser.parse_args()


def wait_at(gate: Path | None, step: int) -> None:
    while gate is not None and step >= int(gate.read_text()):
        time.sleep(_POLL_S)


def train(job: isoscale.Job) -> None:
    options = chosen()
    load, committed = workload(options.workload), commit_log(options.commits)
    model = job.model(load.make())
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM))
    loader = job.loader(load.data, batch_size=load.batch, shuffle=True)
    ended = time.perf_counter()
    for _ in job.steps(options.steps):
        for step in loader:
            next_s = time.perf_counter() - ended
            for x, y in step:
                loss = load.loss(model, x, y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            committed(job.step, 0, next_s)
            wait_at(options.gate, job.step)
            time.sleep(options.pause_ms / 1e3)
            ended = time.perf_counter()


if __name__ == "__main__":
    isoscale.run(train)
