"""8 logical workers on a normal executor and one that is three times slower: planner's split over the even one.

The slow executor is a normal one that runs a third of the time (`slow`). Runs with the straggler rule and
runs without it (`--no-rebalance`: 4 and 4) alternate. Steps count from when the split has settled.

- `over_even`: throughput over the even split's, at least 1.5.
- `of_predicted`: throughput over what the planner predicts, at least 0.95. The prediction is the planner's
  `split_seconds(best_split(...))` of the turn times that executors measured under the even split, plus that run's
  measured time outside turns (exchange and optimizer, which the planner leaves out because no split changes it).
  `of_predicted_turns` leaves that out.
- all digests are equal.

    python -m benchmarks.elastic.unequal
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.elastic.commits import commits_of, median_step, read_lines
from benchmarks.elastic.gate import SCRIPT
from benchmarks.elastic.job import IsoscaleJob, job
from benchmarks.elastic.slow import cpu_seconds, slowed
from benchmarks.lib.models import PACED, workload
from benchmarks.lib.options import parsed, parser
from benchmarks.lib.result import Rows
from isoscale.scheduling.planner import best_split, split_seconds

RESULT, MINUTES = "elastic_unequal", 6
WORKERS, EXECUTORS, TIMES = 8, 2, 3.0
#: steps until the split has settled, and in all
LENGTH, SHORT = (25, 45), (10, 80)
OVER_EVEN, OF_PREDICTED = 1.5, 0.95


def run_once(number: int, *, rebalance: bool, folder: Path, length: tuple[int, int]) -> dict[str, Any]:
    """One run with its last executor slowed from the first step on."""
    settle, steps = length
    arguments = ["--workload", number, "--steps", steps, "--commits", folder / "commits"]
    options = [] if rebalance else ["--no-rebalance"]
    with job(
        SCRIPT, folder / "run", workers=WORKERS, executors=EXECUTORS, options=options, script_args=arguments
    ) as one:
        one.wait_step(1)
        slow = one.pids()[one.members()[-1]]
        with slowed(slow, TIMES):
            one.wait_step(settle, 240.0)
            began, cpu = time.monotonic(), cpu_seconds(slow)
            one.wait_step(steps - 5, 240.0)
            share = (cpu_seconds(slow) - cpu) / (time.monotonic() - began)
        digest = one.wait_end()["digest"]
        steady = [c for c in commits_of(read_lines(folder / "commits")) if settle <= c.step <= steps - 5]
        return {
            "rebalance": rebalance,
            "step_s": round(median_step(steady), 4),
            "digest": digest,
            "shares": shares(one),
            "turn_s": turn_seconds(one, settle),
            "slow_cpu_share": round(share, 3),
        }


def shares(one: IsoscaleJob) -> list[int]:
    return list(one.events.of("generation")[-1]["shares"])


def turn_seconds(one: IsoscaleJob, settle: int) -> list[float]:
    """Median of the executors' own measurements since things settled, in the order of members."""
    settled = next((e["t"] for e in one.events.of("step") if e["step"] == settle), 0.0)
    speeds = [e for e in one.events.of("executor_speed") if e["t"] >= settled and e["turn_s"]]
    return [
        round(statistics.median(e["turn_s"] for e in speeds if str(e["executor"]) == member), 5)
        for member in one.members()
    ]


def row_of(model: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over repetitions, and the worst pair."""
    even, planned = ([run for run in runs if run["rebalance"] is value] for value in (False, True))
    even_s = statistics.median(run["step_s"] for run in even)
    planned_s = statistics.median(run["step_s"] for run in planned)
    turns = [statistics.median(column) for column in zip(*(run["turn_s"] for run in even), strict=True)]
    best = best_split(WORKERS, turns)
    turns_s = split_seconds(best, turns)
    outside_s = even_s - split_seconds(even[0]["shares"], turns)
    predicted_s = turns_s + max(0.0, outside_s)
    over_even, of_predicted = even_s / planned_s, predicted_s / planned_s
    return {
        "model": model,
        "times_slower": round(turns[-1] / turns[0], 3),
        "turn_s": turns,
        "planner_split": list(best),
        "settled_splits": [run["shares"] for run in planned],
        "even_step_s": even_s,
        "planned_step_s": planned_s,
        "predicted_step_s": round(predicted_s, 4),
        "over_even": round(over_even, 3),
        "over_even_worst": round(min(r["step_s"] for r in even) / max(r["step_s"] for r in planned), 3),
        "of_predicted": round(of_predicted, 3),
        "of_predicted_turns": round(turns_s / planned_s, 3),
        "same_digest": len({run["digest"] for run in runs}) == 1,
        "slow_cpu_share": [run["slow_cpu_share"] for run in runs],
        "meets_even": over_even >= OVER_EVEN,
        "meets_predicted": of_predicted >= OF_PREDICTED,
        "runs": runs,
    }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--repetitions", type=int, default=2)
    options = parsed(made)
    rows = Rows(RESULT, options, ("model", "repetition", "rebalance"), repetitions=options.repetitions)
    found = []
    for number in options.pick(smoke=(PACED,), quick=(0,), full=(0, 1)):
        order, model = random.Random(0), workload(number).name
        for repetition in range(options.pick(smoke=1, quick=1, full=options.repetitions)):
            for rebalance in order.sample([False, True], 2):
                if rows.find(model=model, repetition=repetition, rebalance=rebalance) is None:
                    with tempfile.TemporaryDirectory() as temporary:
                        folder, length = Path(temporary).resolve(), SHORT if options.smoke else LENGTH
                        run = run_once(number, rebalance=rebalance, folder=folder, length=length)
                    rows.put({"model": model, "repetition": repetition, **run})
                    print(f"{repetition} rebalance {rebalance!s:5} {run}", flush=True)
        row = row_of(model, [row for row in rows.all() if row["model"] == model])
        found.append(row)
        print(
            f"{row['model']:18} {row['times_slower']}x slower, split {row['settled_splits'][-1]}: over even "
            f"{row['over_even']} (at least {OVER_EVEN}), of predicted {row['of_predicted']} (at least {OF_PREDICTED}), "
            f"digests {'equal' if row['same_digest'] else 'DIFFER'}",
            flush=True,
        )
    rows.finish(found, workers=WORKERS, executors=EXECUTORS, slowed_by="SIGSTOP/SIGCONT, 3 ms of 9 ms")


if __name__ == "__main__":
    main()
