"""Helios (SenseTime): `cluster_log.csv`, and `cluster_gpu_number.csv` with the devices of every VC by date."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from isoscale.analysis.study.builder import TraceBuilder
from isoscale.analysis.study.readers.slurm import add_job
from isoscale.analysis.study.readers.tables import rows
from isoscale.analysis.study.readers.times import EPOCH, seconds
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.trace import Capacity, Trace
from isoscale.errors import UserError
from isoscale.sim.traces.record import open_text

__all__ = ["COLUMNS", "read_helios", "recognises"]

LOG, DEVICES = "cluster_log.csv", "cluster_gpu_number.csv"
COLUMNS = ("job_id", "user", "vc", "gpu_num", "node_num", "state", "submit_time", "start_time", "end_time")
_LACKS = {
    "error": "stderr of failed jobs (not in this format; --logs DIR)",
    "attempts": "attempts (the scheduler's log has the last one only)",
    "quota": DEVICES,
    "capacity": DEVICES,
    "places": "machines and devices of every job (only their number is told)",
    "utilisation": "samples of devices (not published with this trace)",
    "host": "samples of hosts (not published with this trace)",
    "kind": "model or type of the job (not in this format)",
}


def recognises(path: Path) -> bool:
    if path.is_dir():
        return (path / LOG).is_file()
    with open_text(path) as file:
        return {"vc", "node_num", "state", "submit_time"} <= {name.strip() for name in file.readline(4096).split(",")}


def read_helios(path: Path, reading: Reading) -> Trace:
    log = path / LOG if path.is_dir() else path
    builder = TraceBuilder()
    for row in rows(log, reading, COLUMNS):
        try:
            add_job(builder, row, reading, tenant="vc")
        except UserError as error:
            reading.bad_row(log, error)
    trace = builder.build(
        name=path.name or str(path), format="helios", account=reading.account(), zero=EPOCH, lacks=_LACKS
    )
    listed = path / DEVICES
    if path.is_dir() and listed.is_file():
        trace = _with_devices(trace, listed, reading)
    return replace(trace, account=reading.account())


def _with_devices(trace: Trace, path: Path, reading: Reading) -> Trace:
    """Devices by date as capacity, and of every VC as its quota: the median over the dates."""
    since, totals = [], []
    by_tenant: dict[str, list[float]] = {}
    for row in rows(path, reading, ("date", "total")):
        try:
            date = row.text("date")
            at = seconds(f"{date} 00:00:00" if len(date) == 10 else date)
            total = row.number("total")
            shares = {word: row.number(word, 0.0) for word in trace.jobs.tenant.words if word and row.has(word)}
        except UserError as error:
            reading.bad_row(path, error)
            continue
        except ValueError:
            reading.bad(path, row.line, "date", row.text("date", ""), "is not a date")
            continue
        since.append(at)
        totals.append(total)
        for tenant, devices in shares.items():
            by_tenant.setdefault(tenant, []).append(devices)
    if not since:
        return trace
    order = np.argsort(since, kind="stable")
    begins = np.array(since)[order]
    begins[0] = -math.inf  # before the first date there were as many as on it
    capacity = Capacity(since_s=begins, devices=np.array(totals)[order], source=DEVICES)
    return replace(
        trace, capacity=capacity, quotas={tenant: float(np.median(devices)) for tenant, devices in by_tenant.items()}
    )
