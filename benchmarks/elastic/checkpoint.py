"""What a checkpoint costs: how long it blocks the step loop, and how much throughput one every 30 s takes.

A checkpoint begins at `next()` of the training loader. The script times that call, so `blocked_ms` is what `next()`
takes at steps with a checkpoint less what it takes at the others, on the executor that waits longest. Beside it, one
copy of the same bytes (parameters and momentum) at memory speed into memory already touched, in a process of its own
on the same busy machine.

Throughput, of the larger model: two executors keep both cores busy while the checkpoint is written beside them. Jobs
with and without
checkpoints train in turn, blocks of as many steps as take about 30 s, one checkpoint in each; the control has none.
`excess_share` is the same cost from within one job: time of the steps after a checkpoint over the usual step, summed,
per 30 s.

    python -m benchmarks.elastic.checkpoint
"""

from __future__ import annotations

import random
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.elastic import state_copy
from benchmarks.elastic.commits import commits_of, excess, next_seconds, read_lines
from benchmarks.elastic.gate import SCRIPT, Side, gated_jobs
from benchmarks.elastic.job import job, wait_for
from benchmarks.lib.measure import percentile
from benchmarks.lib.models import TINY, workload
from benchmarks.lib.options import parsed, parser
from benchmarks.lib.processes import run_module
from benchmarks.lib.result import Rows

RESULT, MINUTES = "elastic_checkpoint", 8
WORKERS, EXECUTORS = 2, 2
EVERY_S = 30.0
LIMIT = 1.02
#: steps after a checkpoint that its writing may slow down
AFTER = 15


def copy_seconds(number: int) -> dict[str, float]:
    """One copy of all state."""
    command = run_module(state_copy.__name__, number)
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return {"state_mb": round(int(answer[0]) / 2**20, 1), "p10_s": float(answer[1]), "median_s": float(answer[2])}


def blocked(number: int, folder: Path, checkpoints: int, executors: int) -> dict[str, Any]:
    """A job that writes a checkpoint every 20 steps, and copies of the same size measured while it trains."""
    every = 20
    arguments = ["--workload", number, "--steps", every * checkpoints + 5, "--commits", folder / "commits"]
    options = ["--checkpoint-every", str(every), "--audit-every", "0"]
    with job(
        SCRIPT, folder / "run", workers=WORKERS, executors=executors, options=options, script_args=arguments
    ) as one:
        one.wait_step(5)
        copy = copy_seconds(number)
        one.wait_end(600.0)
        written = [event for event in one.events.of("checkpoint") if event["step"] % every == 0]
    waits = next_seconds(folder / "commits")
    # The checkpoint of step k is taken in the `next()` that leads to step k + 1.
    at = [waits[event["step"] + 1] for event in written if event["step"] + 1 in waits]
    begun = {event["step"] + 1 for event in written}
    else_where = [seconds for step, seconds in waits.items() if step > 5 and step not in begun]
    usual = statistics.median(else_where)
    blocks = [seconds - usual for seconds in at]
    row = {
        "what": "blocked",
        "model": workload(number).name,
        "checkpoints": len(at),
        "blocked_ms": round(statistics.median(blocks) * 1e3, 3),
        "blocked_p90_ms": round(percentile(blocks, 90) * 1e3, 3),
        "blocked_by_event_ms": round(statistics.median(event.get("blocked_s", 0.0) for event in written) * 1e3, 3),
        "copy_ms": round(copy["median_s"] * 1e3, 3),
        "copy_p10_ms": round(copy["p10_s"] * 1e3, 3),
        "state_mb": copy["state_mb"],
        "written_s": round(statistics.median(event["seconds"] for event in written), 3),
        "meets": statistics.median(blocks) <= copy["median_s"],
        "excess_share": round(
            excess(commits_of(read_lines(folder / "commits")), sorted(begun), every, AFTER) / EVERY_S, 4
        ),
    }
    print(
        f"{row['model']:18} blocked {row['blocked_ms']} ms (90th {row['blocked_p90_ms']}), one copy of "
        f"{row['state_mb']} MB {row['copy_ms']} ms; excess {row['excess_share']:.2%} at one in {EVERY_S:g} s",
        flush=True,
    )
    return row


def throughput(number: int, folder: Path, blocks: int, executors: int, every_s: float) -> dict[str, Any]:
    """Block by block in random order: seconds per step without, with, and without again."""
    plain = Side(WORKERS, executors, options=("--audit-every", "0"))
    step_s = plain_step_seconds(plain, number, folder / "first")
    steps = max(10, round(every_s / step_s))
    writing = Side(WORKERS, executors, options=("--audit-every", "0", "--checkpoint-every", str(steps)))
    order = random.Random(0)
    spent: dict[str, list[float]] = {"a": [], "b": [], "control": []}
    with gated_jobs({"a": plain, "b": writing, "control": plain}, number, folder / "blocks") as jobs:
        for _ in range(blocks):
            for name in order.sample(list(jobs), len(jobs)):
                took = jobs[name].train(steps)
                spent[name].append(sum(took) / len(took))
        wait_for(lambda: jobs["b"].running.events.of("checkpoint"), 30.0, "a checkpoint")
        written = len(jobs["b"].running.events.of("checkpoint"))
    ratios = [b / a for a, b in zip(spent["a"], spent["b"], strict=True)]
    controls = [c / a for a, c in zip(spent["a"], spent["control"], strict=True)]
    ratio, control = statistics.median(ratios), statistics.median(controls)
    half = max(abs(control - 1), statistics.pstdev(controls) / len(controls) ** 0.5)
    row = {
        "what": "throughput",
        "model": workload(number).name,
        "steps_per_block": steps,
        "checkpoints": written,
        "ratio": round(ratio, 4),
        "control": round(control, 4),
        "half_width": round(half, 4),
        "blocks": {name: [round(value, 5) for value in values] for name, values in spent.items()},
        "limit": LIMIT,
        "meets": ratio - half <= LIMIT,
    }
    print(
        f"{row['model']:18} one checkpoint in {every_s:g} s: step time {ratio:.4f}x, control {control:.4f} "
        f"+- {half:.4f}, limit {LIMIT} {'met' if row['meets'] else 'MISSED'}",
        flush=True,
    )
    return row


def plain_step_seconds(side: Side, number: int, folder: Path) -> float:
    with gated_jobs({"a": side}, number, folder) as jobs:
        return statistics.median(jobs["a"].train(15))


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--blocks", type=int, default=4, help="blocks of 30 s per side")
    made.add_argument("--checkpoints", type=int, default=15)
    options = parsed(made)
    rows = Rows(RESULT, options, ("what", "model"), blocks=options.blocks, checkpoints=options.checkpoints)
    executors = options.pick(smoke=1, quick=EXECUTORS, full=EXECUTORS)
    checkpoints = options.pick(smoke=2, quick=3, full=options.checkpoints)
    for number in options.pick(smoke=(TINY,), quick=(0,), full=(1, 0)):
        model = workload(number).name
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary).resolve()
            if rows.find(what="blocked", model=model) is None:
                rows.put(blocked(number, folder / "blocked", checkpoints, executors))
            is_larger = number == 1 or options.quick
            if is_larger and rows.find(what="throughput", model=model) is None:
                blocks, every_s = options.pick(smoke=(1, 0.1), quick=(2, 5.0), full=(options.blocks, EVERY_S))
                rows.put(throughput(number, folder / "throughput", blocks, executors, every_s))
    rows.finish(workers=WORKERS, executors=executors, every_s=EVERY_S)


if __name__ == "__main__":
    main()
