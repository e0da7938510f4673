"""Acme (Shanghai AI Laboratory): `trace_seren.csv` and `trace_kalos.csv`.

`duration` is from submission to end in places, so run time is always end less start.
"""

from __future__ import annotations

import math
from pathlib import Path

from isoscale.analysis.study.builder import TraceBuilder
from isoscale.analysis.study.readers.slurm import status_of
from isoscale.analysis.study.readers.tables import rows, time_of
from isoscale.analysis.study.readers.times import EPOCH
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.trace import Trace
from isoscale.errors import UserError
from isoscale.sim.traces.record import Row, open_text

__all__ = ["COLUMNS", "parts", "read_acme", "recognises"]

COLUMNS = ("job_id", "user", "node_num", "gpu_num", "type", "state", "submit_time", "start_time", "end_time")
_FILES = ("trace_seren.csv", "trace_kalos.csv")
_LACKS = {
    "error": "stderr of failed jobs (not in this format; --logs DIR)",
    "attempts": "attempts (the scheduler's log has the last one only)",
    "tenant": "tenant or VC (not in this format)",
    "quota": "tenant or VC (not in this format)",
    "capacity": "a list of machines (not in this format)",
    "places": "machines and devices of every job (only their number is told)",
    "utilisation": "samples of devices (published apart, not read)",
    "host": "samples of hosts (published apart, not read)",
}


def recognises(path: Path) -> bool:
    if path.is_dir():
        return any((path / name).is_file() for name in _FILES)
    with open_text(path) as file:
        return set(COLUMNS) <= {name.strip() for name in file.readline(4096).split(",")}


def parts(path: Path) -> list[Path]:
    """The files of a directory that has several clusters."""
    found = [path / name for name in _FILES if path.is_dir() and (path / name).is_file()]
    return found if len(found) > 1 else []


def read_acme(path: Path, reading: Reading) -> Trace:
    """A file, or a directory with one."""
    log = next(path / name for name in _FILES if (path / name).is_file()) if path.is_dir() else path
    builder = TraceBuilder()
    for row in rows(log, reading, COLUMNS):
        try:
            _add(builder, row, reading)
        except UserError as error:
            reading.bad_row(log, error)
    return builder.build(name=log.stem, format="acme", account=reading.account(), zero=EPOCH, lacks=_LACKS)


def _add(builder: TraceBuilder, row: Row, reading: Reading) -> None:
    submit_s, start_s, end_s = (time_of(row, column) for column in ("submit_time", "start_time", "end_time"))
    devices, nodes = row.number("gpu_num", 0.0), row.count("node_num", 0, least=0)
    status, error = status_of(row)
    if end_s < start_s:
        raise row.bad("end_time", row.text("end_time"), "is before start_time", "")
    if not reading.wants(submit_s):
        return
    job = builder.add_job(
        row.text("job_id"),
        submit_s=submit_s,
        start_s=start_s,
        end_s=end_s,
        devices=devices,
        machines=nodes,
        status=status,
        user=row.text("user", ""),
        kind=row.text("type", ""),
    )
    if not math.isnan(start_s):
        failed = status == "failed"
        builder.add_attempt(
            job, start_s=start_s, end_s=end_s, devices=devices, machines=nodes, failed=failed, error=error
        )
