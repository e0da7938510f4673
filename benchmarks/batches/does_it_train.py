"""Does a job train as well with batch sizes that change? Steps and samples to a stated metric, three seeds each.

An image task (the digits recipe: accuracy) and a text task (the GPT recipe: perplexity per character), 4 logical
workers on one executor. Fixed small batch; fixed large batch; a plan that grows by the noise scale, which was measured
in the small run of the same seed: at the end of every epoch the largest size whose batch of all logical workers is not
above it. Large and growing batches have the learning rate by the linear and by the square-root rule. A run that never
comes to the metric is reported as one. Nothing here depends on how fast the machine is: what a step of each size takes
is measured by `step_times`, and `figures` joins the two.

    python -m benchmarks.batches.does_it_train
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.batches.study_job import SIZES
from benchmarks.lib.options import options as chosen
from benchmarks.lib.result import Row, Rows
from isoscale.batches import BatchChange, plan_text
from isoscale.protocol.events import read_events

RESULT, MINUTES = "batch_study", 25
STARTS = ("benchmarks.batches.study_job",)
WORKERS, SEEDS = 4, (0, 1, 2)
#: epochs, samples of one, the metric to come to, and whether more is better
TASKS: dict[str, tuple[int, int, float, bool]] = {"image": (10, 1437, 0.95, True), "text": (6, 1200, 11.5, False)}
ARMS = ("small", "large, linear", "large, sqrt", "growing, linear", "growing, sqrt")
_TIMEOUT_S = 1200


def arguments(task: str, arm: str, grown: str, *, epochs: int, samples: int) -> list[str]:
    rule = arm.rpartition(", ")[2] if ", " in arm else "none"
    plan = {"small": "", "large": f"0:{SIZES[-1]}", "growing": grown}[arm.partition(",")[0]]
    options = ["--batch-plan", plan] if plan else []
    return [
        *options,
        "--measure-noise",
        "5",
        "--",
        task,
        "--rule",
        rule,
        "--epochs",
        str(epochs),
        "--samples",
        str(samples),
    ]


def grown_plan(events: Sequence[dict[str, Any]]) -> str:
    """Sizes by the noise scale that the small run measured, at the steps at which growing batches end their epochs."""
    ends = [(event["step"], event["samples"]) for event in events if event["event"] == "log"]
    noise = {event["step"]: event["noise_scale"] for event in events if "noise_scale" in event}
    plan: list[BatchChange] = []
    size, step, before = SIZES[0], 0, 0
    for end, samples in ends[:-1]:
        step += -(-(samples - before) // (size * WORKERS))
        before = samples
        seen = [value for at, value in noise.items() if at <= end]
        # Never smaller again: estimates are noisy, and gradients only become smaller.
        wanted = max([one for one in SIZES if one * WORKERS <= (seen[-1] if seen else 0.0)], default=SIZES[0])
        if wanted > size:
            size = wanted
            plan.append(BatchChange(step, size))
    return plan_text(plan)


def run(
    task: str,
    arm: str,
    seed: int,
    grown: str,
    *,
    epochs: int,
    samples: int,
    executors: int = 1,
    extra: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """The events of one run."""
    script = Path(__file__).with_name("study_job.py")
    with tempfile.TemporaryDirectory(prefix="study-") as directory:
        out = Path(directory) / "run"
        options = ["--workers", str(WORKERS), "--executors", str(executors), "--seed", str(seed), *extra]
        rest = arguments(task, arm, grown, epochs=epochs, samples=samples)
        done = subprocess.run(
            [str(Path(sys.executable).with_name("isoscale")), "run", str(script), "--out", str(out), *options, *rest],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        if done.returncode != 0:
            sys.exit(f"{task}, {arm}, seed {seed}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
        return list(read_events(out / "events.jsonl"))


def judged(events: Sequence[dict[str, Any]], target: float, *, higher: bool) -> Row:
    """Steps and samples until the metric was there; None for a run that did not come to it."""
    logged = [event for event in events if event["event"] == "log"]
    there = next((e for e in logged if (e["metric"] >= target if higher else e["metric"] <= target)), None)
    best = (max if higher else min)(event["metric"] for event in logged)
    return {
        "steps": None if there is None else there["step"],
        "samples": None if there is None else there["samples"],
        "best": best,
        "last": logged[-1]["metric"],
        "sizes": [[e["step"], e["to"]] for e in events if e["event"] == "batch"],
        "curve": [[e["step"], e["samples"], e["metric"]] for e in logged],
    }


def table(rows: Sequence[Row]) -> Iterator[str]:
    yield f"{'task':6} {'batch':16} there  {'steps':>8} {'samples':>8} {'best':>8}  (medians of seeds)"
    for task, arm in dict.fromkeys((row["task"], row["arm"]) for row in rows):
        mine = [row for row in rows if (row["task"], row["arm"]) == (task, arm)]
        there = [row for row in mine if row["steps"] is not None]
        figures = [
            f"{median(row[name] for row in there):>8.6g}" if there else f"{'never':>8}" for name in ("steps", "samples")
        ]
        best = median(row["best"] for row in mine)
        yield f"{task:6} {arm:16} {len(there)}/{len(mine):<4} {' '.join(figures)} {best:8.4f}"


def main() -> None:
    options = chosen(__doc__)
    rows = Rows(RESULT, options, ("task", "arm", "seed"))
    seeds = options.pick(smoke=SEEDS[:1], quick=SEEDS[:1], full=SEEDS)
    for task, (epochs, samples, target, higher) in TASKS.items():
        if options.smoke and task == "text":
            continue
        epochs, samples = options.pick(smoke=(2, 128), quick=(epochs // 2, samples), full=(epochs, samples))
        for seed in seeds:
            grown = ""
            for arm in ARMS[: 1 if options.smoke else None]:
                found = rows.find(task=task, arm=arm, seed=seed)
                if found is None:
                    events = run(task, arm, seed, grown, epochs=epochs, samples=samples)
                    plan = grown_plan(events) if arm == "small" else ""
                    found = {"task": task, "arm": arm, "seed": seed, "target": target, "plan": plan}
                    found |= judged(events, target, higher=higher)
                    rows.put(found)
                    print(
                        f"{task} {arm}, seed {seed}: {found['steps']} steps, best {found['best']:.4f} {plan}",
                        flush=True,
                    )
                grown = found["plan"] or grown
    print("\n".join(table(rows.all())))
    rows.finish(workers=WORKERS)


if __name__ == "__main__":
    main()
