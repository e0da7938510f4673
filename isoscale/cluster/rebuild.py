"""`serve --rebuild`: a new database from the jobs' own directories, when the old one is damaged.

A job's directory has its submission, and at its end how it ended; a run's own result counts more than either. What is
lost: events, tokens other than the administrator's, idempotency keys, learned speeds, forecasts, what was lent or
reclaimed, and wishes that were not yet carried out (a pause, another priority). Processes that live are found as
always: by their directory.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from isoscale.backends.host_id import machine_id
from isoscale.backends.system import lives
from isoscale.cluster.coordinator import granted_devices
from isoscale.cluster.outcome import outcome_of
from isoscale.cluster.process import live_executors
from isoscale.cluster.recording import save_standing
from isoscale.cluster.state_directory import StateDirectory
from isoscale.cluster.store import Store
from isoscale.cluster.values import JobRecord
from isoscale.protocol.files import read_small, read_small_json
from isoscale.scheduling.driving import Standing

__all__ = ["Rebuilt", "rebuild"]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    jobs: int
    #: where the old database is; None if there was none
    aside: Path | None


def rebuild(state: Path) -> Rebuilt:
    """Raises UserError if a service has the state."""
    directory = StateDirectory(state)
    try:
        now = time.time()
        aside = _set_aside(directory.database, now)
        store = Store(directory.database, boot=machine_id(), now=now)
        try:
            found = sorted(filter(None, map(_job, (state / "jobs").iterdir())), key=lambda one: one[0].number)
            for record, attempt in found:
                _insert(store, record, attempt, state / "jobs" / record.id, now)
        finally:
            store.close()
        return Rebuilt(len(found), aside)
    finally:
        directory.close()


def _set_aside(database: Path, now: float) -> Path | None:
    aside = None
    for suffix in ("", "-wal", "-shm"):
        path = database.with_name(database.name + suffix)
        if path.exists():
            target = path.with_name(f"damaged-{int(now)}-{path.name}")
            path.rename(target)
            aside = aside or target
    return aside


@dataclass(frozen=True, slots=True)
class _Coordinator:
    """That was announced in the job's directory, and lives or has left executors that do."""

    pid: int
    born: int


def _job(directory: Path) -> tuple[JobRecord, _Coordinator | None] | None:
    record = None
    for name in ("ended.json", "submission.json"):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            record = msgspec.json.decode(read_small(directory / name), type=JobRecord)
            break
    if record is None or record.id != directory.name:
        return None
    if record.is_over:
        return record, None
    outcome = outcome_of(directory)
    if outcome.kind == "finished":
        ended = (directory / "summary.json").stat().st_mtime
        done = replace(record, state="finished", digest=outcome.digest, step=outcome.step, exit_code=0, ended_s=ended)
        return replace(done, started_s=record.started_s or record.submitted_s), None
    if outcome.kind == "failed":
        return replace(
            record, state="failed", error=outcome.error, exit_code=outcome.exit_code, ended_s=time.time()
        ), None
    if not (directory / "control" / "job.json").exists():
        return replace(record, state="queued", standing=""), None
    return replace(record, state="paused", started_s=record.submitted_s, standing=""), _announced(directory)


def _announced(directory: Path) -> _Coordinator | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = read_small_json(directory / "control" / "coordinator.json")
        one = _Coordinator(int(found["pid"]), int(found["born"]))
        # Where nothing lives the job's grant is an old one: its devices may have been given to others since.
        if found["machine"] == machine_id() and (lives(one.pid, one.born) or live_executors(directory)):
            return one
    return None


def _insert(store: Store, record: JobRecord, coordinator: _Coordinator | None, directory: Path, now: float) -> None:
    if record.state == "paused":
        # It ran: with a coordinator that may live, by a grant that its directory knows.
        standing = Standing(state="paused", attempt=1)
        number, devices = granted_devices(directory)
        standing = replace(standing, number=number)
        if coordinator is not None and devices:
            standing = replace(standing, state="running", is_up=True, granted=devices, holds=devices)
            record = replace(record, state="running")
        record = replace(record, standing=save_standing(standing))
    with store.write(now=now) as tx:
        # Whose token it was is not known: keys that two owners gave alike must not meet.
        tx.insert(record, -record.number)
        if coordinator is not None:
            tx.intend(record.id, 1)
            tx.started(record.id, 1, coordinator.pid, coordinator.born)
        tx.event("job_rebuilt", record, state=record.state)
