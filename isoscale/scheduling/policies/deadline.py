"""Deadlines first, after ElasticFlow: each job gets the fewest devices that end it in time, the rest goes by gain.

Jobs that declare their work and have a deadline are looked at in order of deadlines. A job's *minimum share* is the
smallest k such that k devices of a kind, or as many of them as earlier deadlines leave at each time, do its work in
time: progressive filling over the spans between deadlines. A job without one cannot be guaranteed: with `late="last"`
it runs on what is left (as do jobs without a deadline), with `late="reject"` it is refused when it comes, as in the
paper. Devices left over go one by one to whoever gains most speed-up (`greedy`), guaranteed jobs first where they tie.

ElasticFlow knows one kind; here (ours) a job takes the kind of which its minimum share is the smallest part. Each round
works everything out anew with what was learned; a start or a change is counted with its seconds.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.allocation import decisions_for
from isoscale.scheduling.changes import change_factor, movable_part, restart_s
from isoscale.scheduling.greedy import Seeker, share_over_kinds
from isoscale.scheduling.policies.counting import Planned, active_jobs, held_kind, kinds_of, place_counts, rate_table
from isoscale.scheduling.policy import register
from isoscale.scheduling.state import ClusterState, Decision, JobView, packed_shape

__all__ = ["Deadline"]

# Jobs with deadlines beyond so many are planned one by one against a profile that grows with them: enough is enough.
_MOST_GUARANTEED = 2000


@register("deadline", summary="ElasticFlow: fewest devices that meet each deadline, the rest by gain")
class Deadline:
    """`late` says what becomes of a job whose deadline cannot be met: "last" or "reject"."""

    interval_s = 60.0
    oracle = False
    watches_time = True
    gang = False

    def __init__(self, late: Literal["last", "reject"] = "last") -> None:
        self._late = late

    def decide(self, state: ClusterState) -> list[Decision]:
        whole, state = state, movable_part(state)
        jobs = active_jobs(state)
        planned, rejected = self._guarantee(state, jobs)
        left = dict(state.capacity_of)
        for kind, count in planned.values():
            left[kind] -= count
        # Who has a guarantee takes first; the others by priority and submission.
        waiting = sorted(jobs, key=lambda job: (job.name not in planned, -job.request.priority, job.order))
        waiting = [job for job in waiting if job.name not in rejected]
        shared = share_over_kinds([_seeker(state, job, planned.get(job.name)) for job in waiting], left)
        final = {job.name: one for job, one in zip(waiting, shared, strict=True) if one[1]}
        sizes = {kind: max(1, whole.cluster.node_size(kind)) for kind in whole.cluster.kinds}

        def batch(job: JobView, devices: Planned) -> int:
            if held_kind(state, job) == devices[0] and job.num_devices == devices[1]:
                return job.batch
            return job.speed.best_batch(packed_shape(*devices, sizes[devices[0]]))

        return decisions_for(state, place_counts(state, waiting, final, batch=batch), rejected=rejected)

    def _guarantee(self, state: ClusterState, jobs: Sequence[JobView]) -> tuple[dict[str, Planned], dict[str, str]]:
        """What each job that can be in time gets now, and why others are refused."""
        profiles = {kind: _Profile(state.now, count) for kind, count in state.capacity_of.items()}
        planned: dict[str, Planned] = {}
        rejected: dict[str, str] = {}
        with_deadline = [job for job in jobs if job.request.deadline_s is not None and job.name in state.remaining]
        # Running jobs keep their word before new ones are given theirs.
        with_deadline.sort(key=lambda job: (job.status == "pending", job.request.deadline_s, job.order))
        for job in with_deadline[:_MOST_GUARANTEED]:
            share = self._minimum_share(state, job, profiles)
            if share is not None:
                kind, count = share
                now = profiles[kind].take(count, job.request.deadline_s or 0.0)
                if now:
                    planned[job.name] = (kind, now)
            elif self._late == "reject" and job.status == "pending":
                rejected[job.name] = "its deadline cannot be met"
        return planned, rejected

    def _minimum_share(self, state: ClusterState, job: JobView, profiles: dict[str, _Profile]) -> Planned | None:
        """The kind and number of devices, by the part of the kind that they are; None if no number does."""
        best: tuple[float, str, int] | None = None
        deadline, held = job.request.deadline_s or 0.0, held_kind(state, job)
        for kind in kinds_of(state, job, "choose"):
            rates = np.maximum.accumulate(rate_table(state, job, kind))
            # Where it runs it goes on; anywhere else it starts, or changes, first.
            begin_s = 0.0 if kind == held else restart_s(state, job)
            count = profiles[kind].fewest(rates, state.remaining[job.name], deadline, begin_s, job.request.min_devices)
            if count:
                part = count / max(1, state.capacity_of[kind])
                candidate = (part * (0.999 if kind == held else 1.0), kind, count)
                best = candidate if best is None or candidate < best else best
        return None if best is None else (best[1], best[2])


class _Profile:
    """Free devices of one kind over time: `free[i]` from `times[i]` to the next, the last for ever."""

    def __init__(self, now: float, devices: int) -> None:
        self.times = [now]
        self.free = [devices]

    def fewest(self, rates: NDArray[np.float64], work: float, deadline: float, begin_s: float, least: int) -> int:
        """The smallest number of devices with which `work` is done by the deadline; 0 if none is."""
        if deadline <= self.times[0]:
            return 0
        ends = [*self.times[1:], np.inf]
        spans = np.clip(np.minimum(ends, deadline) - np.maximum(self.times, self.times[0] + begin_s), 0.0, None)
        free = np.array(self.free)
        low, high = max(1, least), len(rates) - 1

        def done(count: int) -> float:
            usable = np.minimum(free, count)
            usable = np.where(usable >= least, usable, 0)
            return float((rates[usable] * spans).sum())

        if high < low or done(high) < work:
            return 0
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if done(middle) >= work else (middle + 1, high)
        return low

    def take(self, count: int, until: float) -> int:
        """Reserves up to `count` devices from now to a time; how many there are now."""
        place = bisect.bisect_left(self.times, until)
        if place == len(self.times) or self.times[place] != until:
            self.times.insert(place, until)
            self.free.insert(place, self.free[place - 1])
        now = min(count, self.free[0])
        for index in range(place):
            self.free[index] -= min(count, self.free[index])
        return now


def _seeker(state: ClusterState, job: JobView, planned: Planned | None) -> Seeker:
    """The job among kinds, values relative to the rate on its smallest set of the kind that it prefers."""
    tables, one = {}, 0.0
    for kind in kinds_of(state, job, "choose"):
        rates = rate_table(state, job, kind)
        one = one or float(rates[np.argmax(rates > 0)])
        tables[kind] = np.where(rates > 0, rates / (one or 1.0), -np.inf)
    kind, size = planned or ("", 0)
    return Seeker(
        tables=tables,
        kind=kind,
        size=size,
        first_step=max(1, job.request.min_devices),
        factor=change_factor(state, job) if job.allocation else 1.0,
    )
