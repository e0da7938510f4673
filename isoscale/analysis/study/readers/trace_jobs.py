"""The formats that `isoscale simulate` reads, as the canonical form: submissions, sizes and durations, seldom more."""

from __future__ import annotations

import math
from pathlib import Path

from isoscale.analysis.study.builder import TraceBuilder
from isoscale.analysis.study.readers.times import EPOCH
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.trace import Trace
from isoscale.errors import UserError
from isoscale.sim.builtin import BUILTIN, builtin_trace
from isoscale.sim.synthetic import generate, parse_generator
from isoscale.sim.traces import FORMATS, TraceJob, detect_format, philly
from isoscale.sim.traces.record import jobs_of_table

__all__ = ["read_named", "read_trace_jobs", "recognises"]

_LACKS = {
    "start": "start time",
    "status": "final status",
    "error": "error of a failed attempt",
    "attempts": "attempts",
    "user": "user",
    "tenant": "tenant",
    "machines": "number of machines",
    "places": "machines and devices",
    "quota": "devices of each tenant",
    "capacity": "a list of machines",
    "utilisation": "samples of devices",
    "host": "samples of hosts",
    "kind": "model",
}


def recognises(path: Path) -> bool:
    try:
        return path.is_file() and detect_format(path) != "philly-log"
    except UserError:
        return False


def read_trace_jobs(path: Path, reading: Reading, format: str = "") -> Trace:
    format = format or detect_format(path)

    def on_bad(error: UserError) -> None:
        reading.bad_row(path, error)

    # Only Philly's table has dates.
    dated = format == "philly-csv"
    jobs = jobs_of_table(path, philly.COLUMNS, philly.csv_job, on_bad) if dated else FORMATS[format](path, on_bad)
    shift_s = (philly.ZERO - EPOCH).total_seconds() if dated else 0.0
    builder = TraceBuilder()
    for job in jobs:
        reading.read(path)
        if reading.wants(job.submit_s + shift_s):
            _add(builder, job, shift_s)
    zero = EPOCH if dated else None
    return builder.build(name=path.name, format=format, account=reading.account(), zero=zero, lacks=_lacks(format))


def read_named(text: str, reading: Reading) -> Trace:
    """A trace that the package ships, or a generator such as `philly:jobs=500`."""
    builder = TraceBuilder()
    for job in builtin_trace(text) if text in BUILTIN else generate(parse_generator(text, field="TRACE")):
        _add(builder, job)
    return builder.build(name=text, format="isoscale", account=reading.account(), lacks=_lacks("isoscale"))


def _lacks(format: str) -> dict[str, str]:
    return {column: f"{words} (not in the format {format})" for column, words in _LACKS.items()}


def _add(builder: TraceBuilder, job: TraceJob, shift_s: float = 0.0) -> None:
    run_s = math.nan if job.duration_s is None else job.duration_s
    number = builder.add_job(
        job.name,
        submit_s=job.submit_s + shift_s,
        run_s=run_s,
        devices=job.devices,
        status=job.status,
        tenant=job.tenant,
        kind=job.application,
    )
    builder.add_attempt(number, run_s=run_s, devices=job.devices, failed=job.status == "failed")
