"""A small cluster that never was, in Philly's public format, with every figure of the study counted the slow way.

Shares no code with the analysis: plain lists, loops over every minute and device, the standard library's arithmetic.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from pathlib import Path

BEGIN = datetime(2017, 10, 31, 22, 0, 0)  # of two months
MACHINES, DEVICES = 6, 8
MINUTES = 300
STATUS = {"Pass": "passed", "Killed": "killed", "Failed": "failed"}
SIZES = {"1": (1, 1), "2-4": (2, 4), "5-8": (5, 8), ">8": (9, 10**9)}


@dataclass
class Try:
    start: int | None
    end: int | None
    #: machine -> devices
    held: dict[int, list[int]]

    @property
    def devices(self) -> int:
        return sum(len(devices) for devices in self.held.values())

    @property
    def run(self) -> int | None:
        return None if self.start is None or self.end is None else self.end - self.start


@dataclass
class Job:
    name: str
    submit: int
    status: str
    vc: str
    user: str
    tries: list[Try]

    @property
    def devices(self) -> int:
        return self.tries[0].devices if self.tries else 0

    @property
    def run(self) -> int | None:
        if not self.tries or self.tries[0].start is None or self.tries[-1].end is None:
            return None
        return self.tries[-1].end - self.tries[0].start

    @property
    def wait(self) -> int | None:
        return self.tries[0].start - self.submit if self.tries and self.tries[0].start is not None else None

    @property
    def device_s(self) -> int:
        return sum((one.run or 0) * one.devices for one in self.tries)


@dataclass
class Cluster:
    jobs: list[Job]
    #: (minute, machine) -> a percentage, or None for NA, of every device
    samples: dict[tuple[int, int], list[float | None]] = field(default_factory=dict)
    processors: list[float] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)

    def write(self, home: Path) -> Path:
        home.mkdir(parents=True, exist_ok=True)
        (home / "cluster_job_log").write_text(json.dumps([_document(job) for job in self.jobs], indent=1))
        lines = [f"m{number},{DEVICES}, 24GB" for number in range(MACHINES)]
        (home / "cluster_machine_list").write_text(
            "\n".join(["machineId, number of GPUs, single GPU mem", *lines]) + "\n"
        )
        with (home / "cluster_gpu_util").open("w") as file:
            file.write("time,machineId," + ",".join(f"gpu{i}_util" for i in range(DEVICES)) + ",\n")
            for (minute, machine), values in self.samples.items():
                texts = ",".join("NA" if value is None else f"{value:g}" for value in values)
                file.write(f"{clock(60 * minute)} PDT,m{machine},{texts},\n")
        with (home / "cluster_cpu_util").open("w") as file:
            file.write("time,machine_id,cpu_util\n")
            file.writelines(f"{clock(60 * i)} PDT,m0,{value:g}\n" for i, value in enumerate(self.processors))
        with (home / "cluster_mem_util").open("w") as file:
            file.write("time,machine_id,mem_total,mem_free\n")
            file.writelines(f"{clock(60 * i)} PDT,m0,{total},{free}\n" for i, (total, free) in enumerate(self.memory))
        return home

    def holder(self, second: int, machine: int, device: int) -> tuple[Job, Try] | None:
        """Whose the device is; of two that the log has there at once, who started later."""
        found: tuple[Job, Try] | None = None
        for job in self.jobs:
            for one in job.tries:
                if one.start is None or one.end is None or device not in one.held.get(machine, []):
                    continue
                if one.start <= second < one.end and (found is None or one.start >= (found[1].start or 0)):
                    found = (job, one)
        return found

    @cached_property
    def held_values(self) -> list[tuple[Job, Try, float]]:
        found = []
        for (minute, machine), values in self.samples.items():
            for device, value in enumerate(values):
                holder = self.holder(60 * minute, machine, device)
                if value is not None and holder is not None:
                    found.append((*holder, value))
        return found

    def shared(self, one: Try) -> bool:
        """Whether others were beside it for more than half of its time, summed over its machines, second by second."""
        assert one.start is not None
        assert one.end is not None
        together = 0
        for machine in one.held:
            others = [
                other
                for job in self.jobs
                for other in job.tries
                if other is not one and machine in other.held and other.start is not None and other.end is not None
            ]
            cuts = sorted(
                {one.start, one.end, *(t for o in others for t in (o.start, o.end) if one.start < t < one.end)}
            )
            for left, right in pairwise(cuts):
                together += (right - left) * any(o.start <= left and right <= o.end for o in others)
        return together > (one.end - one.start) * len(one.held) / 2

    def in_use(self, second: float, vc: str = "") -> int:
        """Devices held just before a moment."""
        return sum(
            one.devices
            for job in self.jobs
            for one in job.tries
            if one.start is not None and one.end is not None and one.start < second <= one.end and vc in ("", job.vc)
        )


def make(seed: int, jobs: int = 40) -> Cluster:
    random_ = random.Random(seed)
    made = []
    for number in range(jobs):
        submit = random_.randrange(0, 50 * MINUTES)
        size = random_.choice([1, 1, 1, 2, 4, 8, 16])
        at = submit + random_.choice([0, 30, 400, 900, 2000])
        tries = []
        for _ in range(random_.choice([1, 1, 1, 2, 3])):
            run = random_.choice([20, 300, 599, 601, 2400, 5000])
            tries.append(Try(at, at + run, _devices(random_, size)))
            at += run + random_.choice([0, 60])
        status = random_.choice(["Pass", "Pass", "Killed", "Failed"])
        made.append(Job(f"application_1_{number}", submit, status, f"vc{number % 3}", f"user{number % 7}", tries))
    # What the public log has, too.
    made.append(Job("application_2_0", 100, "Killed", "vc0", "user0", []))
    made.append(Job("application_2_1", 200, "Failed", "vc1", "user1", [Try(300, None, {0: [0]})]))
    made.append(Job("application_2_2", 300, "Pass", "vc1", "user2", [Try(None, 900, {1: [1, 2]})]))
    cluster = Cluster(made)
    for minute in range(MINUTES):
        for machine in range(MACHINES):
            cluster.samples[minute, machine] = [
                None if random_.random() < 0.02 else random_.choice([0.0, 100.0, round(random_.uniform(0, 100), 1)])
                for _ in range(DEVICES)
            ]
    cluster.processors = [round(random_.uniform(0, 100), 1) for _ in range(200)]
    cluster.memory = [(1000, random_.randrange(0, 1001)) for _ in range(200)]
    return cluster


def figures(values: Iterable[float]) -> dict[str, float | int | None]:
    """Count, mean and percentiles with linear interpolation."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0, "mean": None, "p50": None, "p90": None, "p99": None}
    return {
        "count": len(ordered),
        "mean": math.fsum(ordered) / len(ordered),
        **{f"p{level}": quantile(ordered, level) for level in (50, 90, 99)},
    }


