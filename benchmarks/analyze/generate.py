"""Logs in Philly's public format at full size: a job log with attempts, and a monitor of devices by the minute.

The size is what counts; values are drawn by seed and mean nothing. Knows nothing of the analysis.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

BEGIN = datetime(2017, 10, 1)


def job_log(path: Path, *, jobs: int, machines: int, days: float, seed: int = 0) -> int:
    """Writes `cluster_job_log`; the number of attempts."""
    rng = np.random.default_rng([seed, 1])
    submits = np.sort(rng.uniform(0, days * 86_400, jobs)).astype(int)
    sizes = rng.choice([1, 2, 4, 8, 16], size=jobs, p=[0.8, 0.06, 0.06, 0.06, 0.02])
    waits = rng.exponential(300, jobs).astype(int)
    runs = np.minimum(np.exp(rng.normal(6.5, 2.0, jobs)), 600_000).astype(int) + 1
    statuses = rng.choice(["Pass", "Killed", "Failed"], size=jobs, p=[0.69, 0.14, 0.17])
    tries = 1 + (rng.uniform(size=jobs) < 0.15) + (rng.uniform(size=jobs) < 0.08)
    first = rng.integers(0, machines, jobs)
    total = 0
    with path.open("w", encoding="utf-8") as file:
        file.write("[\n")
        for number in range(jobs):
            at = int(submits[number] + waits[number])
            attempts = []
            for _ in range(int(tries[number])):
                detail, left, machine = [], int(sizes[number]), int(first[number])
                while left > 0:
                    held = min(8, left)
                    detail.append({"ip": f"m{machine % machines}", "gpus": [f"gpu{i}" for i in range(held)]})
                    left, machine = left - held, machine + 1
                end = at + int(runs[number])
                attempts.append({"start_time": text(at), "end_time": text(end), "detail": detail})
                at = end + 60
            total += len(attempts)
            job = {
                "status": str(statuses[number]),
                "vc": f"vc{int(first[number]) % 14}",
                "jobid": f"application_1506638472019_{number}",
                "attempts": attempts,
                "submitted_time": text(int(submits[number])),
                "user": f"user{int(first[number]) % 300}",
            }
            file.write(json.dumps(job) + (",\n" if number < jobs - 1 else "\n"))
        file.write("]\n")
    return total


def machine_list(path: Path, *, machines: int) -> None:
    lines = [f"m{number},8, 24GB\n" for number in range(machines)]
    path.write_text("machineId, number of GPUs, single GPU mem\n" + "".join(lines), encoding="utf-8")


def device_monitor(path: Path, *, machines: int, minutes: int, seed: int = 0) -> int:
    """Writes `cluster_gpu_util`; the number of samples, `NA` included."""
    rng = np.random.default_rng([seed, 2])
    # Texts of some thousand lines' values, chosen anew for every line: as many different lines as anybody needs.
    values = rng.choice([0.0, 100.0, -1.0], size=(4096, 8), p=[0.3, 0.05, 0.65])
    drawn = np.round(rng.uniform(0, 100, size=(4096, 8)), 1)
    tails = [
        ",".join("NA" if i == j == 0 else f"{(drawn if v < 0 else values)[i, j]:.1f}" for j, v in enumerate(row))
        + ",\n"
        for i, row in enumerate(values)
    ]
    heads = [f"m{number}," for number in range(machines)]
    with path.open("w", encoding="utf-8", buffering=1 << 22) as file:
        file.write("time,machineId," + ",".join(f"gpu{i}_util" for i in range(8)) + ",\n")
        for minute in range(minutes):
            stamp = text(minute * 60) + " PDT,"
            which = rng.integers(0, len(tails), machines).tolist()
            file.write("".join([stamp + head + tails[tail] for head, tail in zip(heads, which, strict=True)]))
    return machines * minutes * 8


def text(seconds: int) -> str:
    return (BEGIN + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S")
