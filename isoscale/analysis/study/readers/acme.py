"""Acme (Shanghai AI Laboratory): `trace_seren.csv` and `trace_kalos.csv`.

`duration` is from submission to end in places, so run time is always end less start.
"""

from __future__ import annotations

from pathlib import Path

from isoscale.analysis.study.builder import TraceBuilder
from isoscale.analysis.study.readers.slurm import add_job
from isoscale.analysis.study.readers.tables import rows
from isoscale.analysis.study.readers.times import EPOCH
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.trace import Trace
from isoscale.errors import UserError
from isoscale.sim.traces.record import open_text

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
            add_job(builder, row, reading, kind="type")
        except UserError as error:
            reading.bad_row(log, error)
    return builder.build(name=log.stem, format="acme", account=reading.account(), zero=EPOCH, lacks=_LACKS)
