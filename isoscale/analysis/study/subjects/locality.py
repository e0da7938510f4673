"""Waiting and running against the number of machines that a job was spread over (Philly Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isoscale.analysis.study.finding import Finding, times_table
from isoscale.analysis.study.statistics import spread
from isoscale.analysis.study.trace import Trace
from isoscale.analysis.words import count, duration

__all__ = ["locality"]

#: smaller jobs fit on one machine nearly always
_LEAST_DEVICES = 5
_MOST_ROWS = 12


def locality(trace: Trace) -> Finding:
    jobs = trace.jobs
    chosen = (jobs.devices >= _LEAST_DEVICES) & (jobs.machines > 0)
    if not chosen.any():
        machines = "" if (jobs.machines > 0).any() else trace.lacking("machines", "number of machines of a job")
        missing = {"locality": machines or f"jobs with {_LEAST_DEVICES} devices or more"}
        return Finding(key="locality", title="Locality", figures={"locality": {}}, missing=missing)
    waits, runs = {}, {}
    for machines in np.unique(jobs.machines[chosen]).tolist()[:_MOST_ROWS]:
        rows = chosen & (jobs.machines == machines)
        waits[str(machines)] = spread(jobs.queue_s[rows])
        runs[str(machines)] = spread(jobs.run_s[rows])
    sizes = {
        str(size): {
            str(machines): {"queue_s": spread(jobs.queue_s[rows]), "run_s": spread(jobs.run_s[rows])}
            for machines in np.unique(jobs.machines[chosen & (jobs.devices == size)]).tolist()
            for rows in [chosen & (jobs.devices == size) & (jobs.machines == machines)]
        }
        for size in (8, 16)
    }
    figures = {"queue_s_by_machines": waits, "run_s_by_machines": runs, "by_devices_and_machines": sizes}
    return Finding(
        key="locality",
        title="Locality",
        figures={"locality": figures},
        tables=[
            times_table(
                f"Waiting of jobs with {_LEAST_DEVICES} devices or more, by machines", "machines", waits, brief=False
            ),
            times_table("Run time of these jobs", "machines", runs, brief=False),
        ],
        says=_says(waits),
    )


def _says(waits: Mapping[str, Mapping[str, object]]) -> str:
    """Median waits on the fewest and on the most machines."""
    known = [(int(machines), one["p50"]) for machines, one in waits.items() if isinstance(one["p50"], float)]
    if len(known) < 2:
        return ""
    (few, short), (many, long) = known[0], known[-1]
    return (
        f"Jobs with {_LEAST_DEVICES} devices or more wait {_time(short)} in the median on {count(few, 'machine')}, "
        f"{_time(long)} on {many}."
    )


def _time(seconds: object) -> str:
    return duration(seconds) if isinstance(seconds, float) else "-"
