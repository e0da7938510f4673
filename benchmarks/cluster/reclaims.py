"""Devices that are wanted back within 2 s, a hundred times: one of a job's two or both, steps of 50 ms and of 10 s.

Every reclaim is asked for while the job trains on both devices; then they are lent again. What counts is when the call
returned, and whether anything ran on the devices then. Work that was abandoned for it is told.

    python -m benchmarks.cluster.reclaims
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.cluster.served import Served, serve, until
from benchmarks.lib.measure import percentile, rounded
from benchmarks.lib.options import Options, parsed, parser
from benchmarks.lib.result import Rows
from isoscale.cluster.process import live_executors

RESULT, MINUTES = "cluster_reclaims", 8
STARTS = ("isoscale.cli.serve", "isoscale.cluster.server", "isoscale.cli.coordinate")

_WITHIN_S = 2.0
#: devices, seconds of a turn; each logical worker has a device of its own
_CASES = {
    "one of two, short steps": (1, 0.05),
    "both, short steps": (2, 0.05),
    "one of two, steps of 10 s": (1, 10.0),
    "both, steps of 10 s": (2, 10.0),
}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--only", choices=list(_CASES), help="one case; the result is written when all are there")
    options = parsed(made)
    rows = Rows(RESULT, options, ("what",))
    for name in [options.only] if options.only else _CASES:
        if rows.find(what=name) is None:
            rows.put({"what": name, **_measure(name, options)})
            print(rows.all()[-1], flush=True)
    if all(rows.find(what=name) is not None for name in _CASES):
        rows.finish()


def _measure(name: str, options: Options) -> dict[str, Any]:
    count, turn_s = _CASES[name]
    number = options.pick(smoke=1, quick=5, full=25)
    seconds, abandoned, late = [], 0.0, 0
    with serve() as served:
        turn_s = min(turn_s, 1.0) if options.smoke else turn_s
        job = served.submit("100000", str(turn_s), workers=2)
        for _ in range(number):
            _until_on_both(served, job)
            begun = time.perf_counter()
            done = served.client.reclaim("local", count, _WITHIN_S, force=True)
            seconds.append(time.perf_counter() - begun)
            busy = {one.device for one in live_executors(served.state / "jobs" / job)} & set(done.devices)
            late += seconds[-1] > _WITHIN_S or bool(busy)
            abandoned += done.abandoned_s
            served.client.lend("local", count)
    return {
        "reclaims": number,
        "devices": count,
        "turn_s": turn_s,
        "median_s": rounded(percentile(seconds, 50)),
        "worst_s": rounded(max(seconds)),
        "late": late,
        "abandoned_s": rounded(abandoned),
        "limit_s": _WITHIN_S,
        "meets": late == 0,
    }


def _until_on_both(served: Served, job: str) -> None:
    """Both have an executor, and a step is under way."""

    def look() -> bool:
        shown = served.client.job(job)
        return shown.state == "running" and len(shown.devices) == 2 and shown.executors == 2

    until(look, f"{job} trains on both devices")


if __name__ == "__main__":
    main()
