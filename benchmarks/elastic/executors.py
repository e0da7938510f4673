"""What a rescale costs as executors become many: a tiny model with 64 logical workers, real processes, shared cores.

One job goes 1 -> 2 -> 4 -> ... -> 64 and back again; at each size it trains a few steps. Per change: `pause_s` as the
runtime reports it, the longest gap between commits, and the time from request to effect (which is mostly 2 cores
importing torch many times). With many more executors than cores a step itself takes as long as the cores need to give
everybody a turn, so the gap stands beside the median step of both sizes; the script adds a pause of 50 ms to each.
The digest must be that of one executor.

    python -m benchmarks.elastic.executors
"""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.elastic.commits import Commit, commits_of, median_step, read_lines
from benchmarks.elastic.gate import SCRIPT
from benchmarks.elastic.job import IsoscaleJob, job, wait_for
from benchmarks.lib.models import TINY
from benchmarks.lib.options import parsed, parser
from benchmarks.lib.result import save

RESULT, MINUTES = "elastic_executors", 4
WORKERS = 64
STEPS_AT_EACH = 12
PAUSE_MS = 50


def ladder(largest: int) -> list[int]:
    """1, 2, 4, ... largest, and down again."""
    up = [1]
    while up[-1] < largest:
        up.append(min(largest, up[-1] * 2))
    return [*up, *reversed(up[:-1])]


def change(one: IsoscaleJob, size: int, commits_folder: Path, limit_s: float, steps: int) -> dict[str, Any]:
    """Ask for a size, wait until steps are committed at it, train on for a while."""
    before = one.events.of("step")[-1]
    seen = len(one.events.of("rescale"))
    asked_t = time.time()
    one.command("scale", size)
    rescale = wait_for(lambda: one.events.of("rescale")[seen:], limit_s, f"{size} executors")[-1]
    wait_for(lambda: one.events.of("step")[-1]["executors"] == size, limit_s, f"a step of {size} executors")
    one.wait_step(one.step() + steps, limit_s)
    commits = commits_of(read_lines(commits_folder))
    around = [c for c in commits if rescale["step"] - 2 <= c.step <= rescale["step"] + 3]
    return {
        "from": before["executors"],
        "to": size,
        "pause_s": rescale["pause_s"],
        "wait_s": rescale.get("wait_s"),
        "gap_s": round(longest_gap(around), 4),
        "step_before_s": round(median_step([c for c in commits if c.t < asked_t][-steps:]), 4),
        "step_after_s": round(median_step(commits[-steps + 2 :]), 4),
        "ready_s": round(rescale["t"] - asked_t, 3),
    }


def longest_gap(commits: list[Commit]) -> float:
    return max(b.t - a.t for a, b in pairwise(commits))


def digest_alone(steps: int, folder: Path, workers: int) -> str:
    arguments = ["--workload", TINY, "--steps", steps, "--commits", folder / "commits"]
    with job(SCRIPT, folder / "run", workers=workers, executors=1, script_args=arguments) as one:
        digest: str = one.wait_end(600.0)["digest"]
    return digest


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--largest", type=int, default=0, help="64, or 4 with --quick")
    made.add_argument("--limit", type=float, default=600.0, help="seconds to wait for one change")
    options = parsed(made)
    rows, largest = [], options.largest or options.pick(smoke=2, quick=4, full=64)
    workers, steps_at_each = (
        max(largest, options.pick(smoke=2, quick=8, full=WORKERS)),
        8 if options.smoke else STEPS_AT_EACH,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        commits = folder / "commits"
        # Newcomers are slow to start on shared cores: without a pause the job would do many thousand steps meanwhile,
        # and how many there will be is only known at the end.
        arguments = ["--workload", TINY, "--steps", 10**6, "--commits", commits, "--pause-ms", PAUSE_MS]
        often = ("--audit-every", "10")  # the last audit before the end is what is compared
        with job(SCRIPT, folder / "run", workers=workers, executors=1, options=often, script_args=arguments) as one:
            one.wait_step(steps_at_each)
            for size in ladder(largest)[1:]:
                row = change(one, size, commits, options.limit, steps_at_each)
                rows.append(row)
                print(
                    f"{row['from']:3} -> {row['to']:3} executors: complete after {row['ready_s']:7.2f} s, longest gap "
                    f"{row['gap_s']:.3f} s (steps {row['step_before_s']:.3f} -> {row['step_after_s']:.3f} s), "
                    f"pause {row['pause_s']:.3f} s",
                    flush=True,
                )
            audits = one.events.of("audit")
        steps = audits[-1]["step"]
        print(f"one executor does the same {steps} steps ...", flush=True)
        same = digest_alone(steps, folder / "alone", workers) == audits[-1]["digest"]
    print(f"digest of step {steps} {'equals' if same else 'DIFFERS FROM'} that of one executor")
    facts = {"workers": workers, "largest": largest, "pause_ms": PAUSE_MS, "step": steps, "same_digest": same}
    save(RESULT, rows, options, **facts)
    raise SystemExit(0 if same else 1)


if __name__ == "__main__":
    main()
