"""Peak memory of one executor with 1 to 16 logical workers, against as many packed processes.

Each point is a process of its own that trains the 26 MB transformer for a few steps; growth is counted in
copies of the gradients, over the point k = 1 of the same order. Packed processes are plain training loops
at the same time on this machine, counted by their proportional share of memory.

    python -m benchmarks.overhead.memory
"""

from __future__ import annotations

import math
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.lib.measure import as_executor
from benchmarks.lib.models import megabytes, workloads
from benchmarks.lib.options import options as chosen
from benchmarks.lib.processes import run_module
from benchmarks.lib.result import save
from benchmarks.overhead import memory_point

_STEPS = 4

RESULT, MINUTES = "memory", 3


def process(order: str, k: int) -> subprocess.Popen[str]:
    command = run_module(memory_point.__name__, order, k, _STEPS)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def status_mb(pid: int, field: str, file: str) -> float:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def peak_mb(order: str, k: int) -> float:
    one = process(order, k)
    assert one.stdout is not None
    assert one.stdout.readline() == "ready\n"
    peak = status_mb(one.pid, "VmHWM", "status")
    one.communicate("\n")
    return peak


def packed_mb(k: int) -> float:
    many = [process("packed", 1) for _ in range(k)]
    for one in many:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    total = sum(status_mb(one.pid, "Pss", "smaps_rollup") for one in many)
    for one in many:
        one.communicate("\n")
    return total


def limit_of(order: str, k: int) -> float:
    """Copies of the gradients. Tree: as many live sums as the tree is deep, and one that is made. Ring: half of them.

    No order of turns does with less than (k - 1)(1/2 + 1/k) in the ring (docs/decisions/0001-two-orders.md).
    """
    return math.log2(k) + 1 if order == "tree" else k / 2


def main() -> None:
    options = chosen(__doc__)
    as_executor()
    gradients = megabytes(workloads()[1].make())
    counts = options.pick(smoke=(1, 2), quick=(1, 4, 16), full=(1, 2, 4, 8, 16))
    rows: list[dict[str, Any]] = []
    for order in ("tree",) if options.smoke else ("tree", "ddp"):
        first = peak_mb(order, 1)
        for k in counts:
            peak = first if k == 1 else peak_mb(order, k)
            copies = (peak - first) / gradients
            limit = limit_of(order, k)
            rows.append(
                {
                    "order": order,
                    "k": k,
                    "peak_mb": round(peak, 1),
                    "copies": round(copies, 2),
                    "limit": limit,
                    "meets": copies <= limit,
                }
            )
            print(f"{order:5} k={k:2}  peak {peak:7.1f} MB  {copies:5.2f} gradient copies over k=1, limit {limit:.2f}")
    for k in counts[-1:] if options.length == "full" else ():
        start = time.perf_counter()
        total = packed_mb(k)
        rows.append({"order": "packed processes", "k": k, "peak_mb": round(total, 1)})
        print(f"{k} packed processes: {total:.0f} MB in all ({time.perf_counter() - start:.0f} s)")
    save(RESULT, rows, options, gradients_mb=round(gradients, 1))


if __name__ == "__main__":
    main()
