"""Workloads of the Pollux simulator, which Sia's uses too: `name,time,application,num_replicas,batch_size`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isoscale import limits
from isoscale.sim.traces.record import OnBad, Row, TraceJob, jobs_of_table

__all__ = ["COLUMNS", "read_pollux"]

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


def read_pollux(path: Path, on_bad: OnBad | None = None) -> Iterator[TraceJob]:
    return jobs_of_table(path, COLUMNS, _job, on_bad)


def _job(row: Row) -> TraceJob:
    """How much a job computes is known by its application's validation curves, hence `steps=0` here."""
    return TraceJob(
        name=row.text("name"),
        submit_s=row.number("time"),
        devices=row.count("num_replicas"),
        steps=0.0,
        application=row.text("application"),
        batch=row.count("batch_size", most=limits.MAX_NUMBER),
    )
