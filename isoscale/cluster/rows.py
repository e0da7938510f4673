"""Rows of the database as values, and back."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import fields
from typing import Any

import msgspec

from isoscale.cluster.values import Attempt, Event, JobRecord, Reclaim, Submission, TokenShown

__all__ = ["CHANGEABLE", "JOB", "LIVE", "attempt", "columns", "event", "job", "reclaim", "token"]

_JOB = tuple(one.name for one in fields(JobRecord))
#: columns of a job, for `job`: a row is asked by position, since by name each one is looked for among all
JOB = ", ".join(_JOB)
#: jobs that are not over
LIVE = "state NOT IN ('finished', 'failed', 'cancelled')"
_SUBMISSION = msgspec.json.Decoder(Submission)
#: columns of a job that change in its life
CHANGEABLE = frozenset(
    {
        *("cap", "digest", "ended_s", "error", "exit_code", "failures", "priority"),
        *("samples", "standing", "started_s", "state", "step", "total", "wanted"),
    }
)


def job(row: sqlite3.Row) -> JobRecord:
    """Of the columns `JOB`."""
    values = dict(zip(_JOB, row, strict=True))
    values["submission"] = _SUBMISSION.decode(values["submission"])
    return JobRecord(**values)


def columns(record: JobRecord) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in _JOB}
    return {**values, "submission": msgspec.json.encode(record.submission).decode()}


def attempt(row: sqlite3.Row) -> Attempt:
    return Attempt(**{name: row[name] for name in row.keys()})  # noqa: SIM118 - a Row iterates over values


def event(row: sqlite3.Row) -> Event:
    values = {name: row[name] for name in ("id", "t", "event", "job", "tenant", "by")}
    return Event(**values, fields=json.loads(row["fields"]))


def reclaim(row: sqlite3.Row) -> Reclaim:
    names = ("id", "node", "count", "within_s", "by", "boot", "asked_s", "seconds", "abandoned_s")
    values = {name: row[name] for name in names}
    return Reclaim(**values, devices=tuple(json.loads(row["devices"])), late=bool(row["late"]))


def token(row: sqlite3.Row) -> TokenShown:
    return TokenShown(**{name: row[name] for name in row.keys() if name not in ("hash", "parent")})  # noqa: SIM118
