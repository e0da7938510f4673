"""Devices that are wanted back within 2 s, a hundred times: one of a job's two or both, steps of 0.2 s and of 10 s.

A job with 25 MB of parameters and momentum. Every reclaim is asked for while both its executors are in their turns,
each at another moment of a step; then the devices are lent again. What counts is when the call returned, and whether
anything ran on the devices then. Work that was abandoned for it is told. No step that was committed may be done again.

Short steps compute all the time, on both cores. Long ones sleep, for what takes long is the same, the wait for the end
of a step: so three services, each with a job of its own, have their devices reclaimed side by side.

    python -m benchmarks.cluster.reclaims
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.cluster.served import Served, serve, steps_of, until
from benchmarks.lib.measure import percentile, rounded
from benchmarks.lib.options import Options, parsed, parser
from benchmarks.lib.result import Row, Rows
from isoscale.cluster.process import live_executors

RESULT, MINUTES = "cluster_reclaims", 8
_JOB = Path(__file__).with_name("long_steps.py")
STARTS = (
    "benchmarks.cluster.long_steps",
    "isoscale.cluster",
    "isoscale.runtime",
    "isoscale.backends",
    "isoscale.cli.coordinate",
    "isoscale.cli.serve",
)

_WITHIN_S = 2.0
#: how far into steps reclaims are asked for: up to one and a half
_SPREAD = 1.5


@dataclass(frozen=True, slots=True)
class _Case:
    #: of two; each logical worker has a device of its own
    devices: int
    turn_s: float
    #: what a turn does
    how: str
    #: jobs at once, each under a service of its own
    jobs: int
    #: reclaims at full length
    number: int


_CASES = {
    "one of two, short steps": _Case(1, 0.2, "compute", jobs=1, number=35),
    "both, short steps": _Case(2, 0.2, "compute", jobs=1, number=35),
    "one of two, steps of 10 s": _Case(1, 10.0, "sleep", jobs=3, number=15),
    "both, steps of 10 s": _Case(2, 10.0, "sleep", jobs=3, number=15),
}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--only", choices=list(_CASES), help="one case; the result is written when all are there")
    options = parsed(made)
    numbers = {name: options.pick(smoke=1, quick=3, full=case.number) for name, case in _CASES.items()}
    rows = Rows(RESULT, options, ("what", "number"))
    for name in [options.only] if options.only else _CASES:
        missing = [one for one in range(numbers[name]) if rows.find(what=name, number=one) is None]
        if missing:
            _measure(name, missing, numbers[name], options, rows)
    whole = {name: [row for row in rows.all() if row["what"] == name] for name in _CASES}
    if all(len(found) == numbers[name] for name, found in whole.items()):
        rows.finish([_summary(name, found) for name, found in whole.items()])


def _measure(name: str, missing: Sequence[int], number: int, options: Options, rows: Rows) -> None:
    """What is not there yet of one case, as many at once as it has jobs."""
    case = _CASES[name]
    turn_s = min(case.turn_s, 1.0) if options.smoke else case.turn_s
    at_once = min(case.jobs, len(missing))
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(at_once) as pool:
        jobs = [_Job(stack.enter_context(serve()), turn_s, case.how) for _ in range(at_once)]
        for first in range(0, len(missing), at_once):
            chosen = list(zip(jobs, missing[first : first + at_once], strict=False))
            for job, _ in chosen:
                job.until_in_turns()
            waiting = [
                pool.submit(job.reclaimed, case.devices, _SPREAD * turn_s * (one + 0.5) / number) for job, one in chosen
            ]
            for (_, one), facts in zip(chosen, waiting, strict=True):
                fixed = {"what": name, "number": one, "devices": case.devices, "turn_s": turn_s, "turns": case.how}
                row = {**fixed, **facts.result()}
                rows.put(row)
                print(
                    f"{name}, {one + 1} of {number}: {row['seconds']:.2f} s, {row['abandoned_s']:.2f} s abandoned"
                    f"{', and something still ran there' if row['is_busy'] else ''}; {row['steps']} steps so far",
                    flush=True,
                )


class _Job:
    """Alone under a service that has two devices."""

    def __init__(self, served: Served, turn_s: float, how: str) -> None:
        self._client = served.client
        self._begun = served.state.parent / "begun"
        self._begun.mkdir()
        job = self._client.submit(_JOB, workers=2, script_args=(str(turn_s), how, str(self._begun))).id
        self._directory = served.state / "jobs" / job

    def until_in_turns(self) -> None:
        """Both devices have an executor that has begun a turn since they were lent. Their step need not be sealed."""

        def look() -> bool:
            live = live_executors(self._directory)
            both = {one.device for one in live if (self._begun / str(one.pid)).exists()}
            return len(both) == len(live) == 2

        until(look, "both executors are in their turns")

    def reclaimed(self, count: int, after_s: float) -> Row:
        """Some time later; what became of it. The devices are lent again."""
        time.sleep(after_s)
        begun = time.perf_counter()
        done = self._client.reclaim("local", count, _WITHIN_S, force=True)
        seconds = time.perf_counter() - begun
        busy = {lives.device for lives in live_executors(self._directory)} & set(done.devices)
        steps = [step.step for step in steps_of(self._directory)]
        for mark in self._begun.iterdir():
            mark.unlink()
        self._client.lend("local", count)
        return {
            "seconds": rounded(seconds),
            "abandoned_s": rounded(done.abandoned_s),
            "is_busy": bool(busy),
            "steps": len(steps),
            "again": sum(later <= earlier for earlier, later in pairwise(steps)),
        }


def _summary(name: str, found: Sequence[Row]) -> dict[str, Any]:
    seconds = [row["seconds"] for row in found]
    late = sum(row["seconds"] > _WITHIN_S or row["is_busy"] for row in found)
    # Of one job, as often as it was looked at.
    again = max(row["again"] for row in found)
    summary = {
        "what": name,
        "reclaims": len(found),
        "devices": found[0]["devices"],
        "turn_s": found[0]["turn_s"],
        "turns": found[0]["turns"],
        "jobs": _CASES[name].jobs,
        "median_s": rounded(percentile(seconds, 50)),
        "worst_s": rounded(max(seconds)),
        "late": late,
        "gave_up_work": sum(row["abandoned_s"] > 0 for row in found),
        "abandoned_s": rounded(sum(row["abandoned_s"] for row in found)),
        "most_abandoned_s": rounded(max(row["abandoned_s"] for row in found)),
        "again": again,
        "limit_s": _WITHIN_S,
        "meets": late == 0 and again == 0,
        "all_s": seconds,
    }
    print(summary, flush=True)
    return summary


if __name__ == "__main__":
    main()
