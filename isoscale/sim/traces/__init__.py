"""Readers of traces, by format. `read_trace` finds the format out by itself.

Each reader is a generator of `TraceJob`, in its own module, whose docstring names the columns.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from isoscale.errors import UserError
from isoscale.sim.traces import elasticflow, own, philly, pollux, service, tiresias
from isoscale.sim.traces.gavel import read_gavel
from isoscale.sim.traces.record import OnBad, TraceJob, open_text

__all__ = ["FORMATS", "TraceJob", "detect_format", "read_trace"]


class Reader(Protocol):
    """A reader of one format: a line that cannot be used ends it, or is told to `on_bad` and left out."""

    def __call__(self, path: Path, on_bad: OnBad | None = None) -> Iterator[TraceJob]: ...


FORMATS: dict[str, Reader] = {
    "isoscale": own.read_own,
    "pollux": pollux.read_pollux,
    "gavel": read_gavel,
    "philly-log": philly.read_philly_log,
    "philly-csv": philly.read_philly_csv,
    "elasticflow": elasticflow.read_elasticflow,
    "itp": elasticflow.read_itp,
    "tiresias": tiresias.read_tiresias,
    "isoscale-service": service.read_service,
}

# The first whose columns are all there; ElasticFlow's lists have Tiresias's number of devices and duration, too.
_BY_COLUMNS: tuple[tuple[str, Sequence[str]], ...] = (
    ("isoscale", ("name", "submit_s", "devices")),
    ("pollux", pollux.COLUMNS),
    ("philly-csv", philly.COLUMNS),
    ("elasticflow", elasticflow.LIST_COLUMNS),
    ("itp", elasticflow.ITP_COLUMNS),
    ("tiresias", tiresias.COLUMNS),
)


def read_trace(path: Path, format: str = "auto") -> list[TraceJob]:
    """All jobs, with names that are all different, in the order of the file: the order of a queue within one round."""
    if format != "auto" and format not in FORMATS:
        raise UserError(
            field="--format", value=format, problem="unknown format", remedy=f"give auto or one of {', '.join(FORMATS)}"
        )
    jobs = list(FORMATS[detect_format(path) if format == "auto" else format](path))
    if not jobs:
        raise UserError(field="--trace", value=path, problem="holds no job", remedy="give a trace with jobs")
    seen: set[str] = set()
    for job in jobs:
        if job.name in seen:
            raise UserError(
                field=f"{path} name", value=job.name, problem="two jobs have this name", remedy="rename one of them"
            )
        seen.add(job.name)
    return jobs


def detect_format(path: Path) -> str:
    """The format by the first line that is no comment; of a directory, by what is in it."""
    if service.is_state(path):
        return "isoscale-service"
    with open_text(path) as file:
        try:
            first = next((line for line in file if line.strip() and not line.startswith("#")), "")
        except UnicodeDecodeError:
            first = ""
    if first.lstrip().startswith("["):
        return "philly-log"
    if first.count("\t") >= 6:
        return "gavel"
    header = {name.strip() for name in next(csv.reader([first]), [])}
    for format, columns in _BY_COLUMNS:
        if header >= set(columns):
            return format
    raise UserError(
        field="--trace",
        value=path,
        problem=f"the header {first.strip()[:60]!r} is of no known format",
        remedy=f"give a file of one of {', '.join(FORMATS)}, or name it with --format",
    )
