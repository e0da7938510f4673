"""How jobs end, by jobs and by the device time that they took (Philly's table of final status; Helios Fig. 7)."""

from __future__ import annotations

from isoscale.analysis.study.finding import Finding, Table, amount, hours, percent
from isoscale.analysis.study.trace import SIZES, STATUSES, Trace

__all__ = ["status"]


def status(trace: Trace) -> Finding:
    jobs, device_s = trace.jobs, trace.device_s
    if not jobs.status.any():
        missing = {"status": trace.lacking("status", "final status of a job")}
        empty: dict[str, object] = {"by_jobs": {}, "by_device_time": {}}
        return Finding(key="status", title="How jobs end", figures={"status": empty}, missing=missing)
    present = [code for code in range(len(STATUSES)) if (jobs.status == code).any()]
    names = {code: STATUSES[code] or "unknown" for code in present}
    by_jobs = {names[code]: int((jobs.status == code).sum()) for code in present}
    by_time = {names[code]: float(device_s[jobs.status == code].sum()) for code in present}
    total_s = sum(by_time.values())
    by_size = {
        size: {names[code]: int((jobs.status[jobs.of_size(size)] == code).sum()) for code in present}
        for size, _, _ in SIZES
    }
    rows = [
        [
            name,
            amount(by_jobs[name]),
            percent(by_jobs[name] / len(jobs)),
            hours(by_time[name]),
            percent(by_time[name] / total_s if total_s else None),
        ]
        for name in by_jobs
    ]
    size_rows = []
    for size, counts in by_size.items():
        of_size = sum(counts.values())
        if of_size:
            size_rows.append([size, amount(of_size), *(percent(count / of_size) for count in counts.values())])
    # Of jobs that go on nobody knows how they end.
    ended = len(jobs) - by_jobs.get("unfinished", 0)
    ended_s = total_s - by_time.get("unfinished", 0.0)
    unsuccessful = 1 - by_jobs.get("passed", 0) / ended if ended else None
    unsuccessful_s = 1 - by_time.get("passed", 0.0) / ended_s if ended_s else None
    return Finding(
        key="status",
        title="How jobs end",
        figures={
            "status": {
                "by_jobs": by_jobs,
                "by_device_time": by_time,
                "share_by_jobs": {name: count / len(jobs) for name, count in by_jobs.items()},
                "share_by_device_time": {name: taken / total_s if total_s else None for name, taken in by_time.items()},
                "by_size": by_size,
            }
        },
        tables=[
            Table(
                title="Final status",
                columns=("status", "jobs", "of jobs", "device-hours", "of device time"),
                rows=rows,
            ),
            Table(title="Final status by size", columns=("devices", "jobs", *by_jobs), rows=size_rows, brief=False),
        ],
        says=f"{percent(unsuccessful)} of the jobs that ended and {percent(unsuccessful_s)} of their device time did "
        "not end in success.",
    )
