"""Types of jobs: their share of jobs and of device time, sizes, run times and waits (Acme's study; PAI's workloads)."""

from __future__ import annotations

import numpy as np

from isoscale.analysis.study.finding import Finding, Table, amount, hours, percent, time_of_figure
from isoscale.analysis.study.statistics import spread
from isoscale.analysis.study.trace import STATUSES, Trace

__all__ = ["kinds"]

_SHOWN = 15
_PASSED = STATUSES.index("passed")


def kinds(trace: Trace) -> Finding:
    jobs, labels = trace.jobs, trace.jobs.kind
    title = "Types of jobs"
    if not labels.known:
        missing = {"kinds": trace.lacking("kind", "type of a job")}
        return Finding(key="kinds", title=title, figures={"kinds": {}}, missing=missing)
    device_s = trace.device_s
    total_s = float(device_s.sum())
    taken = np.bincount(labels.codes, weights=device_s, minlength=len(labels.words))
    counts = np.bincount(labels.codes, minlength=len(labels.words))
    found: dict[str, dict[str, object]] = {}
    rows = []
    for code in np.lexsort((-counts, -taken)).tolist()[:_SHOWN]:
        if not counts[code]:
            continue
        chosen = labels.codes == code
        name = labels.words[code] or "(unknown)"
        run_s, queue_s = spread(jobs.run_s[chosen]), spread(jobs.queue_s[chosen])
        devices = float(np.median(jobs.devices[chosen]))
        passed = float((jobs.status[chosen] == _PASSED).mean()) if jobs.status[chosen].any() else None
        found[name] = {
            "jobs": int(counts[code]),
            "device_s": float(taken[code]),
            "share_of_device_time": float(taken[code]) / total_s if total_s else None,
            "median_devices": devices,
            "run_s": run_s,
            "queue_s": queue_s,
            "passed": passed,
        }
        rows.append(
            [
                name[:32],
                amount(int(counts[code])),
                hours(float(taken[code])),
                percent(float(taken[code]) / total_s if total_s else None),
                amount(devices),
                time_of_figure(run_s["p50"]),
                time_of_figure(queue_s["p50"]),
                percent(passed),
            ]
        )
    columns = (
        "type",
        "jobs",
        "device-hours",
        "of device time",
        "median devices",
        "median run",
        "median wait",
        "passed",
    )
    return Finding(
        key="kinds",
        title=title,
        figures={"kinds": found},
        tables=[Table(title="Types by device time", columns=columns, rows=rows)],
        says=f"{rows[0][0]} takes most device time ({rows[0][3]})." if rows and total_s else "",
    )
