"""Dollars for a finished job against completion time, on devices that are rented at prices that change.

A day of 240 jobs drawn after the Philly trace on up to 16 A100, 16 V100 and 48 T4 of a spot market (`sim.market`:
prices wander about a third of on-demand ones, nodes are taken with two minutes' notice when prices are high). `flow`
under `--objective cost`, an hour of waiting worth from 3 cents to 30 dollars: a curve. Beside it policies that do not
look at prices. Everything twice: with what changes cost this project's runtime (stop-free), and with stop-and-resume.
Speeds are those of the world `mixed`; only devices that a job holds are paid.

    python -m benchmarks.simulate.spot
"""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import options as chosen
from benchmarks.lib.result import Rows
from isoscale.scheduling.state import Objective
from isoscale.sim.costs import PRESETS
from isoscale.sim.engine import Options
from isoscale.sim.job import SimJob
from isoscale.sim.market import parse_market
from isoscale.sim.result import details, summarise
from isoscale.sim.run import Experiment, parse_policies

RESULT, MINUTES = "simulate_spot", 8
_CLUSTER = "2x(A100*8)+4x(V100*4)+12x(T4*4)"
_TRACE = "philly:jobs=240,days=1,largest=8,hours=24,scale=4,seed=5"
#: dollars for a device and an hour on demand: the order of what large providers asked in 2023
_MARKET = "A100=4.10,V100=3.06,T4=0.53"
_WORTH = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_OTHERS = ("flow", "pollux", "easyscale", "fifo-backfill")


def main() -> None:
    options = chosen(__doc__)
    rows = Rows(RESULT, options, ("costs", "policy"))
    trace = "philly:jobs=10,days=0.05,largest=4,hours=1" if options.smoke else _TRACE
    worth = options.pick(smoke=(1.0,), quick=(0.1, 10.0), full=_WORTH)
    runs: list[tuple[str, Objective, float | None]] = [(f"flow(hour_worth={one:g})", "cost", one) for one in worth]
    runs += [(name, "jct", None) for name in _OTHERS[: options.pick(smoke=1, quick=2, full=len(_OTHERS))]]
    for costs in ("stop-free", "stop-resume"):
        for policy, objective, hour_worth in runs:
            if rows.find(costs=costs, policy=policy) is None:
                rows.put(_one(trace, costs, policy, objective, hour_worth))
    rows.finish()


def _one(trace: str, costs: str, policy: str, objective: Objective, hour_worth: float | None) -> dict[str, Any]:
    experiment = Experiment(
        trace=trace,
        cluster=_CLUSTER,
        world="isoscale.sim.worlds.mixed:Mixed",
        options=Options(costs=PRESETS[costs], interval_s=60.0, objective=objective),
        market=parse_market(_MARKET),
    )
    jobs = [_without_costs(job) for job in experiment.jobs(0)]
    [(_, make)] = parse_policies(policy)
    outcome = experiment.simulate(make(), jobs, 0)
    found, more = summarise(outcome), details(outcome)
    row = {
        "costs": costs,
        "policy": policy,
        "objective": objective,
        "hour_worth": hour_worth,
        "jobs": len(jobs),
        "finished": found.jobs_finished == len(jobs),
        "dollars_per_job": rounded(more.dollars_per_job),
        "mean_jct_s": rounded(found.mean_jct_s),
        "p99_jct_s": rounded(found.p99_jct_s),
        "rescales_per_job": rounded(found.rescales / len(jobs)),
        "reclaims": more.reclaims,
    }
    print(f"{costs:12} {policy:22} ${row['dollars_per_job']} a job, mean JCT {row['mean_jct_s']} s", flush=True)
    return row


def _without_costs(job: SimJob) -> SimJob:
    """What changes cost is said by the preset, not by the world."""
    return dataclasses.replace(job, costs=None, request=dataclasses.replace(job.request, restart_s=None))


if __name__ == "__main__":
    main()
