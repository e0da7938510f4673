"""Simulated policies as rows of text: the same on the terminal, on the page and in the documentation."""

from __future__ import annotations

import math
from collections.abc import Mapping

from isoscale.analysis.simulation_values import PolicyRun
from isoscale.analysis.words import count, duration
from isoscale.sim.result import Details

__all__ = ["COLUMNS", "cells", "failures_line"]

#: heading -> what it means
COLUMNS: Mapping[str, str] = {
    "policy": "how devices were shared out; an oracle knows what a live scheduler cannot",
    "mean JCT": "mean time from a job's submission to its end",
    "p50": "half of the jobs took no longer",
    "p99": "99 of 100 jobs took no longer",
    "makespan": "from the first submission to the last completion",
    "queueing": "mean time from submission to the first device",
    "held": "share of the devices' time in which a job held them",
    "computing": "share in which they computed: no start, pause, exchange or interference",
    "rescales": "changes of a job's devices or batch after its first start",
    "unfair": "99th percentile of completion time over what a fair share would have given; above 1 is worse than fair",
    "decision": "median wall-clock time of one decision",
    "done": "jobs that finished",
}


def cells(run: PolicyRun) -> list[str]:
    """One row of the table, in the order of COLUMNS."""
    summary = run.summary
    times = (summary.mean_jct_s, summary.p50_jct_s, summary.p99_jct_s, summary.makespan_s, summary.mean_queue_s)
    return [
        f"{run.policy} (oracle)" if run.oracle else run.policy,
        *(_seconds(value) for value in times),
        f"{summary.allocated_utilisation:.1%}",
        f"{summary.busy_utilisation:.1%}",
        f"{summary.rescales:,.0f}",
        f"{run.details.unfairness_p99:.2f}" if not math.isnan(run.details.unfairness_p99) else "-",
        duration(summary.decision_ms_p50 / 1e3),
        f"{summary.jobs_finished:,.0f}",
    ]


def failures_line(details: Details) -> str:
    """What became of trials that failed, in a sentence."""
    trials = sum(row[0] for row in details.failures.values())
    return (
        f"{count(trials, 'trial')} failed, {details.retries:,} retried, {count(details.jobs_failed, 'job')} given up, "
        f"{details.failed_device_h:,.1f} device-hours in trials that failed"
    )


def _seconds(value: float) -> str:
    """Seconds, which compare at a glance, as long as they are short.

    >>> _seconds(0.25), _seconds(4267.006), _seconds(1e6), _seconds(math.nan)
    ('0.2 s', '4,267 s', '11.6 d', '-')
    """
    if math.isnan(value):
        return "-"
    return f"{value:,.{0 if value >= 10 else 1}f} s" if value < 100_000 else f"{value / 86_400:,.1f} d"
