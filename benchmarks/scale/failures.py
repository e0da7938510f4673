"""A job on devices that fail, in virtual time: how much of its time it trains. Discrete events, by seed; pure.

Failures of a device come as a Poisson process. Useful time is what the job would have taken on all its devices without
failures; goodput is that over the time it took.

`elastic`: survivors hold the state and go on after a pause; the step that was under way is part of that pause. Until
somebody comes in place of the dead one, its logical workers are hosted by others, and a step takes as long as the
fullest executor. `restarted`: everybody goes back to the last checkpoint, which Daly's formula describes.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    executors: int
    #: logical workers per executor while all are there
    workers_each: int = 1
    #: training stands still for so long after a failure; one more meanwhile begins it anew
    pause_s: float
    #: devices that wait to come in, and how long that takes from the failure on
    spares: int = 0
    join_s: float = 0.0
    #: a broken device is back after so long, as a spare
    repair_s: float = 0.0
    #: failures that take everybody, of all; then the job goes back to a checkpoint, so old and after so long
    all_share: float = 0.0
    checkpoint_age_s: float = 0.0
    restart_s: float = 0.0

    def speed(self, missing: int) -> float:
        """Of training with so many executors fewer, over that with all."""
        left = self.executors - missing
        if left < 1:
            return 0.0
        return self.workers_each / math.ceil(self.executors * self.workers_each / left)


def elastic(job: Elastic, mtbf_s: float, useful_s: float, seed: int) -> float:
    """Goodput of one run. `mtbf_s` is one device's."""
    draw = random.Random(seed)
    now = done = stands_until = 0.0
    missing, spares = 0, job.spares
    #: when somebody comes in, or a device is repaired
    events: list[tuple[float, str]] = []
    fails_at = draw.expovariate(job.executors / mtbf_s)
    while True:
        at = min(fails_at, events[0][0] if events else math.inf)
        speed, begins = job.speed(missing), max(now, stands_until)
        if speed > 0 and begins < at and done + (at - begins) * speed >= useful_s:
            return useful_s / (begins + (useful_s - done) / speed)
        done += max(0.0, at - begins) * speed
        now = at
        if events and events[0][0] <= fails_at:
            sort = heapq.heappop(events)[1]
            if sort == "repaired":
                spares += 1
            else:
                missing -= 1
        else:
            missing += 1
            heapq.heappush(events, (now + job.repair_s, "repaired"))
            stands_until = now + job.pause_s
            if job.all_share and draw.random() < job.all_share:
                done = max(0.0, done - job.checkpoint_age_s * draw.random())
                stands_until = now + job.restart_s
        # Whoever is missing and has nobody on the way to its place gets the next spare.
        coming = sum(1 for _, sort in events if sort == "joins")
        for _ in range(min(spares, missing - coming)):
            spares -= 1
            heapq.heappush(events, (now + job.join_s, "joins"))
        left = job.executors - missing
        # Without memory: drawing anew for those who are left changes nothing.
        fails_at = now + draw.expovariate(left / mtbf_s) if left > 0 else math.inf


def elastic_closed_form(pause_s: float, executors: int, mtbf_s: float) -> float:
    """With somebody in the dead one's place at once: the share of time in which no pause is.

    Each failure begins a pause anew, so the job trains at a moment if there was none in the last `pause_s`.
    """
    return math.exp(-pause_s * executors / mtbf_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    executors: int
    #: useful time between two checkpoints, and what writing one takes
    every_s: float
    write_s: float
    #: from a failure to training again, from the last checkpoint
    restart_s: float


def restarted(job: Restarted, mtbf_s: float, useful_s: float, seed: int) -> float:
    """Goodput of one run. Failures come while it trains, writes and restarts."""
    draw = random.Random(seed)
    mean_s = mtbf_s / job.executors
    now = done = 0.0
    fails_at = draw.expovariate(1 / mean_s)
    while done < useful_s:
        segment = min(job.every_s, useful_s - done)
        needs = segment + (job.write_s if done + segment < useful_s else 0.0)
        if now + needs <= fails_at:
            now, done = now + needs, done + segment
            continue
        # Restarts that fail are begun again.
        while True:
            now = fails_at
            fails_at = now + draw.expovariate(1 / mean_s)
            if now + job.restart_s <= fails_at:
                now += job.restart_s
                break
            if now > 1e4 * useful_s:
                return 0.0
        if now > 1e4 * useful_s:
            return 0.0
    return useful_s / now


def daly(job: Restarted, mtbf_s: float) -> float:
    """Goodput by Daly's complete model (FGCS 22, 2006): T = M exp(R/M) (exp((t + w)/M) - 1) useful / t."""
    mean_s = mtbf_s / job.executors
    exponent = (job.every_s + job.write_s) / mean_s
    if max(exponent, job.restart_s / mean_s) > 600:
        return 0.0
    return job.every_s / (mean_s * math.exp(job.restart_s / mean_s) * math.expm1(exponent))


def best_interval(write_s: float, mean_s: float) -> float:
    """Daly's estimate of the best time between checkpoints; at first order Young's sqrt(2 w M).

    >>> round(best_interval(300, 24 * 3600) / 60), round(best_interval(300, 6 * 3600) / 60)
    (117, 57)
    """
    if write_s >= 2 * mean_s:
        return mean_s
    root = math.sqrt(2 * write_s * mean_s)
    ratio = write_s / (2 * mean_s)
    return root * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s
