"""The Pollux simulator's workloads again: Tiresias and Optimus against the published results, and how long it takes.

160 jobs on 16 nodes x 4 T4, decisions every 60 s, 30 s for every start and change; jobs, tables and published results
are the artifact's own. Targets: mean completion time within 5 % of the published one on each of the eight workloads,
and one workload simulated at least 50x faster than the artifact does it. The artifact's own CPU seconds (Tiresias
29.7-36.2, Optimus 114.7-132.8 for one workload, without start-up) were measured on a machine like this one; the
fastest ones are compared with ours, which includes reading the workload. Start-up, which reads the applications' tables
once, is a row of its own here; workload 1 then still looks up every time for the first time.

    python -m benchmarks.simulate.pollux --data DATA
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import Options as Chosen
from benchmarks.lib.result import save
from benchmarks.simulate.tools import data_of, run, with_data
from isoscale.sim.costs import parse_costs
from isoscale.sim.engine import Options
from isoscale.sim.run import Experiment
from isoscale.sim.workload import Workload
from isoscale.sim.worlds.pollux import pollux_tables

RESULT, MINUTES = "simulate_pollux", 2
_COSTS = "stop-resume:release_s=0,checkpoint_every_s=0"
#: CPU seconds of the artifact for one workload of 160 jobs, the fastest of those measured
_ARTIFACT_S = {"tiresias": 29.7, "optimus": 114.7}


def main() -> None:
    made = with_data(__doc__)
    made.add_argument("--loads", default="1.0")
    with data_of(made) as arguments:
        _measure(arguments)


def _measure(arguments: Chosen) -> None:
    rows: list[dict[str, object]] = [_start_up(arguments.data)]
    for load in arguments.loads.split(","):
        for policy in _ARTIFACT_S:
            published = json.loads(
                (arguments.data / "pollux" / "results-jobload" / f"{policy}-{load}" / "summary.json").read_text()
            )["avgs"]
            for number in range(1, arguments.pick(smoke=2, quick=2, full=9)):
                rows.append(_one(arguments.data, load, policy, number, published[f"workload-{number}"]))
                row = rows[-1]
                print(
                    f"load {load} {policy:9} workload {number}: mean JCT {row['mean_jct_s']:>7} s, published "
                    f"{row['published_s']:>7} ({row['difference']:+.1%}); {row['cpu_s']} CPU s, {row['faster']}x",
                    flush=True,
                )
    save(RESULT, rows, arguments)


def _start_up(data: Path) -> dict[str, object]:
    """Reads the tables of all applications and prepares to interpolate between their entries."""
    begun = time.process_time()
    for directory in sorted(path.parent for path in (data / "pollux" / "traces").glob("*/placements.csv")):
        tables = pollux_tables(directory)
        # A placement that nobody measured makes the tables interpolate.
        tables.step_times((4, 4, 4, 4, 3, 2, 1), tables.min_local_batch)
    spent = rounded(time.process_time() - begun)
    print(f"start-up: {spent} CPU s", flush=True)
    return {"what": "start-up", "cpu_s": spent}


def _one(data: Path, load: str, policy: str, number: int, published: float) -> dict[str, object]:
    directory = "workloads" if load == "1.0" else f"workloads-{load}"
    experiment = Experiment(
        trace=str(data / "pollux" / directory / f"workload-{number}.csv"),
        cluster="16x(T4*4)",
        workload=Workload(speeds=data / "pollux" / "traces", adaptive=False),
        options=Options(costs=parse_costs(_COSTS), interval_s=60.0),
    )
    begun = time.process_time()
    jobs = experiment.jobs(0)
    loaded_s = time.process_time() - begun
    _, row = run(experiment, policy, jobs)
    cpu_s = loaded_s + float(row["cpu_s"])
    difference = float(row["mean_jct_s"]) / published - 1.0
    return {
        "load": load,
        "workload": number,
        **row,
        "cpu_s": rounded(cpu_s),
        "published_s": rounded(published),
        "difference": rounded(difference),
        "meets": abs(difference) <= 0.05,
        "faster": rounded(_ARTIFACT_S[policy] / cpu_s) if load == "1.0" else None,
        "meets_speed": _ARTIFACT_S[policy] / cpu_s >= 50 if load == "1.0" else None,
    }


if __name__ == "__main__":
    main()
