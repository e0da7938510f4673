"""What a rescale costs as executors become many: a tiny model with 64 logical workers, real processes, shared cores.

One job goes 1 -> 2 -> 4 -> ... -> 64 and back again; at each size it trains a few steps. Per change: `pause_s` as the
runtime reports it, the longest gap between commits, and the time from request to effect (which is mostly 2 cores
importing torch many times). With many more executors than cores a step itself takes as long as the cores need to give
everybody a turn, so the gap stands beside the median step of both sizes; the script adds a pause of 50 ms to each.
The digest must be that of one executor.

    python -m benchmarks.elastic.executors
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.elastic.commits import Commit, commits_of, median_step, read_lines
from benchmarks.elastic.gate import SCRIPT
from benchmarks.elastic.job import IsoscaleJob, job, wait_for
from benchmarks.elastic.training import TINY
from benchmarks.lib.measure import save

WORKERS = 64
STEPS_AT_EACH = 30
PAUSE_MS = 50


def ladder(largest: int) -> list[int]:
    """1, 2, 4, ... largest, and down again."""
    up = [1]
    while up[-1] < largest:
        up.append(min(largest, up[-1] * 2))
    return [*up, *reversed(up[:-1])]


def change(one: IsoscaleJob, size: int, commits_folder: Path, limit_s: float) -> dict[str, Any]:
    """Ask for a size, wait until steps are committed at it, train on for a while."""
    before = one.events.of("step")[-1]
    seen = len(one.events.of("rescale"))
    asked_t = time.time()
    one.command("scale", size)
    rescale = wait_for(lambda: one.events.of("rescale")[seen:], limit_s, f"{size} executors")[-1]
    wait_for(lambda: one.events.of("step")[-1]["executors"] == size, limit_s, f"a step of {size} executors")
    one.wait_step(one.step() + STEPS_AT_EACH, limit_s)
    commits = commits_of(read_lines(commits_folder))
    around = [c for c in commits if rescale["step"] - 2 <= c.step <= rescale["step"] + 3]
    return {
        "from": before["executors"],
        "to": size,
        "pause_s": rescale["pause_s"],
        "wait_s": rescale.get("wait_s"),
        "gap_s": round(longest_gap(around), 4),
        "step_before_s": round(median_step([c for c in commits if c.t < asked_t][-STEPS_AT_EACH:]), 4),
        "step_after_s": round(median_step(commits[-STEPS_AT_EACH + 2 :]), 4),
        "ready_s": round(rescale["t"] - asked_t, 3),
    }


def longest_gap(commits: list[Commit]) -> float:
    return max(b.t - a.t for a, b in pairwise(commits))


def digest_alone(steps: int, folder: Path) -> str:
    arguments = ["--workload", TINY, "--steps", steps, "--commits", folder / "commits"]
    with job(SCRIPT, folder / "run", workers=WORKERS, executors=1, script_args=arguments) as one:
        digest: str = one.wait_end(600.0)["digest"]
    return digest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 4 executors; prints, saves nothing")
    parser.add_argument("--largest", type=int, default=64)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds to wait for one change")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows, largest = [], 4 if options.quick else options.largest
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        commits = folder / "commits"
        # Newcomers are slow to start on shared cores: without a pause the job would do many thousand steps meanwhile,
        # and how many there will be is only known at the end.
        arguments = ["--workload", TINY, "--steps", 10**6, "--commits", commits, "--pause-ms", PAUSE_MS]
        with job(SCRIPT, folder / "run", workers=WORKERS, executors=1, script_args=arguments) as one:
            one.wait_step(STEPS_AT_EACH)
            for size in ladder(largest)[1:]:
                row = change(one, size, commits, options.limit)
                rows.append(row)
                print(row, flush=True)
            audits = one.events.of("audit")
        steps = audits[-1]["step"]
        same = digest_alone(steps, folder / "alone") == audits[-1]["digest"]
    print(f"digest of step {steps} {'equals' if same else 'DIFFERS FROM'} that of one executor")
    if not options.quick:
        save(
            "elastic_executors", rows, workers=WORKERS, largest=largest, pause_ms=PAUSE_MS, step=steps, same_digest=same
        )


if __name__ == "__main__":
    main()
