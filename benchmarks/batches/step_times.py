"""What a training step of the study's job takes, by batch size, on one and on two executors.

One run for each task and number of executors, which changes its size every few steps; medians, without the steps just
after a change. Needs a machine that does nothing else.

    python -m benchmarks.batches.step_times
"""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.batches.does_it_train import TASKS, WORKERS, run
from benchmarks.batches.study_job import SIZES
from benchmarks.lib.options import options as chosen
from benchmarks.lib.result import save
from isoscale.batches import BatchChange, plan_text

RESULT, MINUTES = "batch_step_times", 3
STARTS = ("benchmarks.batches.study_job",)
#: steps after a change that do not count
_SETTLING = 3


def medians(events: list[dict[str, Any]], per_size: int) -> dict[str, float]:
    """Milliseconds by size."""
    took = {event["step"]: event["seconds"] for event in events if event["event"] == "step"}
    found = {}
    for number, size in enumerate(SIZES):
        steps = range(number * per_size + 1 + _SETTLING, (number + 1) * per_size + 1)
        found[str(size)] = round(1e3 * median(took[step] for step in steps), 3)
    return found


def main() -> None:
    options = chosen(__doc__)
    per_size = options.pick(smoke=_SETTLING + 1, quick=10, full=25)
    plan = plan_text([BatchChange(number * per_size, size) for number, size in enumerate(SIZES)])
    rows = []
    for task in list(TASKS)[: 1 if options.smoke else None]:
        for executors in options.pick(smoke=(1,), quick=(1, 2), full=(1, 2)):
            extra = ("--until", str(per_size * len(SIZES)))
            events = run(task, "growing, none", 0, plan, epochs=100, samples=1437, executors=executors, extra=extra)
            row = {"task": task, "executors": executors, "step_ms": medians(events, per_size)}
            print(f"{task}, {executors} executors: {row['step_ms']}", flush=True)
            rows.append(row)
    save(RESULT, rows, options, workers=WORKERS)


if __name__ == "__main__":
    main()
