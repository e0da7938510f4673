"""How long jobs run, by size (Philly Fig. 2, Helios Fig. 5)."""

from __future__ import annotations

import numpy as np

from isoscale.analysis.study.finding import Finding, percent, times_table
from isoscale.analysis.study.statistics import by_size, cdf
from isoscale.analysis.study.trace import SIZES, Trace
from isoscale.analysis.words import duration

__all__ = ["run_time"]

_WEEK_S = 7 * 86_400.0


def run_time(trace: Trace) -> Finding:
    jobs = trace.jobs
    figures = by_size(jobs.run_s, jobs)
    known = jobs.run_s[np.isfinite(jobs.run_s) & (jobs.devices > 0)]
    if not len(known):
        missing = {"run_s": trace.lacking("run", "start and end, or duration, of a job")}
        return Finding(key="run_time", title="Run time", figures={"run_s": figures}, missing=missing)
    week = float((known > _WEEK_S).mean())
    found: dict[str, object] = {
        "run_s": figures,
        "run_cdf": {name: cdf(jobs.run_s[jobs.of_size(name)]) for name, _, _ in SIZES},
        "run_over_a_week": week,
    }
    tables = [times_table("Run time by devices asked for", "devices", figures)]
    return Finding(
        key="run_time",
        title="Run time",
        figures=found,
        tables=tables,
        says=f"Half of the jobs run for at most {duration(float(np.median(known)))}; {percent(week, 2)} run for more "
        "than a week.",
    )
