"""Time and memory of `isoscale analyze`: Philly's job log at full size, and a month of 2,500 devices by the minute.

Files are generated in the public format, then the command runs as a process of its own. The log: 117,325 jobs with
attempts, everything that a job log tells, pictures, page and simulation, in under 60 s and 1 GB. The monitor: 313
machines of 8 devices for 30 days, 108 million samples joined with the jobs, in under 5 minutes and 2 GB.

    python -m benchmarks.analyze.speed
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.analyze.generate import device_monitor, job_log, machine_list
from benchmarks.lib.measure import rounded
from benchmarks.lib.options import Options, parsed, parser
from benchmarks.lib.result import Rows

RESULT, MINUTES = "analyze_speed", 2
STARTS = ("isoscale.cli.analyze", "isoscale.analysis.study")

#: seconds and megabytes
_LIMITS = {"log": (60.0, 1000.0), "monitor": (300.0, 2000.0)}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--only", choices=list(_LIMITS), help="one of both")
    options = parsed(made)
    names = [options.only] if options.only else list(_LIMITS)
    rows = Rows(RESULT, options, ("what",), only=options.only)
    for name in names:
        if rows.find(what=name) is not None:
            continue
        with tempfile.TemporaryDirectory(prefix="analyze-") as directory:
            rows.put(_measure(name, Path(directory), options))
        row = rows.all()[-1]
        print(
            f"{name}: {row['wall_s']:.1f} s ({row['cpu_s']:.1f} s of CPU), {row['peak_mb']:,.0f} MB; "
            f"limits {row['limit_s']:.0f} s and {row['limit_mb']:,.0f} MB",
            flush=True,
        )
    rows.finish()


def _measure(name: str, home: Path, options: Options) -> dict[str, Any]:
    machines = options.pick(smoke=4, quick=313, full=313)
    jobs = options.pick(smoke=300, quick=10_000, full=117_325)
    days = options.pick(smoke=0.02, quick=2.0, full=30.0)
    if name == "monitor":
        # Jobs of that month: the join has as many stays as a real one.
        jobs = min(jobs, 40_000)
    attempts = job_log(home / "cluster_job_log", jobs=jobs, machines=machines, days=75 if name == "log" else days)
    machine_list(home / "cluster_machine_list", machines=machines)
    samples = 0
    if name == "monitor":
        samples = device_monitor(home / "cluster_gpu_util", machines=machines, minutes=round(days * 1440))
    size = sum(path.stat().st_size for path in home.iterdir())
    out = home / "out"
    command = [sys.executable, "-c", "from isoscale.cli import main; main()", "analyze", str(home), "--out", str(out)]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - begun
    if process.returncode:
        raise SystemExit(f"isoscale analyze ended with {process.returncode}")
    document = json.loads((out / "analysis.json").read_text())
    assert document["jobs"] == jobs
    assert document["reading"]["malformed"] == 0
    counted = document["utilisation"]
    assert not samples or counted["all"]["count"] + counted["offline_samples"] == samples
    limit_s, limit_mb = _LIMITS[name]
    cpu_s, peak_mb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    return {
        "what": name,
        "jobs": jobs,
        "attempts": attempts,
        "samples": samples,
        "file_mb": rounded(size / 1e6),
        "wall_s": rounded(wall_s),
        "cpu_s": rounded(cpu_s),
        "peak_mb": rounded(peak_mb),
        "limit_s": limit_s,
        "limit_mb": limit_mb,
        "meets": wall_s < limit_s and peak_mb < limit_mb,
    }


if __name__ == "__main__":
    main()
