"""Gavel's traces: tab-separated lines without a header.

`job_type, command, [working directory,] steps argument, needs data dir, total steps, [scale factor,] arrival, ...` in
several layouts over the years: the physical-cluster ones have ten fields, `job_type, command, working directory, steps
argument, needs data dir, total steps, scale factor, priority weight, SLO, arrival`; the ones derived from Philly have
seven, `job_type, command, steps argument, needs data dir, total steps, arrival, scale factor`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from isoscale.errors import UserError
from isoscale.sim.traces.record import OnBad, Row, TraceJob, bad, open_text

__all__ = ["read_gavel"]

_LAYOUTS = {
    7: ("job_type", "command", "steps_argument", "needs_data_dir", "total_steps", "arrival", "scale_factor"),
    10: (
        "job_type",
        "command",
        "working_directory",
        "steps_argument",
        "needs_data_dir",
        "total_steps",
        "scale_factor",
        "priority_weight",
        "slo",
        "arrival",
    ),
}


def read_gavel(path: Path, on_bad: OnBad | None = None) -> Iterator[TraceJob]:
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                job = _job(path, number, line)
            except UserError as error:
                if on_bad is None:
                    raise
                on_bad(error)
                continue
            yield job


def _job(path: Path, number: int, line: str) -> TraceJob:
    values = line.rstrip("\n").split("\t")
    layout = _LAYOUTS.get(len(values))
    if layout is None:
        expected = " or ".join(map(str, _LAYOUTS))
        raise bad(path, number, "line", line[:40], f"has {len(values)} fields", f"give {expected}, with tabs")
    row = Row(path, number, dict(zip(layout, values, strict=True)))
    job_type = row.text("job_type")
    batch = re.search(r"\(batch size ([0-9]{1,15})\)", job_type)
    return TraceJob(
        name=f"job-{number}",
        submit_s=row.number("arrival"),
        devices=row.count("scale_factor"),
        steps=row.number("total_steps", least=1),
        application=job_type,
        batch=int(batch[1]) if batch else 0,
    )
