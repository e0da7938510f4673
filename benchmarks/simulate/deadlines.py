"""Deadlines met under every policy, on ElasticFlow's job lists, which carry one for each job.

A job's deadline is half to one and a half times its duration on what it asked for, so a good part of them cannot be met
without more devices than that. Work is declared; speeds are ElasticFlow's measurements where it measured the model,
else drawn from them. Changes cost what stop-free scaling costs. `deadline` knows deadlines, nobody else looks at them;
`deadline(late=reject)` refuses what it cannot guarantee, and a job that was refused has not met its own.

    python -m benchmarks.simulate.deadlines --data DATA
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import Options as Chosen
from benchmarks.lib.result import Rows
from benchmarks.simulate.tools import data_of, with_data
from isoscale.sim.costs import PRESETS
from isoscale.sim.engine import Options
from isoscale.sim.result import details, summarise
from isoscale.sim.run import Experiment, parse_policies

RESULT, MINUTES = "simulate_deadlines", 5
_FOLDER = Path("elasticflow") / "traces_for_ElasticFlow"
#: name -> file, cluster, seconds between decisions
_TRACES = {
    "elasticVpollux": ("elasticVpollux_e.csv", "16x(A100*8)", 300.0),
    "philly_103959": ("philly_103959.csv", "3x(A100*8)", 600.0),
}
_POLICIES = (
    "deadline",
    "deadline(late=reject)",
    "flow",
    "flow(declared=false)",
    "pollux",
    "easyscale",
    "autoscaler",
    "optimus",
    "elastic-tiresias",
    "tiresias",
    "srtf",
    "fifo-backfill",
)


def main() -> None:
    with data_of(with_data(__doc__)) as arguments:
        _measure(arguments)


def _measure(arguments: Chosen) -> None:
    rows = Rows(RESULT, arguments, ("trace", "policy"))
    for trace in list(_TRACES)[: arguments.pick(smoke=1, quick=1, full=len(_TRACES))]:
        for policy in _POLICIES[: arguments.pick(smoke=3, quick=3, full=len(_POLICIES))]:
            if rows.find(trace=trace, policy=policy) is None:
                rows.put({"trace": trace, **_one(arguments.data, trace, policy)})
    rows.finish()


def _one(data: Path, trace: str, policy: str) -> dict[str, Any]:
    file, cluster, interval_s = _TRACES[trace]
    experiment = Experiment(
        trace=str(data / _FOLDER / file),
        cluster=cluster,
        options=Options(costs=PRESETS["stop-free"], interval_s=interval_s),
    )
    jobs = experiment.jobs(0)
    [(_, make)] = parse_policies(policy)
    outcome = experiment.simulate(make(), jobs, 0)
    found, more = summarise(outcome), details(outcome)
    row = {
        "cluster": cluster,
        "policy": policy,
        "deadlines": more.deadlines,
        "deadlines_met": more.deadlines_met,
        "met": rounded(more.deadlines_met / more.deadlines),
        "rejected": outcome.rejected,
        "mean_jct_s": rounded(found.mean_jct_s),
        "finished": found.jobs_finished,
    }
    print(
        f"{trace:15} {policy:22} {row['deadlines_met']} of {row['deadlines']} deadlines met, "
        f"{row['rejected']} refused, mean JCT {row['mean_jct_s']} s",
        flush=True,
    )
    return row


if __name__ == "__main__":
    main()
