"""Load over time: submissions and devices in use by hour of the day, by month, by tenant (Helios Figs. 2 to 4)."""

from __future__ import annotations

import math
from datetime import timedelta

import numpy as np

from isoscale.analysis.study.finding import Finding, Table, amount, hours, percent
from isoscale.analysis.study.trace import Trace
from isoscale.analysis.study.usage import in_use, is_timed
from isoscale.sim.ledger import level_over_time

__all__ = ["load"]

_DAY_S, _HOUR_S = 86_400.0, 3600.0
_BINS = 240
_MOST_TENANTS = 20


def load(trace: Trace) -> Finding:
    jobs = trace.jobs
    submits = jobs.submit_s[np.isfinite(jobs.submit_s)]
    missing: dict[str, str] = {}
    figures: dict[str, object] = {}
    tables: list[Table] = []
    says = ""
    if len(submits):
        # A trace without dates has hours since its first submission.
        shift = 0.0 if trace.zero is not None else float(submits.min())
        hour = ((submits - shift) % _DAY_S // _HOUR_S).astype(np.int64)
        figures["submissions_by_hour"] = np.bincount(hour, minlength=24).tolist()
        if trace.zero is None:
            missing["load.by_month"] = f"dates (the format {trace.format} counts seconds)"
        else:
            figures["by_month"] = _by_month(trace)
    else:
        missing["load.submissions"] = trace.lacking("submit", "submission time")
    if is_timed(trace):
        figures |= _devices(trace)
        mean, peak = float(str(figures["mean_in_use"])), float(str(figures["peak_in_use"]))
        says = f"{amount(round(mean, 1))} devices were in use on average, {amount(peak)} at most"
        if trace.capacity is not None:
            says += f", of {amount(trace.capacity.most)}"
        says += "."
        tables.append(_tenant_table(trace, figures))
    else:
        missing["load.in_use"] = trace.lacking("start", "start time of a job")
    if trace.capacity is None and is_timed(trace):
        missing["load.utilisation"] = trace.lacking("capacity", "a list of machines")
    months = figures.get("by_month")
    if isinstance(months, dict):
        rows = [[month, amount(one["jobs"]), hours(one["device_s"])] for month, one in months.items()]
        tables.insert(0, Table(title="By month", columns=("month", "jobs submitted", "device-hours"), rows=rows))
    return Finding(
        key="load",
        title="Load over time",
        figures={"load": figures},
        tables=[table for table in tables if table.rows],
        says=says,
        missing=missing,
    )


def _by_month(trace: Trace) -> dict[str, dict[str, float]]:
    """By the month in which a job was submitted."""
    assert trace.zero is not None
    known = np.isfinite(trace.jobs.submit_s)
    base = np.datetime64(trace.zero, "s")
    months = (base + trace.jobs.submit_s[known].astype("timedelta64[s]")).astype("datetime64[M]")
    names, which = np.unique(months, return_inverse=True)
    device_s = np.bincount(which.reshape(-1), weights=trace.device_s[known])
    jobs = np.bincount(which.reshape(-1))
    return {
        str(name): {"jobs": int(count), "device_s": float(taken)}
        for name, count, taken in zip(names, jobs, device_s, strict=True)
    }


def _devices(trace: Trace) -> dict[str, object]:
    held, used = trace.holdings, in_use(trace)
    known = np.isfinite(held.begin_s) & np.isfinite(held.end_s)
    if not known.any():
        return {"mean_in_use": 0.0, "peak_in_use": 0.0, "in_use": []}
    begin, end = float(held.begin_s[known].min()), float(held.end_s[known].max())
    end = max(end, begin + 1.0)
    edges = np.linspace(begin, end, _BINS + 1)
    levels = level_over_time(
        held.begin_s[known].tolist(), held.end_s[known].tolist(), held.devices[known].tolist(), edges
    )
    taken = math.fsum(((held.end_s - held.begin_s) * held.devices)[known].tolist())
    found: dict[str, object] = {
        "begin_s": begin,
        "end_s": end,
        "mean_in_use": taken / (end - begin),
        "peak_in_use": used.most,
        "in_use": [round(float(level), 3) for level in levels],
    }
    if trace.own is not None and len(trace.own.wanted) == len(trace.jobs):
        # What jobs asked for while they waited or ran: our own logs tell when they ended.
        left = np.where(np.isfinite(trace.jobs.end_s), trace.jobs.end_s, trace.own.end_s)
        asked = level_over_time(trace.jobs.submit_s.tolist(), left.tolist(), trace.own.wanted.tolist(), edges)
        found["asked"] = [round(float(level), 3) for level in asked]
    if trace.capacity is not None:
        there = trace.capacity.seconds(begin, end)
        found["capacity"] = trace.capacity.most
        found["capacity_source"] = trace.capacity.source
        found["allocated"] = taken / there if there else None
    if trace.zero is not None:
        found["first"] = str(trace.zero + timedelta(seconds=round(begin)))
        found["last"] = str(trace.zero + timedelta(seconds=round(end)))
    return found


def _tenant_table(trace: Trace, figures: dict[str, object]) -> Table:
    labels = trace.jobs.tenant
    columns = ("tenant", "jobs", "device-hours", "of device time", "of its quota")
    if not labels.known:
        return Table(title="By tenant", columns=columns, rows=())
    device_s = np.bincount(labels.codes, weights=trace.device_s, minlength=len(labels.words))
    counts = np.bincount(labels.codes, minlength=len(labels.words))
    total, length = float(device_s.sum()) or 1.0, float(str(figures["end_s"])) - float(str(figures["begin_s"]))
    rows = []
    for code in np.argsort(-device_s, kind="stable").tolist()[:_MOST_TENANTS]:
        if counts[code]:
            quota = trace.quotas.get(labels.words[code])
            rows.append(
                [
                    labels.words[code] or "(unknown)",
                    amount(int(counts[code])),
                    hours(float(device_s[code])),
                    percent(float(device_s[code]) / total),
                    percent(float(device_s[code]) / (quota * length)) if quota else "-",
                ]
            )
    return Table(title="By tenant", columns=columns, rows=rows, brief=False)
