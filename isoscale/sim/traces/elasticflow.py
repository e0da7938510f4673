"""Traces of ElasticFlow: the raw ITP clusters, and job lists with a model and a deadline.

Raw: `job_id,submission_time,duration,num_gpu`. Lists:
`job_id,submit_time,...,iteration,model_name,ddl,batch_size,num_gpu,duration`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isoscale import limits
from isoscale.sim.traces.record import OnBad, Row, TraceJob, jobs_of_table

__all__ = ["ITP_COLUMNS", "LIST_COLUMNS", "read_elasticflow", "read_itp"]

ITP_COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")
LIST_COLUMNS = ("job_id", "submit_time", "iteration", "model_name", "ddl", "batch_size", "num_gpu", "duration")


def read_itp(path: Path, on_bad: OnBad | None = None) -> Iterator[TraceJob]:
    return jobs_of_table(path, ITP_COLUMNS, _raw_job, on_bad)


def read_elasticflow(path: Path, on_bad: OnBad | None = None) -> Iterator[TraceJob]:
    return jobs_of_table(path, LIST_COLUMNS, _listed_job, on_bad)


def _raw_job(row: Row) -> TraceJob:
    return TraceJob(
        name=row.text("job_id"),
        submit_s=row.number("submission_time"),
        devices=row.count("num_gpu"),
        duration_s=row.number("duration"),
    )


def _listed_job(row: Row) -> TraceJob:
    return TraceJob(
        name=f"job-{row.text('job_id')}",
        submit_s=row.number("submit_time"),
        devices=row.count("num_gpu"),
        duration_s=row.number("duration"),
        steps=row.number("iteration"),
        application=row.text("model_name"),
        batch=row.count("batch_size", most=limits.MAX_NUMBER),
        deadline_s=row.number("ddl"),
    )
