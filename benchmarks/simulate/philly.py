"""Months of a real cluster in seconds: 82,247 Philly jobs on 3,205 devices under every policy, one core.

Speeds are drawn by seed from ElasticFlow's measured curves (shipped with the package), scaled so that each job runs as
long as in the trace on what it asked for; a scheduler may give up to four times that. Changes cost what stop-free
scaling costs. FIFO decides at every event, all others every ten minutes; rounds in which nothing happened are skipped.
The trace is a filtered one that loads 3,205 devices to 12 %; --clusters "60x(gpu*8)" shows how policies differ when
devices are scarce. Policies named in --slice (those that solve a program in every round) run on the busiest two weeks
only. Jobs have no batch to choose, so the fixed-batch baselines do what the autoscaler does.

    python -m benchmarks.simulate.philly --data DATA
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from benchmarks.lib.options import Options as Chosen
from benchmarks.lib.result import Rows
from benchmarks.simulate.tools import data_of, run, with_data
from isoscale.scheduling.policy import policy_names
from isoscale.sim.costs import PRESETS
from isoscale.sim.engine import Options
from isoscale.sim.job import SimJob
from isoscale.sim.run import Experiment
from isoscale.sim.workload import Workload

RESULT, MINUTES = "simulate_philly", 6
_DAY_S = 86_400.0
#: the two weeks with the most jobs, in days since the first submission
_SLICE = (35.0, 49.0)


def main() -> None:
    made = with_data(__doc__)
    made.add_argument("--policies", default="")
    made.add_argument("--slice", default="flow,pollux", help="policies that run on two weeks only")
    made.add_argument("--clusters", default="")
    with data_of(made) as arguments:
        _measure(arguments)


def _measure(arguments: Chosen) -> None:
    every = ",".join(policy_names())
    policies = arguments.policies or arguments.pick(smoke="fifo,flow", quick=every, full=every)
    clusters = arguments.clusters or arguments.pick(smoke="2x(gpu*4)", quick="philly", full="philly")
    rows = Rows(RESULT, arguments, ("cluster", "policy"), policies=policies, slice=arguments.slice, clusters=clusters)
    for name in clusters.split(","):
        for policy in policies.split(","):
            if rows.find(cluster=name, policy=policy) is not None:
                continue
            is_short = arguments.length != "full"
            sliced = arguments.quick or (policy in arguments.slice.split(",") and not arguments.smoke)
            rows.put(_one(arguments.data, name, policy, sliced, is_short))
            print(_line(rows.all()[-1]), flush=True)
    rows.finish()


def _one(data: Path, cluster: str, policy: str, sliced: bool, quick: bool) -> dict[str, object]:
    machines = data / "philly-machines" / "data" / "revised_machine_list.csv"
    begin, end = (_SLICE[0] * _DAY_S, (_SLICE[0] + 1 if quick else _SLICE[1]) * _DAY_S) if sliced else (0.0, 1e12)
    experiment = Experiment(
        trace=str(data / "pollux" / "traces" / "philly.csv"),
        cluster=str(machines) if cluster == "philly" else cluster,
        workload=Workload(begin_s=begin, end_s=end),
        options=Options(costs=PRESETS["stop-free"], interval_s=0.0 if policy.startswith("fifo") else 600.0),
    )
    jobs = _jobs(experiment.trace, experiment.cluster, begin, end)
    _, row = run(experiment, policy, jobs)
    limit = 60.0 if policy == "fifo" else 600.0
    return {
        "cluster": cluster,
        "devices": experiment.cluster_value().num_devices,
        "jobs": len(jobs),
        "part": "busiest two weeks" if sliced else "whole trace",
        **row,
        "limit_s": limit,
        "meets": row["cpu_s"] <= limit,
    }


@lru_cache(maxsize=1)
def _jobs(trace: str, cluster: str, begin_s: float, end_s: float) -> list[SimJob]:
    """Read once, for every policy."""
    return Experiment(trace=trace, cluster=cluster, workload=Workload(begin_s=begin_s, end_s=end_s)).jobs(0)


def _line(row: dict[str, object]) -> str:
    return (
        f"{row['cluster']:12} {row['policy']:18} {row['part']:18} mean JCT {row['mean_jct_s']:>9} s  "
        f"held {row['allocated_utilisation']}  {row['events']} events, {row['event_us']} us each, {row['cpu_s']} CPU s"
    )


if __name__ == "__main__":
    main()