def quantile(ordered: list[float], level: float) -> float:
    place = level * (len(ordered) - 1) / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def of_size(devices: int, size: str) -> bool:
    if size == "all":
        return devices > 0
    least, most = SIZES[size]
    return least <= devices <= most


def clock(second: int) -> str:
    return (BEGIN + timedelta(seconds=second)).strftime("%Y-%m-%d %H:%M:%S")


def _devices(random_: random.Random, size: int) -> dict[int, list[int]]:
    """Packed where possible, sometimes spread."""
    count = max(-(-size // DEVICES), random_.choice([1, 1, 2, 4]) if size > 1 else 1)
    machines = random_.sample(range(MACHINES), min(count, size, MACHINES))
    held: dict[int, list[int]] = {}
    for number, machine in enumerate(machines):
        share = size // len(machines) + (number < size % len(machines))
        if share:
            held[machine] = sorted(random_.sample(range(DEVICES), share))
    return held


def _document(job: Job) -> dict[str, object]:
    return {
        "status": job.status,
        "vc": job.vc,
        "jobid": job.name,
        "attempts": [
            {
                "start_time": None if one.start is None else clock(one.start),
                "end_time": None if one.end is None else clock(one.end),
                "detail": [
                    {"ip": f"m{machine}", "gpus": [f"gpu{device}" for device in devices]}
                    for machine, devices in one.held.items()
                ],
            }
            for one in job.tries
        ],
        "submitted_time": clock(job.submit),
        "user": job.user,
    }
