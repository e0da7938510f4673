"""How long every policy takes to decide for 1,000 jobs on 10,000 devices of four kinds. CPU time of one decision.

1,000 H100, 2,000 A100, 3,000 V100 and 4,000 T4 in nodes of 8. Twice: jobs with speeds by kind that use one kind at a
time (world `mixed`, speeds known), and jobs of 2 to 64 logical workers that may mix kinds. Everybody comes at once, so
the first decision knows nobody; four more follow, a minute apart, each after a fiftieth of the jobs came near its end.
Shown are the slowest decision and the median. Target: under a second.

    python -m benchmarks.scheduling.decisions
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import options as chosen
from benchmarks.lib.result import save
from isoscale.scheduling.controller import Controller
from isoscale.scheduling.events import JobProgress, JobSubmitted
from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import Cluster, JobRequest, Node
from isoscale.scheduling.throughput import Communication, LogicalWorkerSpeed
from isoscale.sim.traces.record import TraceJob
from isoscale.sim.worlds.mixed import NOMINAL, Mixed

RESULT, MINUTES = "scheduling_decisions", 3
_LIMIT_MS = 1000.0
_POLICIES = (
    *("flow", "pollux", "easyscale", "autoscaler", "optimus", "elastic-tiresias", "tiresias", "srtf", "fifo-backfill"),
)


def main() -> None:
    options = chosen(__doc__)
    num_jobs, scale = options.pick(smoke=(10, 100), quick=(1000, 1), full=(1000, 1))
    devices = {"H100": 1000 // scale, "A100": 2000 // scale, "V100": 3000 // scale, "T4": 4000 // scale}
    nodes = [
        Node(name=f"{k}-{i}", kind=k, num_devices=min(8, n)) for k, n in devices.items() for i in range(-(-n // 8))
    ]
    cluster = Cluster(nodes=tuple(nodes))
    rows = []
    for what, jobs in (("one kind at a time", _by_table(cluster, num_jobs)), ("kinds mixed", _mixing(num_jobs))):
        for policy in _POLICIES:
            spent = _decide(cluster, policy, jobs)
            row = {
                "policy": policy,
                "jobs": num_jobs,
                "devices": cluster.num_devices,
                "what": what,
                "slowest_cpu_ms": rounded(1e3 * max(spent)),
                "median_cpu_ms": rounded(1e3 * statistics.median(spent)),
                "limit_ms": _LIMIT_MS,
                "meets": 1e3 * max(spent) < _LIMIT_MS,
            }
            rows.append(row)
            print(row, flush=True)
    save(RESULT, rows, options)


def _decide(cluster: Cluster, policy: str, jobs: list[JobSubmitted]) -> list[float]:
    controller = Controller(cluster, make_policy(policy), interval_s=60.0, rescale_s=30.0)
    for job in jobs:
        controller.feed(job, 0.0)
    spent = []
    for number in range(5):
        begun = time.process_time()
        controller.decide(60.0 * number)
        spent.append(time.process_time() - begun)
        for name in list(controller.running)[::50]:
            controller.feed(JobProgress(name, 1.0), 60.0 * number + 1.0)
    return spent


def _by_table(cluster: Cluster, num_jobs: int) -> list[JobSubmitted]:
    rng = np.random.default_rng(0)
    trace = [
        TraceJob(
            name=f"job-{number}",
            submit_s=0.0,
            devices=int(rng.choice([1, 2, 4, 8, 16])),
            duration_s=float(rng.lognormal(8, 2)),
        )
        for number in range(num_jobs)
    ]
    made = Mixed(learned=False).jobs(trace, cluster)
    return [JobSubmitted(job.request, job.declared, job.truth.total_work) for job in made]


def _mixing(num_jobs: int) -> list[JobSubmitted]:
    rng = np.random.default_rng(1)
    found: list[Any] = []
    kinds = ("H100", "A100", "V100", "T4")
    for number in range(num_jobs):
        workers = int(rng.choice([2, 4, 8, 16, 32, 64]))
        speed = LogicalWorkerSpeed(
            num_logical_workers=workers,
            turn_s={kind: float(rng.uniform(0.3, 0.5)) / NOMINAL[kind] for kind in kinds},
            communication=Communication(local_fixed_s=0.01, cross_fixed_s=0.02),
        )
        request = JobRequest(
            name=f"job-{number}",
            submitted_s=0.0,
            requested_devices=workers,
            num_logical_workers=workers,
            max_devices=workers,
            kinds=kinds,
            mixes_kinds=True,
        )
        found.append(JobSubmitted(request, speed, float(rng.lognormal(8, 2))))
    return found


if __name__ == "__main__":
    main()
