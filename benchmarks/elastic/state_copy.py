"""One copy of a model's parameters and momentum at memory speed, in a process of its own; a part of `checkpoint`.

Started as `python -m benchmarks.elastic.state_copy WORKLOAD`; prints bytes, the 10th percentile and the median in
seconds. Pauses between copies, so that caches hold what a training step would leave in them.
"""

from __future__ import annotations

import sys
import time

import torch

from benchmarks.lib.models import workload

_COPIES, _PAUSE_S = 60, 0.05


def main() -> None:
    torch.set_num_threads(1)
    state = [torch.randn_like(p) for p in workload(int(sys.argv[1])).make().parameters() for _ in range(2)]
    target = [torch.empty_like(t).zero_() for t in state]
    spent = []
    for _ in range(_COPIES):
        start = time.perf_counter()
        for a, b in zip(target, state, strict=True):
            a.copy_(b)
        spent.append(time.perf_counter() - start)
        time.sleep(_PAUSE_S)
    spent.sort()
    print(sum(t.numel() * t.element_size() for t in state), spent[len(spent) // 10], spent[len(spent) // 2])


if __name__ == "__main__":
    main()
