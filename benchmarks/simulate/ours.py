"""Our policy against Pollux on the Pollux simulator's workloads: 16 nodes x 4 T4, 60 s rounds, 30 s per restart.

Two levels of information. `flow(declared=false)` knows what Pollux knows and no more: how many device-seconds a job has
had, and speeds fitted from what the job itself has measured so far. `flow` also knows the work that owners declare
(epochs), which Pollux does not ask for. `pollux` is Pollux's objective solved exactly instead of by a genetic
algorithm, with the same information. Nobody is told the tables. At load 1.0 the other policies run, too, each as it is
here; `optimus` and `srtf` are told more than anybody else.

Parameters (`horizon_s`, `trust`, `doubt`, `CAUTION`, what is expected beyond the service had) are the best of 25
settings without declared work on workloads 1-4 at load 1.0; the same ones serve `flow` with declared work. 1-4 at other
loads were run once, with the final setting. So figures of 1-4 at load 1.0 flatter; 5-8 are reported apart. Earlier
versions of `flow`, with declared work, had been run on all eight at load 1.0 and on 1-4 at the others; no parameter
follows from 5-8.
Published figures: `results-jobload/pollux-*` of the original's data, per workload.

    python -m benchmarks.simulate.ours --data DATA
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import Options as Chosen
from benchmarks.lib.result import Rows
from benchmarks.simulate.tools import data_of, run, with_data
from isoscale.sim.costs import parse_costs
from isoscale.sim.engine import Options
from isoscale.sim.run import Experiment, parse_policies
from isoscale.sim.workload import Workload

RESULT, MINUTES = "simulate_ours", 14
_COSTS = "free:start_s=30,resume_s=30,rescale_s=30"
_TUNED_ON = range(1, 5)
#: seconds that one decision of the original takes
_ARTIFACT_DECISION_S = 3.3
_POLICIES = "flow(declared=false),flow,pollux"
#: at load 1.0 only
_OTHERS = "elastic-tiresias,tiresias,autoscaler,easyscale,deadline,fifo-backfill,optimus,srtf"


def main() -> None:
    made = with_data(__doc__)
    made.add_argument("--policies", default="")
    made.add_argument("--loads", default="")
    with data_of(made) as arguments:
        _measure(arguments)


def _measure(arguments: Chosen) -> None:
    policies = arguments.policies or arguments.pick(smoke="flow", quick=_POLICIES, full=_POLICIES)
    loads = arguments.loads or arguments.pick(smoke="1.0", quick="1.0", full="1.0,0.5,1.5,2.0")
    rows = Rows(RESULT, arguments, ("load", "policy", "workload"), policies=policies, loads=loads)
    shown: list[dict[str, Any]] = []
    for load in loads.split(","):
        summary = arguments.data / "pollux" / "results-jobload" / f"pollux-{load}" / "summary.json"
        published = json.loads(summary.read_text())["avgs"]
        others = f",{_OTHERS}" if load == "1.0" and policies == _POLICIES else ""
        for policy, _ in parse_policies(policies + others):
            found = []
            for number in range(1, arguments.pick(smoke=2, quick=2, full=9)):
                if rows.find(load=load, policy=policy, workload=number) is None:
                    rows.put(_one(arguments.data, load, policy, number, published[f"workload-{number}"]))
                found.append(rows.find(load=load, policy=policy, workload=number) or {})
            groups = {"all": found, "1-4": [row for row in found if row["tuned_on"]], "5-8": found[4:]}
            shown += found + [_mean(part, policy, load, group) for group, part in groups.items() if part]
    rows.finish(shown)


def _one(data: Path, load: str, policy: str, number: int, published: float) -> dict[str, Any]:
    directory = "workloads" if load == "1.0" else f"workloads-{load}"
    experiment = Experiment(
        trace=str(data / "pollux" / directory / f"workload-{number}.csv"),
        cluster="16x(T4*4)",
        workload=Workload(speeds=data / "pollux" / "traces"),
        options=Options(costs=parse_costs(_COSTS), interval_s=60.0),
    )
    _, row = run(experiment, policy, experiment.jobs(0))
    difference = float(row["mean_jct_s"]) / published - 1.0
    print(f"load {load} {policy:20} workload {number}: {row['mean_jct_s']:>7} s, Pollux {published:6.0f} s", flush=True)
    return {
        "load": load,
        "workload": number,
        "tuned_on": number in _TUNED_ON,
        **row,
        "published_s": rounded(published),
        "difference": rounded(difference),
        "meets": difference <= 0,
    }


def _mean(rows: list[dict[str, Any]], policy: str, load: str, group: str) -> dict[str, Any]:
    ours = float(np.mean([row["mean_jct_s"] for row in rows]))
    theirs = float(np.mean([row["published_s"] for row in rows]))
    decision_ms = float(np.median([row["decision_cpu_ms"] for row in rows]))
    found = {
        "load": load,
        "workload": f"mean of {group}",
        "policy": policy,
        "mean_jct_s": rounded(ours),
        "published_s": rounded(theirs),
        "difference": rounded(ours / theirs - 1.0),
        "meets": ours <= theirs,
        "workloads_met": f"{sum(bool(row['meets']) for row in rows)} of {len(rows)}",
        "decision_cpu_ms": rounded(decision_ms),
        "decisions_faster": rounded(_ARTIFACT_DECISION_S * 1e3 / decision_ms),
        "meets_decisions": _ARTIFACT_DECISION_S * 1e3 / decision_ms >= 100,
    }
    print(
        f"load {load} {policy:20} {found['workload']:12}: {found['mean_jct_s']} s, Pollux {found['published_s']} s "
        f"({found['difference']:+.1%}), {found['workloads_met']} met; decision {decision_ms:.2f} ms of CPU",
        flush=True,
    )
    return found


if __name__ == "__main__":
    main()
