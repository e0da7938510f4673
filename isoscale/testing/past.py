"""A STATE with a past: as many jobs as wanted, in the database and on disk, before a service is started on it.

For tests and measurements of pages and the API. Rows are written through the store itself; what names may be is not
checked here, so that a test can see what pages make of markup in them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isoscale.cluster.state_directory import StateDirectory, job_directory
from isoscale.cluster.store import Store, Transaction
from isoscale.cluster.values import ENDED, JobRecord, State, Submission

__all__ = ["past_job", "write_past", "write_run"]

#: a kind that no machine has: a job that may use no other waits, and no process is started
NOWHERE = "cpu-nowhere"


def past_job(number: int, state: State, now: float, **fields: Any) -> JobRecord:
    """One of many, an hour or so ago: no two alike, all of them plausible."""
    submitted = now - 3600.0 * (1 + number % 20) - number % 977
    started = submitted + 5.0 + number % 61
    seconds = 30.0 + number % 1200
    is_over, waits = state in ENDED, state == "queued"
    workers = 2 ** (number % 4)
    submission = Submission(code="0" * 64, workers=workers, kinds=(NOWHERE,), seed=number, work=1000 + number % 5000)
    return replace(
        JobRecord(
            id=f"j{number}",
            number=number,
            submission=submission,
            name=("resnet", "bert", "neumf", "mnist")[number % 4] + f"-{number}",
            tenant=("team-a", "team-b", "default")[number % 3],
            owner=("ada", "grace", "alan")[number % 3],
            state=state,
            script="train.py",
            submitted_s=submitted,
            started_s=None if waits else started,
            ended_s=started + seconds if is_over else None,
            step=0 if waits else 1000 + number % 5000,
            total=1000 + number % 5000,
            digest=f"{number:064x}" if state == "finished" else "",
            error="ValueError: the loss is nan" if state == "failed" else "",
            exit_code={"finished": 0, "failed": 1, "cancelled": 130}.get(state),
        ),
        **fields,
    )


def write_past(state: Path, jobs: Sequence[JobRecord], now: float) -> None:
    """Of a STATE that no service uses now."""
    directory = StateDirectory(state)
    try:
        store = Store(directory.database, boot="past", now=now)
        try:
            with store.write(now=now, by="past") as tx:
                told = sorted(((t, order, job) for order, job in enumerate(jobs) for t in _moments(job)), key=_when)
                for job in jobs:
                    tx.insert(job, 0)
                for t, _, job in told:
                    tx.now = t
                    _tell(tx, job, t)
        finally:
            store.close()
    finally:
        directory.close()


def write_run(
    state: Path, job: str, *, steps: int = 0, lines: Sequence[str] = (), more: Sequence[dict[str, Any]] = ()
) -> Path:
    """What a run would have left: `steps` in its event log, `lines` that executor 0 printed."""
    directory = job_directory(state, job)
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    t = 1.79e9
    with (directory / "events.jsonl").open("w") as log:
        for event in (
            {"t": t, "event": "coordinator_started", "pid": 1, "term": 1, "command": "isoscale run train.py"},
            *({"t": t, "event": "executor_started", "executor": n, "pid": 2 + n, "kind": "cpu"} for n in (0, 1)),
            {"t": t, "event": "generation", "generation": 1, "step": 0, "members": [0, 1], "shares": [1, 1]},
            *more,
        ):
            log.write(json.dumps(event) + "\n")
        for step in range(1, steps + 1):
            t += 0.05
            fields = {"epoch": 0, "loss": 2.0 / (1 + step**0.3), "seconds": 0.05, "executors": 2, "generation": 1}
            log.write(json.dumps({"t": round(t, 6), "event": "step", "step": step, **fields}) + "\n")
        log.write(json.dumps({"t": round(t, 6), "event": "finished", "step": steps, "digest": "ab" * 32}) + "\n")
    (directory / "logs" / "executor-0.log").write_text("".join(f"{line}\n" for line in lines))
    return directory


def _moments(job: JobRecord) -> list[float]:
    return [t for t in (job.submitted_s, job.started_s, job.ended_s) if t is not None]


def _when(told: tuple[float, int, JobRecord]) -> tuple[float, int]:
    return told[:2]


def _tell(tx: Transaction, job: JobRecord, t: float) -> None:
    if t == job.submitted_s:
        tx.event("job_submitted", job, name=job.name, workers=job.submission.workers)
    elif t == job.started_s:
        tx.event("job_starting", job)
        tx.event("job_started", job, **{"from": 0, "to": job.submission.workers, "reason": "started"})
        tx.event("job_running", job)
    else:
        tx.event(f"job_{job.state}", job, error=job.error)
