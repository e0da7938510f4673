"""Peak memory of one executor with 1 to 16 logical workers, against as many packed processes.

Each point is a process of its own that trains the 26 MB transformer for a few steps; growth is counted in
copies of the gradients, over the point k = 1 of the same order. Packed processes are plain training loops
at the same time on this machine, counted by their proportional share of memory.

    python -m benchmarks.overhead.memory
"""

from __future__ import annotations

import json
import math
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.lib.measure import as_executor, quick_option, save
from benchmarks.lib.models import megabytes, workloads
from benchmarks.lib.processes import run_module
from benchmarks.overhead import memory_point

_STEPS = 4


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


def main() -> None:
    quick = quick_option(__doc__ or "").quick
    as_executor()
    gradients = megabytes(workloads()[1].make())
    counts = (1, 2, 4) if quick else (1, 2, 4, 8, 16)
    rows: list[dict[str, Any]] = []
    for order in ("tree", "ddp"):
        first = peak_mb(order, 1)
        for k in counts:
            peak = first if k == 1 else peak_mb(order, k)
            copies = (peak - first) / gradients
            limit = math.log2(k) + 1 if order == "tree" else float(k)
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
            print(f"{order:5} k={k:2}  peak {peak:7.1f} MB  {copies:5.2f} gradient copies over k=1, limit {limit:.0f}")
    for k in () if quick else counts[-1:]:
        start = time.perf_counter()
        total = packed_mb(k)
        rows.append({"order": "packed processes", "k": k, "peak_mb": round(total, 1)})
        print(f"{k} packed processes: {total:.0f} MB in all ({time.perf_counter() - start:.0f} s)")
    if not quick:
        save("memory", rows, gradients_mb=round(gradients, 1))
    else:
        print(json.dumps(rows[-1]))


if __name__ == "__main__":
    main()
