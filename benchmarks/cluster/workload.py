"""The workload of `simulated_against_real`: which recipe comes when, how long it is, how many devices it asks for.

`workload.csv` was sampled once, before anything ran, from ElasticFlow's public trace of 195 jobs
(`elasticVpollux_e.csv`, by `sample`), and is what both sides read. From a job drawn by the seed on, the next `JOBS`
whose model has a counterpart among the recipes. Gaps between arrivals keep their order of size (square roots, scaled to
`SPAN_S`); device-seconds keep theirs (to the power of 0.4, scaled to `DEVICE_S` in all): two devices cannot train for
weeks. A job that asked for one device asks for one, others for two. To print it again:

    python -m benchmarks.cluster.workload --trace FILE
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

JOBS, SEED, SPAN_S, DEVICE_S = 14, 18, 30.0, 110.0
FILE = Path(__file__).with_name("workload.csv")
#: recipe by model of the trace; models without one are left out
RECIPES = {"cifar10": "digits", "ncf": "neumf", "deepspeech2": "balanced_lstm", "yolov3": "yolo"}
#: about so many seconds a step takes on one device: only to turn device-seconds into steps
STEP_S = {"digits": 0.014, "neumf": 0.011, "balanced_lstm": 0.067, "yolo": 0.09}
WORKERS = 4


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    recipe: str
    #: after the first one
    arrival_s: float
    steps: int
    #: that it asks for at most
    devices: int

    @property
    def script_args(self) -> tuple[str, ...]:
        """More epochs than it will train: it ends by its steps."""
        return ("--epochs", "100000")


def read(file: Path = FILE) -> list[Job]:
    with file.open(newline="") as rows:
        return [
            Job(row["name"], row["recipe"], float(row["arrival_s"]), int(row["steps"]), int(row["devices"]))
            for row in csv.DictReader(rows)
        ]


def sample(trace: Path) -> list[Job]:
    with trace.open(newline="") as rows:
        known = [row for row in csv.DictReader(rows) if row["model_name"] in RECIPES]
    known.sort(key=lambda row: float(row["submit_time"]))
    first = random.Random(SEED).randrange(len(known) - JOBS)
    chosen = known[first : first + JOBS]
    times = [float(row["submit_time"]) for row in chosen]
    gaps = _scaled([(later - earlier) ** 0.5 for earlier, later in pairwise(times)], SPAN_S)
    work = _scaled([(float(row["duration"]) * float(row["num_gpu"])) ** 0.4 for row in chosen], DEVICE_S)
    jobs, at = [], 0.0
    for number, (row, gap, device_s) in enumerate(zip(chosen, [0.0, *gaps], work, strict=True)):
        at += gap
        recipe = RECIPES[row["model_name"]]
        steps = max(10, round(device_s / STEP_S[recipe]))
        name = f"{recipe.replace('_', '-')}-{number}"
        jobs.append(Job(name, recipe, round(at, 2), steps, min(2, int(row["num_gpu"]))))
    return jobs


def _scaled(values: Sequence[float], total: float) -> list[float]:
    return [value * total / sum(values) for value in values]


def write(jobs: Sequence[Job], out: TextIO) -> None:
    writer: Any = csv.DictWriter(out, [one.name for one in fields(Job)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(job) for job in jobs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, help="ElasticFlow's elasticVpollux_e.csv")
    write(sample(parser.parse_args().trace), sys.stdout)
