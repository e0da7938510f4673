"""Our policy against Pollux on the Pollux simulator's workloads: 16 nodes x 4 T4, 60 s rounds, 30 s per restart.

Two levels of information. `flow(declared=false)` knows what Pollux knows and no more: how many device-seconds a job has
had, and speeds fitted from what the job itself has measured so far. `flow` also knows the work that owners declare
(epochs), which Pollux does not ask for. `pollux` is Pollux's objective solved exactly instead of by a genetic
algorithm, with the same information. Nobody is told the tables.

Parameters (`horizon_s`, `trust`, `doubt`, `CAUTION`, what is expected beyond the service had) are the best of 25
settings without declared work on workloads 1-4 at load 1.0; the same ones serve `flow` with declared work. 1-4 at other
loads were run once, with the final setting. So figures of 1-4 at load 1.0 flatter; 5-8 are reported apart. Earlier
versions of `flow`, with declared work, had been run on all eight at load 1.0 and on 1-4 at the others; no parameter
follows from 5-8.
CheckpointBook figures: `results-jobload/pollux-*` of the original's data, per workload.

With `--itp` instead: the first three weeks of the ITP trace (cluster 2 of ElasticFlow's, which nothing was tuned on),
one by one, on 8 nodes of 8; speeds drawn by seed from measured curves, durations known to nobody. Nothing is published
to compare with. Week 1 alone was planned; 2 and 3 were added when `pollux` turned out ahead of `flow` on it.

    python -m benchmarks.simulate.ours --data DATA
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.measure import RESULTS, rounded, save
from benchmarks.simulate.tools import options, parsed, run
from isoscale.sim.costs import parse_costs
from isoscale.sim.engine import Options
from isoscale.sim.run import Experiment, parse_policies
from isoscale.sim.workload import Workload

_COSTS = "free:start_s=30,resume_s=30,rescale_s=30"
_TUNED_ON = range(1, 5)
#: seconds that one decision of the original takes
_ARTIFACT_DECISION_S = 3.3
#: file, weeks and cluster of the ITP slice
_ITP = ("cluster02.csv", (1, 2, 3), "8x(A100*8)")
_WEEK_S = 7 * 86_400.0
_PIECES = "rows come from several runs with --add, of which the command is the last"


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--policies", default="flow(declared=false),flow,pollux")
    parser.add_argument("--loads", default="1.0,0.5,1.5,2.0")
    parser.add_argument("--add", action="store_true", help="keep rows of other policies and loads saved before")
    parser.add_argument("--itp", action="store_true", help="the slice of the ITP trace, saved apart")
    arguments = parsed(parser)
    name = "simulate_ours_itp" if arguments.itp else "simulate_ours"
    kept = RESULTS / f"{name}.json"
    rows: list[dict[str, Any]] = []
    for group in _itp(arguments.data, arguments.policies) if arguments.itp else _pollux(arguments):
        if arguments.add and kept.exists():
            rows = json.loads(kept.read_text())["rows"]
        key = _key(group[0])
        rows = [row for row in rows if _key(row) != key] + group
        if not arguments.quick:
            save(name, rows, **({"note": _PIECES} if arguments.add else {}))


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["policy"], row.get("load") or row["trace"]


def _pollux(arguments: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """For each load and policy the rows of its workloads, and their means."""
    data = arguments.data
    for load in arguments.loads.split(","):
        summary = data / "pollux" / "results-jobload" / f"pollux-{load}" / "summary.json"
        published = json.loads(summary.read_text())["avgs"]
        for policy, _ in parse_policies(arguments.policies):
            found = [
                _one(data, load, policy, number, published[f"workload-{number}"])
                for number in range(1, 2 if arguments.quick else 9)
            ]
            groups = {"all": found, "1-4": [row for row in found if row["tuned_on"]], "5-8": found[4:]}
            yield found + [_mean(part, policy, load, group) for group, part in groups.items() if part]


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


def _itp(data: Path, policies: str) -> Iterator[list[dict[str, Any]]]:
    file, weeks, cluster = _ITP
    for week in weeks:
        experiment = Experiment(
            trace=str(data / "elasticflow-itp" / "raw" / file),
            cluster=cluster,
            workload=Workload(begin_s=(week - 1) * _WEEK_S, end_s=week * _WEEK_S, drop_large=True),
            options=Options(costs=parse_costs(_COSTS), interval_s=60.0),
        )
        jobs = experiment.jobs(0)
        for policy, _ in parse_policies(policies):
            _, row = run(experiment, policy, jobs)
            print(f"ITP week {week} {policy:17}: {row['mean_jct_s']} s, p50 {row['p50_jct_s']} s", flush=True)
            yield [{"trace": f"ITP {file}, week {week}", "cluster": cluster, "jobs": len(jobs), **row}]


if __name__ == "__main__":
    main()
