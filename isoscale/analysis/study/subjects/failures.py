"""Why attempts fail: trials, jobs and users by class, time to failure, demand, device time (Philly's failure table).

Classes are those of `analysis.failures` and of the user's rules, from stderr and logs. Where no log tells, failed
attempts are counted without a class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from isoscale.analysis.failures import CLASSES, NO_SIGNATURE, FailureClass
from isoscale.analysis.study.finding import Finding, Table, amount, percent
from isoscale.analysis.study.trace import Trace
from isoscale.analysis.words import duration

__all__ = ["UNCLASSIFIED", "advice_of", "failures"]

UNCLASSIFIED = "(not classified)"
_LEVELS = (50, 90, 95)


def failures(trace: Trace, classes: Sequence[FailureClass] = CLASSES) -> Finding:
    attempts, jobs = trace.attempts, trace.jobs
    failed = np.flatnonzero(attempts.failed)
    missing = {}
    if not attempts.error.known:
        missing["failures.classes"] = trace.lacking("error", "stderr of failed attempts")
    if not jobs.user.known:
        missing["failures.users"] = trace.lacking("user", "user of a job")
    if not jobs.status.any():
        missing["failures"] = trace.lacking("status", "final status of a job")
    total_s, total_device_s = float(np.nansum(attempts.run_s[failed])), float(attempts.device_s[failed].sum())
    known = {one.name: one for one in (*classes, NO_SIGNATURE)}
    found: dict[str, dict[str, object]] = {}
    codes = attempts.error.codes[failed]
    trials = np.bincount(codes, minlength=len(attempts.error.words))
    # Most trials first, those without a class last.
    for code in sorted(range(len(trials)), key=lambda code: (code == 0, -trials[code], code)):
        rows = failed[codes == code]
        if not len(rows):
            continue
        name = attempts.error.words[code] or UNCLASSIFIED
        run_s = attempts.run_s[rows][np.isfinite(attempts.run_s[rows])]
        devices = attempts.devices[rows]
        found[name] = {
            "trials": len(rows),
            "jobs": len(np.unique(attempts.job[rows])),
            "users": len(np.unique(jobs.user.codes[attempts.job[rows]])) if jobs.user.known else None,
            "rtf_s": {f"p{level}": float(np.percentile(run_s, level)) if len(run_s) else None for level in _LEVELS},
            "share_of_time": float(run_s.sum()) / total_s if total_s else None,
            "demand": {
                "1": int((devices <= 1).sum()),
                "2-4": int(((devices > 1) & (devices <= 4)).sum()),
                ">4": int((devices > 4).sum()),
            },
            "device_s": float(attempts.device_s[rows].sum()),
            "share_of_device_time": float(attempts.device_s[rows].sum()) / total_device_s if total_device_s else None,
            "origin": known[name].origin if name in known else None,
            "retries": known[name].retries if name in known else None,
            "advice": advice_of(name, known),
        }
    figures = {
        "trials": len(failed),
        "jobs": len(np.unique(attempts.job[failed])),
        "device_s": total_device_s,
        "classes": found,
    }
    tables = [_table(found)] if found else []
    largest = max(found.items(), key=lambda item: float(str(item[1]["device_s"])), default=None)
    says = "No attempt failed." if jobs.status.any() else ""
    if largest is not None and largest[0] != UNCLASSIFIED:
        share = largest[1]["share_of_device_time"]
        says = f"{len(failed):,} attempts failed; {largest[0]} took most device time " + (
            f"({percent(share)})." if isinstance(share, float) else "."
        )
    elif largest is not None:
        says = f"{len(failed):,} attempts failed; no log tells why."
    return Finding(
        key="failures", title="Failures", figures={"failures": figures}, tables=tables, says=says, missing=missing
    )


def advice_of(name: str, known: Mapping[str, FailureClass]) -> str:
    """What to do about it, in a few words."""
    if name not in known:
        return "classify its log first"
    one = known[name]
    who = {"infrastructure": "operators", "framework": "whoever sets up jobs", "user": "the job's owner"}[one.origin]
    if one.retries >= 1000:
        return "always try again; no fault of the job"
    if one.retries == 0:
        return f"do not try again; {who} must act"
    return (
        f"try again up to {one.retries} times, then {who} must act"
        if one.retries > 1
        else f"try again once, then {who} must act"
    )


def _table(found: Mapping[str, Mapping[str, object]]) -> Table:
    rows = []
    for name, one in found.items():
        rtf, demand = one["rtf_s"], one["demand"]
        assert isinstance(rtf, dict)
        assert isinstance(demand, dict)
        share = one["share_of_device_time"]
        users = one["users"]
        rows.append(
            [
                name,
                amount(float(str(one["trials"]))),
                amount(float(str(one["jobs"]))),
                "-" if users is None else amount(float(str(users))),
                *(duration(value) if value is not None else "-" for value in rtf.values()),
                *(amount(value) for value in demand.values()),
                percent(share if isinstance(share, float) else None),
                str(one["advice"]),
            ]
        )
    return Table(
        title="Failed attempts by class",
        columns=(
            "class",
            "trials",
            "jobs",
            "users",
            "to failure p50",
            "p90",
            "p95",
            "1 device",
            "2-4",
            ">4",
            "of device time",
            "advice",
        ),
        rows=rows,
        narrow=("class", "trials", "jobs", "to failure p50", "of device time", "advice"),
    )
