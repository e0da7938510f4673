"""What our own logs tell beyond others: changes of size and their cost, lost work, allocation against demand.

Of a simulated policy the figures of its `summary.json` are computed again from the log, and are the same to the bit.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from isoscale.analysis.study.finding import Finding, Table, amount, hours, percent
from isoscale.analysis.study.own_log import OwnLog
from isoscale.analysis.study.statistics import spread
from isoscale.analysis.study.trace import STATUSES, Trace
from isoscale.analysis.words import duration

__all__ = ["own", "summary_again"]

_PASSED = STATUSES.index("passed")


def own(trace: Trace) -> Finding:
    log = trace.own
    title = "Elasticity"
    if log is None:
        missing = {"own": f"rescales, pauses and forecasts (only our own logs have them; this is {trace.format})"}
        return Finding(key="own", title=title, figures={"own": {}}, missing=missing)
    pauses = np.array([math.nan if one.pause_s is None else one.pause_s for one in log.resizes])
    grown = sum(one.after > one.before > 0 for one in log.resizes)
    shrunk = sum(one.before > one.after > 0 for one in log.resizes)
    paused = sum(one.after == 0 for one in log.resizes)
    reasons: dict[str, int] = {}
    for one in log.resizes:
        reason = one.reason.split(":")[0][:60]
        reasons[reason] = reasons.get(reason, 0) + 1
    stood_s = _stood_s(log)
    figures: dict[str, object] = {
        "source": log.source,
        "rescales": sum(one.after > 0 for one in log.resizes),
        "grown": grown,
        "shrunk": shrunk,
        "paused": paused,
        "pause_s": spread(pauses),
        "device_s_in_pauses": stood_s,
        "reasons": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:20]),
        "steps_redone": log.steps_redone,
        "redone_s": log.redone_s,
        "executors_lost": log.executors_lost,
        "jobs_rejected": log.jobs_rejected,
        "retries": log.retries,
        "allocation": _allocation(trace, log),
    }
    missing = {}
    if log.forecasts:
        figures["forecast_errors"] = {
            what: spread(np.array([came - told for told, came in pairs])) for what, pairs in log.forecasts.items()
        }
    else:
        missing["own.forecast_errors"] = trace.lacking("forecast", "forecasts (a service's STATE)")
    if log.steps_redone is None:
        missing["own.steps_redone"] = trace.lacking("redone", "steps done again")
    if log.source == "simulated":
        figures["summary"] = summary_again(trace)
        missing["own.summary.decision_ms_p50"] = "wall-clock times of decisions (summary.json has them, a log does not)"
    rows = [
        ["changes of size", amount(len(log.resizes))],
        ["grown, shrunk, paused", f"{amount(grown)}, {amount(shrunk)}, {amount(paused)}"],
        ["device-hours standing still in changes", hours(stood_s)],
    ]
    known = pauses[np.isfinite(pauses)]
    if len(known):
        rows.append(["longest pause", duration(float(known.max()))])
    if log.steps_redone is not None:
        rows.append(["steps done again", f"{amount(log.steps_redone)} ({duration(log.redone_s or 0.0)})"])
    if log.executors_lost is not None:
        rows.append(["executors lost", amount(log.executors_lost)])
    allocation = figures["allocation"]
    share = allocation.get("share") if isinstance(allocation, dict) else None
    if isinstance(share, float):
        rows.append(["held, of what was asked for", percent(share)])
    return Finding(
        key="own",
        title=title,
        figures={"own": figures},
        tables=[Table(title="Changes of size, and what they cost", columns=("", ""), rows=rows)],
        says=f"Jobs changed their size {len(log.resizes):,} times; {hours(stood_s)} device-hours stood still for it.",
        missing=missing,
    )


def summary_again(trace: Trace) -> dict[str, float | int | None]:
    """The simulator's summary (`sim.result.Summary`), from its log."""
    jobs, log = trace.jobs, trace.own
    assert log is not None
    done = jobs.status == _PASSED
    jct = (jobs.end_s - jobs.submit_s)[done]
    begin = float(jobs.submit_s.min()) if len(jobs) else 0.0
    end = float(jobs.end_s[done].max()) if done.any() else log.end_s
    there = trace.capacity.seconds(begin, end) if trace.capacity is not None else 0.0
    held = trace.holdings
    held_s = math.fsum(((held.end_s - held.begin_s) * held.devices).tolist())
    busy_s = math.fsum(log.busy_s[np.isfinite(log.busy_s)].tolist())
    waited = (jobs.start_s - jobs.submit_s)[np.isfinite(jobs.start_s)]
    return {
        "mean_jct_s": _mean(jct),
        "p50_jct_s": float(np.percentile(jct, 50)) if len(jct) else None,
        "p99_jct_s": float(np.percentile(jct, 99)) if len(jct) else None,
        "makespan_s": end - begin,
        "mean_queue_s": _mean(waited),
        "allocated_utilisation": held_s / there if there else 0.0,
        "busy_utilisation": busy_s / there if there else 0.0,
        "rescales": sum(one.after > 0 for one in log.resizes),
        "jobs_finished": int(done.sum()),
    }


def _mean(values: NDArray[np.float64]) -> float | None:
    return math.fsum(values.tolist()) / len(values) if len(values) else None


def _stood_s(log: OwnLog) -> float:
    return math.fsum((one.pause_s or 0.0) * max(one.before, one.after) for one in log.resizes)


def _allocation(trace: Trace, log: OwnLog) -> dict[str, object]:
    """Device-seconds held, over what jobs asked for from their submission to their end."""
    jobs = trace.jobs
    ended = np.where(np.isfinite(jobs.end_s), jobs.end_s, log.end_s)
    asked_s = (
        float((log.wanted * np.maximum(ended - jobs.submit_s, 0.0)).sum()) if len(log.wanted) == len(jobs) else 0.0
    )
    held_s = float(trace.device_s.sum())
    return {"held_device_s": held_s, "asked_device_s": asked_s, "share": held_s / asked_s if asked_s else None}
