"""What no scheduler can exceed: bounds on jobs completed and on mean completion time, for a set of jobs and devices.

Both let every job run at its cheapest, in device-seconds, and share devices like a fluid: whoever has gangs, decides in
rounds or cannot see the future does no better. They say what was there to be gained.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One job: when it may first run, its work in device-seconds at its cheapest, its seconds at its fastest."""

    submitted_s: float
    begin_s: float
    device_s: float
    fastest_s: float


def most_completed(jobs: Sequence[Demand], num_devices: int, end_s: float) -> int:
    """The most jobs that can be complete at `end_s`.

    Seen from the end, jobs have deadlines instead of arrivals, and the work of those chosen must fit before each of
    them. Taking jobs by deadline and dropping the largest when they do not fit (Moore and Hodgson) is optimal.
    """
    chosen: list[float] = []  # a heap, the largest first
    total = 0.0
    for job in sorted(jobs, key=lambda job: -job.begin_s):
        span = end_s - job.begin_s
        if job.fastest_s > span:
            continue
        heapq.heappush(chosen, -job.device_s)
        total += job.device_s
        while total > num_devices * span:
            total += heapq.heappop(chosen)
    return len(chosen)


def least_mean_time(jobs: Sequence[Demand], num_devices: int) -> float:
    """Seconds from submission to completion, on average, that cannot be undercut if every job is to be completed.

    The larger of two: every job at its fastest from its first moment; and one machine of all devices that always works
    on the job nearest to its end, which is optimal for one machine.
    """
    alone = sum(job.begin_s + job.fastest_s - job.submitted_s for job in jobs) / len(jobs)
    waiting: list[float] = []
    finished, now = 0.0, 0.0
    ordered = sorted(jobs, key=lambda job: job.begin_s)
    for position, job in enumerate(ordered):
        now = max(now, job.begin_s)
        heapq.heappush(waiting, job.device_s / num_devices)
        until = ordered[position + 1].begin_s if position + 1 < len(ordered) else float("inf")
        while waiting and now < until:
            seconds = heapq.heappop(waiting)
            if now + seconds > until:
                heapq.heappush(waiting, now + seconds - until)
                now = until
            else:
                now += seconds
                finished += now
    together = (finished - sum(job.submitted_s for job in jobs)) / len(jobs)
    return max(alone, together)
