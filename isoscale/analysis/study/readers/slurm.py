"""Jobs and their final states as Slurm's log has them, which Helios and Acme publish."""

from __future__ import annotations

import math

from isoscale.analysis.study.builder import TraceBuilder
from isoscale.analysis.study.readers.tables import time_of
from isoscale.analysis.study.reading import Reading
from isoscale.sim.traces.record import Row

__all__ = ["add_job", "status_of"]

#: state -> status and, where the state tells it, the class of the error
_STATES: dict[str, tuple[str, str]] = {
    "COMPLETED": ("passed", ""),
    "CANCELLED": ("killed", ""),
    "FAILED": ("failed", ""),
    "TIMEOUT": ("failed", "time limit"),
    "NODE_FAIL": ("failed", "node failure"),
    "OUT_OF_MEMORY": ("failed", "CPU out of memory"),
    "PREEMPTED": ("failed", "job preempted"),
    "BOOT_FAIL": ("failed", "node failure"),
    "DEADLINE": ("failed", "time limit"),
    "RUNNING": ("unfinished", ""),
    "PENDING": ("unfinished", ""),
    "SUSPENDED": ("unfinished", ""),
    "REQUEUED": ("unfinished", ""),
}


def status_of(row: Row) -> tuple[str, str]:
    """Status and class of the error. Raises UserError for a state that Slurm does not have."""
    # "CANCELLED by 1001" tells who did it.
    state = row.text("state").split(" ")[0].rstrip("+").upper()
    if state not in _STATES:
        raise row.bad("state", row.text("state"), "is not a state", f"give one of {', '.join(_STATES)}")
    return _STATES[state]


def add_job(
    builder: TraceBuilder, row: Row, reading: Reading, *, kind: str | None = None, tenant: str | None = None
) -> None:
    """The job of a row and its one attempt; `kind` and `tenant` name columns.

    Raises UserError for a wrong row.
    """
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
        kind=row.text(kind, "") if kind else "",
        tenant=row.text(tenant, "") if tenant else "",
    )
    if not math.isnan(start_s):
        builder.add_attempt(
            job,
            start_s=start_s,
            end_s=end_s,
            devices=devices,
            machines=nodes,
            failed=status == "failed",
            error=error,
        )
