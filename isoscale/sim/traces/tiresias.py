"""Tiresias's traces: `job_id,num_gpu,submit_time,iterations,model_name,duration,interval`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isoscale.sim.traces.record import OnBad, Row, TraceJob, jobs_of_table

__all__ = ["COLUMNS", "read_tiresias"]

COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration")


def read_tiresias(path: Path, on_bad: OnBad | None = None) -> Iterator[TraceJob]:
    return jobs_of_table(path, COLUMNS, _job, on_bad)


def _job(row: Row) -> TraceJob:
    return TraceJob(
        name=f"job-{row.text('job_id')}",
        submit_s=row.number("submit_time"),
        devices=row.count("num_gpu"),
        duration_s=row.number("duration"),
        steps=row.number("iterations"),
        application=row.text("model_name"),
    )
