"""The Philly study's guidelines as features of policies: trials on one device, retries by class, locality as a price.

Jobs of real traces (two days of Philly, a week of each of two ITP clusters); which of them fail, when and of what is
drawn after the study's table, a third of them. Speeds are drawn from measured curves; for locality from the world
`mixed`, in which crossing nodes costs up to a fifth of the speed, since the curves say nothing of it. Changes cost what
stop-free scaling costs; a trial that failed begins again with a checkpoint of the last ten minutes.

`caught` are trials that failed while the job held one device (or its minimum), of all that failed.

    python -m benchmarks.simulate.guidelines --data DATA
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import Options as Chosen
from benchmarks.lib.result import Rows
from benchmarks.simulate.tools import data_of, with_data
from isoscale.analysis.failures import should_retry
from isoscale.scheduling.state import Cluster
from isoscale.sim.builtin import find_trace
from isoscale.sim.cluster_spec import parse_cluster
from isoscale.sim.costs import parse_costs
from isoscale.sim.engine import Options, Outcome, Simulation
from isoscale.sim.failing import add_failures
from isoscale.sim.job import SimJob
from isoscale.sim.result import details, summarise
from isoscale.sim.run import parse_policies
from isoscale.sim.traces.record import TraceJob
from isoscale.sim.workload import Workload, make_cluster, make_jobs
from isoscale.sim.worlds.mixed import Mixed

RESULT, MINUTES = "simulate_guidelines", 10
_DAY_S = 86_400.0
#: name -> file of the trace, first and last day, cluster
_TRACES = {
    "Philly": ("pollux/traces/philly.csv", 35.0, 37.0, "30x(gpu*8)"),
    "ITP 2": ("elasticflow-itp/raw/cluster02.csv", 0.0, 7.0, "8x(gpu*8)"),
    "ITP 5": ("elasticflow-itp/raw/cluster05.csv", 0.0, 7.0, "2x(gpu*8)"),
}
_SHARE_FAILING = 0.33
#: a script that failed begins again with its last checkpoint, however stop-free its changes of size are
_COSTS = "stop-free:checkpoint_every_s=600"
Retry = Callable[[str, int], bool]
#: feature, setting, policy, retry
_RUNS: tuple[tuple[str, str, str, Retry], ...] = (
    ("trial", "none", "flow", should_retry),
    ("trial", "2 min", "flow(trial_s=120)", should_retry),
    ("trial", "10 min", "flow(trial_s=600)", should_retry),
    ("retries", "never", "flow", lambda error, failures: False),
    ("retries", "three, whatever the error", "flow", lambda error, failures: failures <= 3),
    ("retries", "by class", "flow", should_retry),
    ("locality", "none", "fifo-backfill", should_retry),
    ("locality", "rule: 10 min", "fifo-backfill(locality_s=600)", should_retry),
    ("locality", "rule: 1 h", "fifo-backfill(locality_s=3600)", should_retry),
    ("locality", "price: run of 1 h", "fifo-backfill(run_s=3600)", should_retry),
    ("locality", "price: run of 4 h", "fifo-backfill(run_s=14400)", should_retry),
)


def main() -> None:
    with data_of(with_data(__doc__)) as arguments:
        _measure(arguments)


def _measure(arguments: Chosen) -> None:
    rows = Rows(RESULT, arguments, ("trace", "feature", "setting"))
    for name in list(_TRACES)[: arguments.pick(smoke=1, quick=1, full=len(_TRACES))]:
        cluster, trace = _trace(arguments, name)
        failing = add_failures(trace, _SHARE_FAILING, 0)
        curved = make_jobs(failing, cluster, Workload(drop_large=True))
        crossing = Mixed(learned=False).jobs([one for one in trace if one.devices <= cluster.num_devices], cluster)
        for feature, setting, policy, retry in _RUNS[: arguments.pick(smoke=4, quick=6, full=len(_RUNS))]:
            if rows.find(trace=name, feature=feature, setting=setting) is not None:
                continue
            jobs = [_rigid(job) for job in crossing] if feature == "locality" else curved
            row = _one(jobs, cluster, policy, retry)
            rows.put({"trace": name, "feature": feature, "setting": setting, "policy": policy, **row})
            print(name, feature, setting, row, flush=True)
    rows.finish()


def _trace(arguments: Chosen, name: str) -> tuple[Cluster, list[TraceJob]]:
    if arguments.smoke:
        return make_cluster(parse_cluster("2x(gpu*4)")), find_trace("philly:jobs=15,days=0.1,largest=4,hours=2")
    file, first, last, cluster = _TRACES[name]
    jobs = find_trace(str(Path(arguments.data) / file))
    chosen = [
        dataclasses.replace(job, submit_s=job.submit_s - first * _DAY_S)
        for job in jobs
        if first * _DAY_S <= job.submit_s < last * _DAY_S
    ]
    return make_cluster(parse_cluster(cluster)), chosen


def _rigid(job: SimJob) -> SimJob:
    """Gangs are asked for: what a change costs does not matter."""
    return dataclasses.replace(job, costs=None)


def _one(jobs: Sequence[SimJob], cluster: Cluster, policy: str, retry: Retry) -> dict[str, Any]:
    [(_, make)] = parse_policies(policy)
    settings = Options(costs=parse_costs(_COSTS), interval_s=60.0, retry=retry)
    outcome = Simulation(jobs, cluster, make(), settings).run()
    found, more = summarise(outcome), details(outcome)
    return {
        "jobs": len(jobs),
        "mean_jct_s": rounded(found.mean_jct_s),
        "mean_queue_s": rounded(found.mean_queue_s),
        "failed_trials": len(outcome.failed_trials),
        "caught": _caught(outcome),
        "retries": more.retries,
        "given_up": more.jobs_failed,
        "failed_device_h": rounded(more.failed_device_h),
        "finished": found.jobs_finished,
    }


def _caught(outcome: Outcome) -> int:
    """Trials that failed on the fewest devices that the job can have."""
    ends = {(job, end): devices for job, _, end, devices in outcome.ledger.held}
    return sum(
        ends.get((trial.job, trial.at_s), 0) <= max(1, outcome.jobs[trial.job].request.min_devices)
        for trial in outcome.failed_trials
    )


if __name__ == "__main__":
    main()
