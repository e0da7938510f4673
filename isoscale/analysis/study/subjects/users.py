"""How device time is concentrated on users, and how these wait and succeed (Helios Figs. 8 and 9)."""

from __future__ import annotations

import numpy as np

from isoscale.analysis.study.finding import Finding, Table, amount, hours, percent, time_of_figure
from isoscale.analysis.study.statistics import gini
from isoscale.analysis.study.trace import STATUSES, Labels, Trace

__all__ = ["users"]

_SHOWN = 10
_PASSED = STATUSES.index("passed")


def users(trace: Trace) -> Finding:
    jobs = trace.jobs
    labels, who = (jobs.user, "user") if jobs.user.known else (jobs.tenant, "tenant")
    missing = {} if jobs.user.known else {"users": trace.lacking("user", "user of a job")}
    if not labels.known:
        return Finding(key="users", title="Users", figures={"users": {}}, missing=missing)
    device_s = np.bincount(labels.codes, weights=trace.device_s, minlength=len(labels.words))
    counts = np.bincount(labels.codes, minlength=len(labels.words))
    order = [code for code in np.argsort(-device_s, kind="stable").tolist() if counts[code] and labels.words[code]]
    total_s = float(device_s[order].sum()) or 1.0
    top = max(1, round(0.05 * len(order)))
    shown = [_one(trace, labels, code, float(device_s[code]), int(counts[code])) for code in order[:_SHOWN]]
    figures = {
        "by": who,
        "count": len(order),
        "gini_device_time": gini(device_s[order]),
        "gini_jobs": gini(counts[order].astype(np.int64)),
        "top_5_percent": {"users": top, "share_of_device_time": float(device_s[order[:top]].sum()) / total_s},
        "largest": shown,
    }
    rows = [
        [
            str(one["name"])[:24],
            amount(float(str(one["jobs"]))),
            hours(float(str(one["device_s"]))),
            percent(float(str(one["device_s"])) / total_s),
            time_of_figure(one["median_queue_s"]),
            percent(passed if isinstance(passed := one["passed"], float) else None),
        ]
        for one in shown
    ]
    return Finding(
        key="users",
        title="Users" if who == "user" else "Tenants",
        figures={"users": figures},
        tables=[
            Table(
                title=f"Largest {who}s",
                columns=(who, "jobs", "device-hours", "of device time", "median wait", "passed"),
                rows=rows,
            )
        ],
        says=f"The largest 5 % of {who}s ({amount(top)} of {len(order):,}) take "
        f"{percent(float(device_s[order[:top]].sum()) / total_s)} of the device time.",
        missing=missing,
    )


def _one(trace: Trace, labels: Labels, code: int, device_s: float, count: int) -> dict[str, object]:
    rows = labels.codes == code
    waits = trace.jobs.queue_s[rows]
    waits = waits[np.isfinite(waits)]
    told = trace.jobs.status[rows]
    return {
        "name": labels.words[code],
        "jobs": count,
        "device_s": device_s,
        "median_queue_s": float(np.median(waits)) if len(waits) else None,
        "passed": float((told == _PASSED).mean()) if told.any() else None,
    }
