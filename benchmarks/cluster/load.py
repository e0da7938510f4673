"""What the service takes and how soon it answers: a burst of submissions, a long history, two jobs at work.

500 submissions over ten connections, in under 10 s. 10,000 finished jobs in the database: every call under 100 ms, the
slowest of many. Two jobs that train and twenty that wait: the service takes under 1 % of a core.

    python -m benchmarks.cluster.load
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.cluster.served import Served, serve, until
from benchmarks.lib.measure import percentile, rounded
from benchmarks.lib.options import Options, options
from benchmarks.lib.result import Rows
from isoscale.backends.host_id import machine_id
from isoscale.cluster.bundle import pack
from isoscale.cluster.client import Client
from isoscale.cluster.state_directory import StateDirectory
from isoscale.cluster.store import Store
from isoscale.cluster.values import JobRecord, Submission
from isoscale.runtime.code.collect import code_of_script
from isoscale.testing import short_job_path

RESULT, MINUTES = "cluster_load", 2
STARTS = ("isoscale.cli.serve", "isoscale.cluster.server")

_PATHS = (
    *("/api", "/api/jobs", "/api/jobs?limit=1000", "/api/jobs?before=5000", "/api/jobs?state=failed", "/api/jobs/j77"),
    *("/api/jobs/j77/why", "/api/jobs/j77/events", "/api/jobs/j77/logs", "/api/jobs/j77/log", "/api/devices"),
    *("/api/tokens", "/api/openapi.json", "/metrics", "/healthz"),
)


def main() -> None:
    chosen = options(__doc__)
    rows = Rows(RESULT, chosen, ("what",))
    for name, measure in (("submissions", _submissions), ("answers", _answers), ("idle", _idle)):
        if rows.find(what=name) is None:
            rows.put({"what": name, **measure(chosen)})
            print(rows.all()[-1], flush=True)
    rows.finish()


def _submissions(options: Options) -> dict[str, Any]:
    count, connections = options.pick(smoke=20, quick=100, full=500), 10
    bundle = pack(code_of_script(str(short_job_path()), module="", out=""))
    # Of a kind that is not there: what is measured is the service, not what jobs do.
    submission = Submission(code=bundle.id, workers=2, kinds=("cpu-sse",))
    with serve() as served:
        served.client.upload(bundle)

        def send(number: int) -> float:
            slowest = 0.0
            with Client(served.state, patience_s=60.0) as client:
                for _ in range(number):
                    begun = time.perf_counter()
                    client.submit_bundle(bundle, submission)
                    slowest = max(slowest, time.perf_counter() - begun)
            return slowest

        begun = time.perf_counter()
        with ThreadPoolExecutor(connections) as pool:
            slowest = max(pool.map(send, [count // connections] * connections))
        seconds = time.perf_counter() - begun
        assert len(served.client.jobs(limit=1000)) == count
    facts = {"jobs": count, "seconds": rounded(seconds), "slowest_s": rounded(slowest)}
    return {**facts, "limit_s": 10.0, "meets": seconds < 10.0}


def _answers(options: Options) -> dict[str, Any]:
    count, calls = options.pick(smoke=200, quick=10_000, full=10_000), options.pick(smoke=2, quick=10, full=50)
    slowest: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="history-") as directory:
        state = Path(directory) / "state"
        _fill(state, count)
        with serve(state=state) as served:
            for path in _PATHS:
                times = []
                for _ in range(calls):
                    begun = time.perf_counter()
                    status, _ = served.client._exchange("GET", path, b"", "", None)
                    times.append(time.perf_counter() - begun)
                    assert status == 200 or count < 5000, (path, status)
                slowest[path] = max(times) * 1e3
    worst = max(slowest, key=slowest.__getitem__)
    return {
        "jobs": count,
        "calls": calls,
        "slowest_ms": {path: rounded(value) for path, value in slowest.items()},
        "worst": worst,
        "worst_ms": rounded(slowest[worst]),
        "limit_ms": 100.0,
        "meets": slowest[worst] < 100.0,
    }


def _fill(state: Path, count: int) -> None:
    """A history of jobs that are over, each with a few events."""
    directory = StateDirectory(state)
    store = Store(directory.database, boot=machine_id(), now=1e9)
    submission = Submission(code="0" * 64, workers=4)
    with store.write(now=1e9) as tx:
        for number in range(1, count + 1):
            t = 1e9 + number
            job = JobRecord(
                id=f"j{number}",
                number=number,
                submission=submission,
                name=f"job-{number}",
                tenant=f"team-{number % 7}",
                owner="admin",
                state="failed" if number % 10 == 0 else "finished",
                script="train.py",
                submitted_s=t,
                started_s=t + 1,
                ended_s=t + 61,
                step=1000,
                total=1000,
                digest=f"{number:064x}",
            )
            tx.insert(job, 1)
            for event in ("job_submitted", "job_started", "job_running", "job_resized", "job_finished"):
                tx.event(event, job, reason="measured", devices=["local/cpu/0"])
    store.close()
    directory.close()


def _idle(options: Options) -> dict[str, Any]:
    seconds = options.pick(smoke=1.0, quick=20.0, full=60.0)
    waiting = options.pick(smoke=2, quick=20, full=20)
    with serve() as served:
        running = _two(served)
        for _ in range(waiting):
            served.submit("1000", "0.05")
        until(lambda: sum(job.state == "queued" for job in served.client.jobs()) == waiting, f"{waiting} jobs wait")
        time.sleep(options.pick(smoke=0.5, quick=5.0, full=5.0))  # forecasts of the burst are made
        shares = []
        for _ in range(5):
            begun, used = time.perf_counter(), served.processor_s()
            time.sleep(seconds / 5)
            shares.append((served.processor_s() - used) / (time.perf_counter() - begun))
        assert all(served.client.job(job).state == "running" for job in running)
    share = sum(shares) / len(shares)
    return {
        "running": len(running),
        "waiting": waiting,
        "seconds": seconds,
        "share": rounded(share),
        "worst_share": rounded(percentile(shares, 100)),
        "limit": 0.01,
        "meets": share < 0.01,
    }


def _two(served: Served) -> list[str]:
    jobs = [served.submit("100000", "0.05", max_devices=1) for _ in range(2)]
    for job in jobs:
        served.until_training(job, 1, step=5)
    return jobs


if __name__ == "__main__":
    main()
