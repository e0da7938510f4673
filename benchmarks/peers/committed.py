"""What every worker of every system writes down: a line per committed step, and the parameters at the end.

Lines go to a file of the process's own, `commits-PID.txt`: step, unix time, number of workers (0: not known
to the script). A line is one write, so a killed worker leaves whole lines only. Needs torch and nothing else.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib.models import Workload, workload

RATE, MOMENTUM = 0.01, 0.9


def options() -> tuple[Workload, int, Path]:
    """Workload, steps in all, and where to write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--commits", type=Path, required=True)
    chosen = parser.parse_args()
    return workload(chosen.workload), chosen.steps, chosen.commits


def commit_log(folder: Path) -> Callable[..., None]:
    """A function (step, workers, ...) to call once a step is committed; more numbers become more columns."""
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / f"commits-{os.getpid()}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def committed(step: int, workers: int, *more: float) -> None:
        columns = [str(step), f"{time.time():.6f}", str(workers), *(f"{number:.6f}" for number in more)]
        os.write(file, (" ".join(columns) + "\n").encode())

    return committed


def save_whole(thing: Any, path: Path) -> None:
    """Never half a file."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    torch.save(thing, partial)
    partial.replace(path)
