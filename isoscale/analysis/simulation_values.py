"""From a simulation's outcome to what figures show: sorted completion times, levels over time, bars of a Gantt chart.

Bounded: however long the trace, a few hundred points and a few hundred rows. Reads outcomes, draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isoscale.sim.engine import Outcome
from isoscale.sim.ledger import level_over_time
from isoscale.sim.result import Details, Summary, average, completion_times, details, summarise

__all__ = ["Bar", "GanttRow", "PolicyRun", "policy_run"]

Floats = NDArray[np.float64]

#: a figure is about this many pixels wide
_BINS = 240
MAX_ROWS = 160


@dataclass(frozen=True, slots=True)
class Bar:
    """Devices that a job held for a while."""

    begin: float
    end: float
    devices: int


@dataclass(frozen=True, slots=True)
class GanttRow:
    """One job: from submission to end, with what it held in between."""

    name: str
    submitted: float
    ended: float
    requested: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """One policy's results: summary over all seeds, pictures of the first."""

    policy: str
    oracle: bool
    summary: Summary
    details: Details
    #: ascending, of all seeds
    jcts: Floats
    #: edges of bins in seconds since the first submission; shares of the largest capacity in each bin
    edges: Floats
    capacity: Floats
    allocated: Floats
    busy: Floats
    rows: tuple[GanttRow, ...]
    num_jobs: int
    num_devices: int


def policy_run(policy: str, outcomes: Sequence[Outcome], *, oracle: bool = False) -> PolicyRun:
    first = outcomes[0]
    begin = min((job.request.submitted_s for job in first.jobs), default=0.0)
    end = max(first.end_s, begin + 1.0)
    edges = np.linspace(begin, end, _BINS + 1)
    most = max(devices for _, devices in first.ledger.capacity)
    since = [t for t, _ in first.ledger.capacity]
    capacity = level_over_time(since, [*since[1:], end], [devices for _, devices in first.ledger.capacity], edges)
    held, ran = first.ledger.held, first.ledger.ran
    allocated = level_over_time([h[1] for h in held], [h[2] for h in held], [h[3] for h in held], edges)
    busy = level_over_time([r[0] for r in ran], [r[1] for r in ran], [r[2] for r in ran], edges)
    return PolicyRun(
        policy=policy,
        oracle=oracle,
        summary=average([summarise(outcome) for outcome in outcomes]),
        details=details(first),
        jcts=np.sort(np.concatenate([completion_times(outcome) for outcome in outcomes])),
        edges=edges - begin,
        capacity=capacity / most,
        allocated=allocated / most,
        busy=busy / most,
        rows=_rows(first, begin),
        num_jobs=len(first.jobs),
        num_devices=most,
    )


def _rows(outcome: Outcome, begin: float) -> tuple[GanttRow, ...]:
    """At most MAX_ROWS jobs, those that ask for most device-time, in order of submission; the same for every policy."""
    order = list(range(len(outcome.jobs)))
    if len(order) > MAX_ROWS:
        order.sort(key=lambda index: (-_device_time(outcome, index), index))
    order = sorted(order[:MAX_ROWS], key=lambda index: (outcome.jobs[index].request.submitted_s, index))
    chosen = set(order)
    bars: dict[int, list[Bar]] = {index: [] for index in order}
    for index, since, until, devices in outcome.ledger.held:
        if index in chosen:
            bars[index].append(Bar(since - begin, until - begin, devices))
    rows = []
    for index in order:
        request, finished = outcome.jobs[index].request, outcome.finished_s[index]
        ended = (finished if finished == finished else outcome.end_s) - begin
        rows.append(
            GanttRow(request.name, request.submitted_s - begin, ended, request.requested_devices, tuple(bars[index]))
        )
    return tuple(rows)


def _device_time(outcome: Outcome, index: int) -> float:
    job = outcome.jobs[index]
    return job.isolated_s * job.request.requested_devices
