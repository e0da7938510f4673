"""How often jobs are tried again, whether it helps, and what it costs."""

from __future__ import annotations

import numpy as np

from isoscale.analysis.study.finding import Finding, Table, amount, hours, percent
from isoscale.analysis.study.trace import SIZES, STATUSES, Trace

__all__ = ["retries"]

_PASSED, _FAILED = STATUSES.index("passed"), STATUSES.index("failed")
_MOST = 6


def retries(trace: Trace) -> Finding:
    attempts, jobs = trace.attempts, trace.jobs
    tries = np.bincount(attempts.job, minlength=len(jobs))
    title = "Retries"
    if "attempts" in trace.lacks and tries.max(initial=0) <= 1:
        missing = {"retries": trace.lacking("attempts", "attempts of a job")}
        return Finding(key="retries", title=title, figures={"retries": {}}, missing=missing)
    # Attempts of a job lie together: all but the last have a successor.
    is_last = np.append(attempts.job[1:] != attempts.job[:-1], True) if len(attempts) else np.zeros(0, dtype=bool)
    wasted_s = float(attempts.device_s[~is_last].sum())
    total_s = float(attempts.device_s.sum())
    again = tries > 1
    by_tries = {}
    for number in range(1, _MOST + 1):
        chosen = tries >= number if number == _MOST else tries == number
        if chosen.any():
            by_tries[f"{number}+" if number == _MOST else str(number)] = {
                "jobs": int(chosen.sum()),
                "passed": int((jobs.status[chosen] == _PASSED).sum()),
                "failed": int((jobs.status[chosen] == _FAILED).sum()),
            }
    by_size = {
        size: {"jobs": int(rows.sum()), "mean_attempts": float(tries[rows].mean()) if rows.any() else None}
        for size, _, _ in SIZES
        for rows in [jobs.of_size(size)]
    }
    figures = {
        "attempts": len(attempts),
        "jobs_retried": int(again.sum()),
        "retried_and_passed": int((again & (jobs.status == _PASSED)).sum()),
        "device_s_before_last": wasted_s,
        "share_of_device_time": wasted_s / total_s if total_s else None,
        "by_attempts": by_tries,
        "by_size": by_size,
    }
    rows = [
        [key, amount(one["jobs"]), percent(one["passed"] / one["jobs"]), percent(one["failed"] / one["jobs"])]
        for key, one in by_tries.items()
    ]
    passed = figures["retried_and_passed"]
    return Finding(
        key="retries",
        title=title,
        figures={"retries": figures},
        tables=[Table(title="Jobs by attempts", columns=("attempts", "jobs", "passed", "failed"), rows=rows)],
        says=f"{int(again.sum()):,} jobs were tried again, {passed:,} of them passed in the end; attempts that were "
        f"not the last took {hours(wasted_s)} device-hours ({percent(wasted_s / total_s if total_s else None)}).",
    )
