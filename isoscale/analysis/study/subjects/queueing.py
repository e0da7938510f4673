"""How long jobs wait, by size and tenant, and for what: their tenant's share, a full cluster, or scattered devices.

A job that waits while its tenant holds its quota waits for its **fair share**; else, if fewer devices are free than it
asks for, the cluster is **full**; else enough devices are free and the job still waits: they are scattered or kept for
others, which is **fragmentation** (Philly's table of causes). Without quotas the first and the last cannot be told
apart. The state is looked at eight times, evenly over the wait; the wait is split in proportion, and a job counts for
the cause of most of its wait.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isoscale.analysis.study.finding import Finding, Table, amount, hours, percent, times_table
from isoscale.analysis.study.statistics import by_size, cdf, spread
from isoscale.analysis.study.trace import SIZES, Trace
from isoscale.analysis.study.usage import Steps, in_use
from isoscale.analysis.words import duration

__all__ = ["CAUSES", "FREE", "queueing"]

CAUSES = ("fair share", "full", "fragmentation")
#: where nobody knows the quotas
FREE = "fair share or fragmentation"
_LOOKS = 8
_LONG_S = 600.0
_MOST_TENANTS = 20


def queueing(trace: Trace) -> Finding:
    jobs = trace.jobs
    waited = jobs.queue_s
    figures = by_size(waited, jobs)
    known = waited[np.isfinite(waited) & (jobs.devices > 0)]
    if not len(known):
        columns = [
            name for name, values in (("submit", jobs.submit_s), ("start", jobs.start_s)) if np.isnan(values).all()
        ]
        what = ", ".join(trace.lacking(name, f"{name} time") for name in columns) or "jobs with both times"
        missing = {"queue_s": what, "queue_causes": what}
        return Finding(key="queueing", title="Waiting", figures={"queue_s": figures}, missing=missing)
    long = {
        size: float((chosen >= _LONG_S).mean()) if len(chosen) else None
        for size in figures
        for chosen in [waited[jobs.of_size(size) & np.isfinite(waited)]]
    }
    again = _waits_again(trace)
    found: dict[str, object] = {
        "queue_s": figures,
        "queue_cdf": {name: cdf(waited[jobs.of_size(name)]) for name, _, _ in SIZES},
        "queue_over_10_min": long,
        "requeue_s": spread(again),
    }
    tables = [times_table("Waiting before the first start, by devices asked for", "devices", figures)]
    if jobs.tenant.known:
        tenants = _by_tenant(trace, waited)
        found["queue_s_by_tenant"] = tenants
        tables.append(times_table("Waiting by tenant", "tenant", tenants, brief=False))
    causes, missing = _causes(trace, waited)
    found["queue_causes"] = causes
    if causes:
        tables.append(_causes_table(causes))
    return Finding(
        key="queueing",
        title="Waiting",
        figures=found,
        tables=tables,
        says=f"Half of the jobs start {_within(float(np.median(known)))}; {percent(long['all'])} wait ten "
        "minutes or more.",
        missing=missing,
    )


def _within(seconds: float) -> str:
    return f"within {duration(seconds)}" if seconds else "at once"


def _waits_again(trace: Trace) -> NDArray[np.float64]:
    """From the end of an attempt to the start of the next one of the same job."""
    attempts = trace.attempts
    same = attempts.job[1:] == attempts.job[:-1]
    waits: NDArray[np.float64] = np.maximum((attempts.start_s[1:] - attempts.end_s[:-1])[same], 0.0)
    return waits


def _by_tenant(trace: Trace, waited: NDArray[np.float64]) -> dict[str, dict[str, object]]:
    labels = trace.jobs.tenant
    counts = np.bincount(labels.codes, minlength=len(labels.words))
    order = [code for code in np.argsort(-counts, kind="stable").tolist() if counts[code]][:_MOST_TENANTS]
    return {labels.words[code] or "(unknown)": spread(waited[labels.codes == code]) for code in order}


def _causes(trace: Trace, waited: NDArray[np.float64]) -> tuple[dict[str, object], dict[str, str]]:
    jobs = trace.jobs
    waiting = np.flatnonzero((waited > 0) & (jobs.devices > 0))
    used = in_use(trace)
    there = trace.capacity.most if trace.capacity is not None else used.most
    if not len(waiting):
        return {}, {}
    if not there:
        return {}, {"queue_causes": trace.lacking("capacity", "a list of machines")}
    missing = {}
    if not trace.quotas:
        missing["queue_causes.fair share"] = missing["queue_causes.fragmentation"] = trace.lacking(
            "quota", "devices of each tenant"
        )
    quota, by_tenant = _tenants(trace)
    places = (np.arange(_LOOKS) + 0.5) / _LOOKS
    at = jobs.submit_s[waiting][:, None] + waited[waiting][:, None] * places
    wanted = jobs.devices[waiting][:, None]
    capacity = _capacity_at(trace, at, there)
    full = used.at(at) + wanted > capacity
    fair = np.zeros_like(full)
    tenant = jobs.tenant.codes[waiting]
    for code, steps in by_tenant.items():
        rows = tenant == code
        fair[rows] = steps.at(at[rows]) + wanted[rows] > quota[code]
    kinds = np.where(fair, 0, np.where(full, 1, 2))
    shares = np.stack([(kinds == cause).mean(axis=1) for cause in range(len(CAUSES))], axis=1)
    mostly = shares.argmax(axis=1)
    result: dict[str, object] = {}
    for size in ("all", *(name for name, _, _ in SIZES)):
        rows = jobs.of_size(size)[waiting]
        seconds = (shares[rows] * waited[waiting][rows][:, None]).sum(axis=0)
        counted = {
            name: {"jobs": int((mostly[rows] == cause).sum()), "wait_s": float(seconds[cause])}
            for cause, name in enumerate(CAUSES)
        }
        # Without quotas, a job that waits beside enough free devices may wait for either.
        result[size] = counted if trace.quotas else {FREE: counted["fragmentation"], "full": counted["full"]}
    result["capacity"] = there
    result["capacity_source"] = trace.capacity.source if trace.capacity else "the most devices ever in use at once"
    return result, missing


def _tenants(trace: Trace) -> tuple[dict[int, float], dict[int, Steps]]:
    """Quota and devices in use over time of every tenant that has a quota, by its code."""
    words = trace.jobs.tenant.words
    quota = {words.index(tenant): devices for tenant, devices in trace.quotas.items() if tenant in words}
    return quota, {code: in_use(trace, trace.jobs.tenant.codes == code) for code in quota}


def _capacity_at(trace: Trace, at: NDArray[np.float64], otherwise: float) -> NDArray[np.float64]:
    if trace.capacity is None:
        return np.full_like(at, otherwise)
    place = np.searchsorted(trace.capacity.since_s, at, side="right") - 1
    levels: NDArray[np.float64] = trace.capacity.devices[np.maximum(place, 0)]
    return levels


def _causes_table(causes: dict[str, object]) -> Table:
    rows = []
    names = list(causes["all"]) if isinstance(causes["all"], dict) else []
    for size in ("all", *(name for name, _, _ in SIZES)):
        of_size = causes[size]
        assert isinstance(of_size, dict)
        jobs = sum(one["jobs"] for one in of_size.values())
        seconds = sum(one["wait_s"] for one in of_size.values())
        if not jobs:
            continue
        cells = [size, amount(jobs)]
        for of_cause in of_size.values():
            share = of_cause["wait_s"] / seconds if seconds else None
            cells.append(f"{amount(of_cause['jobs'])} ({percent(share, 0)} of the wait)")
        rows.append([*cells, hours(seconds)])
    return Table(
        title="What jobs waited for",
        columns=("devices", "jobs that waited", *names, "hours waited"),
        rows=rows,
        note=f"Capacity: {amount(float(str(causes['capacity'])))} devices, {causes['capacity_source']}.",
    )
