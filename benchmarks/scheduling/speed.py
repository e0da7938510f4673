"""How long decisions take: the planner's split, the autoscaler's program, a choice among mixed kinds. CPU time, median.

Autoscaler tables are power laws k^p with p between 0.4 and 0.95 ("concave"), or the same with every size that is not a
multiple of four made up to 10 % slower ("uneven", which no greedy rule solves). Every answer is checked against the
plain recurrence.

    python -m benchmarks.scheduling.speed
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import options as chosen
from benchmarks.lib.result import save
from isoscale.scheduling.autoscaler import allocate, allocate_by_recurrence, total_value
from isoscale.scheduling.choice import Choices, choose
from isoscale.scheduling.options import device_options
from isoscale.scheduling.planner import best_split
from isoscale.scheduling.state import Cluster, JobRequest, Node
from isoscale.scheduling.throughput import LogicalWorkerSpeed

RESULT, MINUTES = "scheduling_speed", 4


def main() -> None:
    options = chosen(__doc__)
    rng = np.random.default_rng(0)
    rows = [_planner(rng, 64, 16, 1.0), _planner(rng, 10_000, 64, None)]
    sizes = [(100, 400, 10, 5.0), (400, 400, 10, None), (1000, 10_000, 64, 1000.0)]
    if options.smoke:
        sizes = [(10, 40, 4, None)]
    for jobs, devices, most, limit_ms in sizes[:1] if options.quick else sizes:
        for tables in ("concave", "uneven"):
            rows.append(_autoscaler(rng, jobs, devices, most, tables, limit_ms))
    rows += [_choice(rng, jobs) for jobs in options.pick(smoke=(2,), quick=(5,), full=(5, 10, 20))]
    for row in rows:
        print(row, flush=True)
    save(RESULT, rows, options)


def _planner(rng: np.random.Generator, workers: int, executors: int, limit_ms: float | None) -> dict[str, object]:
    turns = rng.choice([0.3, 0.5, 0.8, 1.3], size=executors).tolist()
    spent = _median_ms(lambda: best_split(workers, turns), 200)
    return {"what": f"split of {workers} workers on {executors} devices of 4 kinds", **_judged(spent, limit_ms)}


def _autoscaler(
    rng: np.random.Generator, jobs: int, devices: int, most: int, shape: str, limit_ms: float | None
) -> dict[str, object]:
    sizes = np.arange(1, most + 1)
    tables = []
    for _ in range(jobs):
        rates = sizes ** rng.uniform(0.4, 0.95)
        if shape == "uneven":
            rates = rates * (1 - 0.1 * (sizes % 4 != 0) * rng.random())
        tables.append(np.concatenate([[-np.inf], rates]))
    answer, plain = allocate(tables, devices), allocate_by_recurrence(tables, devices)
    assert answer is not None
    assert plain is not None
    assert abs(total_value(tables, answer) - total_value(tables, plain)) < 1e-6
    spent = _median_ms(lambda: allocate(tables, devices), 5)
    recurrence = _median_ms(lambda: allocate_by_recurrence(tables, devices), 3)
    what = f"autoscaler, {jobs} jobs x {devices} devices x {most} per job, {shape}"
    return {"what": what, **_judged(spent, limit_ms), "recurrence_ms": rounded(recurrence)}


def _choice(rng: np.random.Generator, num_jobs: int) -> dict[str, object]:
    capacity = {"V100": 32, "P100": 16, "T4": 16}
    cluster = Cluster(nodes=tuple(Node(name=kind, kind=kind, num_devices=count) for kind, count in capacity.items()))
    jobs = []
    for number in range(num_jobs):
        workers = int(rng.choice([8, 16, 32]))
        request = JobRequest(
            name=str(number), submitted_s=0, requested_devices=workers, max_devices=workers, mixes_kinds=True
        )
        speed = LogicalWorkerSpeed(
            num_logical_workers=workers, turn_s={"V100": 0.44, "P100": 0.60, "T4": float(rng.uniform(0.6, 0.7))}
        )
        options = device_options(cluster, capacity, request, speed)
        jobs.append(Choices(options.counts, rng.random() * options.rates / options.rates.max()))
    proven = choose(jobs, list(capacity.values()))[1]
    spent = _median_ms(lambda: choose(jobs, list(capacity.values())), 3)
    num_options = sum(len(job.values) for job in jobs)
    what = f"choice for {num_jobs} jobs among {num_options} sets of 32 V100 + 16 P100 + 16 T4"
    return {"what": what, **_judged(spent, None), "proven_best": proven}


def _median_ms(call: Callable[[], object], times: int) -> float:
    spent = []
    for _ in range(times):
        begun = time.process_time()
        call()
        spent.append(time.process_time() - begun)
    return 1e3 * float(np.median(spent))


def _judged(spent_ms: float, limit_ms: float | None) -> dict[str, object]:
    meets = None if limit_ms is None else spent_ms < limit_ms
    return {"cpu_ms": rounded(spent_ms), "limit_ms": limit_ms, "meets": meets}


if __name__ == "__main__":
    main()
