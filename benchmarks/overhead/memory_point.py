"""One point of `memory`, in a process of its own: trains a few steps, says so, and stays until a line comes in.

Started as `python -m benchmarks.overhead.memory_point ORDER K STEPS`; order `packed` is a plain training loop.
"""

from __future__ import annotations

import sys

import torch

from benchmarks.lib.models import workloads
from benchmarks.overhead.context_switch import isoscale_side, plain_side


def main() -> None:
    order, k, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    load = workloads()[1]
    step = isoscale_side(load, k, order) if order != "packed" else plain_side(load, 1)
    for _ in range(steps):
        step()
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
