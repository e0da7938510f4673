"""The Philly trace: the public job log (JSON) and the table that the Pollux simulator derived from it.

`cluster_job_log` is one JSON array of jobs with attempts; a job's devices are those of its first attempt, its duration
runs from the first start to the last end. Jobs that never started, or have no end, have no duration and are skipped by
`read_philly_log`; `read_philly_jobs` keeps everything, for analysis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from isoscale.errors import UserError
from isoscale.sim.traces.record import OnBad, Row, TraceJob, jobs_of_table, open_text

__all__ = [
    "COLUMNS",
    "ZERO",
    "Attempt",
    "Detail",
    "PhillyJob",
    "csv_job",
    "read_philly_csv",
    "read_philly_jobs",
    "read_philly_log",
]

#: second 0 of a record; local time without a zone, as differences are what counts
ZERO = datetime(2017, 1, 1)

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
_STATUS = {"Pass": "passed", "Killed": "killed", "Failed": "failed"}


class Detail(msgspec.Struct, frozen=True):
    """The devices of an attempt on one machine."""

    ip: str
    gpus: list[str]


class Attempt(msgspec.Struct, frozen=True):
    """One try; a missing time is a gap in the log, a missing last end a job that still ran."""

    detail: list[Detail]
    start_time: str | None = None
    end_time: str | None = None

    @property
    def devices(self) -> int:
        return sum(len(part.gpus) for part in self.detail)


class PhillyJob(msgspec.Struct, frozen=True):
    """A job as the public log has it."""

    jobid: str
    vc: str
    submitted_time: str
    attempts: list[Attempt]
    status: Literal["Pass", "Killed", "Failed"]
    user: str = ""


def read_philly_jobs(path: Path) -> list[PhillyJob]:
    with open_text(path) as file:
        text = file.read()
    try:
        return msgspec.json.decode(text, type=list[PhillyJob])
    except msgspec.ValidationError as error:
        problem, _, where = str(error).rpartition(" - at ")
        raise UserError(
            field=f"{path} {where.strip('`') or '$'}",
            value="",
            problem=problem or str(error),
            remedy="give a cluster_job_log of the public Philly trace",
        ) from None
    except msgspec.DecodeError as error:
        raise UserError(
            field=f"{path}", value="", problem=str(error), remedy="give a cluster_job_log, one JSON array"
        ) from None


def read_philly_log(path: Path, on_bad: OnBad | None = None) -> Iterator[TraceJob]:
    """Jobs that ran, in order of submission; seconds count from the first submission. All or nothing."""
    usable = []
    for number, job in enumerate(read_philly_jobs(path)):
        where = f"{path} $[{number}]"
        starts = [attempt.start_time for attempt in job.attempts if attempt.start_time]
        ends = [attempt.end_time for attempt in job.attempts if attempt.end_time]
        devices = job.attempts[0].devices if job.attempts else 0
        if not starts or not ends or not devices:
            continue
        submitted = _time(job.submitted_time, f"{where}.submitted_time")
        duration_s = _time(ends[-1], f"{where}.end_time") - _time(starts[0], f"{where}.start_time")
        if duration_s >= 0:
            usable.append((submitted, job, devices, duration_s))
    usable.sort(key=lambda entry: entry[0])
    for submitted, job, devices, duration_s in usable:
        yield TraceJob(
            name=job.jobid,
            submit_s=submitted - usable[0][0],
            devices=devices,
            duration_s=duration_s,
            tenant=job.vc,
            status=_STATUS[job.status],
        )


def read_philly_csv(path: Path, on_bad: OnBad | None = None) -> Iterator[TraceJob]:
    """`philly.csv`, in order of submission; jobs are numbered by their line. Seconds count from the first one."""
    jobs = sorted(jobs_of_table(path, COLUMNS, csv_job, on_bad), key=lambda job: job.submit_s)
    return (replace(job, submit_s=job.submit_s - jobs[0].submit_s) for job in jobs)


def csv_job(row: Row) -> TraceJob:
    """A line of it; submitted so many seconds after ZERO."""
    return TraceJob(
        name=f"job-{row.line - 1}",
        submit_s=_row_time(row),
        devices=row.count("num_gpus"),
        duration_s=row.number("duration"),
        tenant=row.text("cluster"),
    )


def _row_time(row: Row) -> float:
    text = row.text("timestamp")
    try:
        return _seconds(text)
    except ValueError:
        raise row.bad("timestamp", text, "is not a time", "give YYYY-MM-DD HH:MM:SS") from None


def _time(text: str, where: str) -> float:
    try:
        return _seconds(text)
    except ValueError:
        raise UserError(field=where, value=text, problem="is not a time", remedy="give YYYY-MM-DD HH:MM:SS") from None


def _seconds(text: str) -> float:
    return (datetime.fromisoformat(text) - ZERO).total_seconds()
