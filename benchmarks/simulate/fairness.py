"""Finish-time fairness: completion time over that of a fair share, under every policy and as a promise of `flow`.

A fair share is the time alone on the requested devices, times by how much demand exceeded the cluster during the job's
life (`sim.result`). `flow` under `--objective fairness` bounds it: 1.2, 1.5 and 2. Jobs are drawn after the Philly
trace, speeds from measured curves; a crowded cluster of one kind, and the mixed cluster `thirds`. A start takes 30 s,
10 to 120 s on `thirds`, and up to a round of waiting, which no scheduler can promise away: so jobs that take ten
minutes or more alone on what they asked for are also shown by themselves.

    python -m benchmarks.simulate.fairness
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import options as chosen
from benchmarks.lib.result import Rows
from benchmarks.simulate.mixed import MIXES
from isoscale.scheduling.state import Objective
from isoscale.sim.costs import parse_costs
from isoscale.sim.engine import Options, Outcome
from isoscale.sim.result import details, summarise, unfairness
from isoscale.sim.run import Experiment, parse_policies

RESULT, MINUTES = "simulate_fairness", 8
_COSTS = "free:start_s=30,resume_s=30,rescale_s=30"
#: seconds alone on what it asked for, from which on a job is shown among the long ones
_LONG_S = 600.0
#: name -> cluster, trace, world
_WORLDS = {
    "one kind": ("8x(V100*8)", "philly:jobs=300,days=1,largest=16,hours=24,scale=3,seed=4", ""),
    "thirds": (*MIXES["thirds"], "isoscale.sim.worlds.mixed:Mixed"),
}
_RUNS: tuple[tuple[str, Objective], ...] = (
    ("flow", "jct"),
    *((f"flow(bound={bound:g})", "fairness") for bound in (1.2, 1.5, 2.0)),
    *((name, "jct") for name in ("pollux", "elastic-tiresias", "tiresias", "easyscale", "fifo-backfill")),
)


def main() -> None:
    options = chosen(__doc__)
    rows = Rows(RESULT, options, ("world", "policy"))
    for name in list(_WORLDS)[: options.pick(smoke=1, quick=1, full=2)]:
        cluster, trace, world = _WORLDS[name]
        if options.smoke:
            trace = "philly:jobs=10,days=0.05,largest=4,hours=1"
        for policy, objective in _RUNS[: options.pick(smoke=2, quick=4, full=len(_RUNS))]:
            if rows.find(world=name, policy=policy) is None:
                rows.put({"world": name, **_one(cluster, trace, world, policy, objective)})
    rows.finish()


def _one(cluster: str, trace: str, world: str, policy: str, objective: Objective) -> dict[str, Any]:
    settings = Options(costs=parse_costs(_COSTS), interval_s=60.0, objective=objective)
    experiment = Experiment(trace=trace, cluster=cluster, world=world, options=settings)
    jobs = experiment.jobs(0)
    [(_, make)] = parse_policies(policy)
    outcome = experiment.simulate(make(), jobs, 0)
    found, more, long = summarise(outcome), details(outcome), _of_long_jobs(outcome)
    row = {
        "policy": policy,
        "objective": objective,
        "mean_jct_s": rounded(found.mean_jct_s),
        "unfairness_p99": rounded(more.unfairness_p99),
        "unfairness_max": rounded(more.unfairness_max),
        "unfair_share": rounded(more.unfair_share),
        "long_jobs": len(long),
        "long_p99": rounded(float(np.percentile(long, 99))) if len(long) else None,
        "long_max": rounded(float(long.max())) if len(long) else None,
        "finished": found.jobs_finished == len(jobs),
    }
    print(
        f"{cluster:30} {policy:18} mean JCT {row['mean_jct_s']} s, unfairness p99 {row['unfairness_p99']}, max "
        f"{row['unfairness_max']}, of long jobs {row['long_p99']}, {row['long_max']}, worse than fair "
        f"{row['unfair_share']:.0%}",
        flush=True,
    )
    return row


def _of_long_jobs(outcome: Outcome) -> NDArray[np.float64]:
    done = [job for job, end in zip(outcome.jobs, outcome.finished_s, strict=True) if math.isfinite(end)]
    return unfairness(outcome)[np.array([job.isolated_s >= _LONG_S for job in done], dtype=bool)]


if __name__ == "__main__":
    main()
