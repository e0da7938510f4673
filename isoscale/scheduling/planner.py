"""The best split of one job's logical workers over given devices, and EasyScale's figures for any plan.

A step lasts as long as its slowest executor: `max_i share_i * turn_i`, where `turn_i` is the time of one logical
worker's turn on executor i. `best_split` finds the smallest such maximum exactly, with work for every executor;
`best_use` leaves out those that would slow the others down with a single logical worker. Neither knows communication
(the same for every split of the same devices, less for fewer) or names logical ranks: shares are contiguous blocks in
the order of the executors given.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from isoscale.errors import UserError

__all__ = ["PlanFigures", "best_split", "best_use", "plan_figures", "split_seconds"]

# The water level is lowered by this much before it is rounded to whole workers, so that rounding errors can only leave
# more workers to the exact part.
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """EasyScale's Eq. 1 for one plan; C_i is the capability of device i in turns per second, A_i its units.

    A_i counts the turns that device i is given room for; a plan by kinds may have room for more than N turns.
    """

    #: (1a) sum of A_i, at least N
    capacity: int
    #: (1b) max A_i / C_i: seconds per step without communication
    step_s: float
    #: (1c) sum of (C_i - A_i / step_s), plus (capacity - N) / step_s: turns per second that nobody uses
    waste: float
    #: (1d) waste / sum of C_i
    waste_share: float
    #: (1e) sum of C_i, less waste: useful turns per second, which is N / step_s
    perf: float


def best_split(
    num_logical_workers: int, turn_seconds: Sequence[float], *, max_share: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Shares, one per executor and each at least 1, whose slowest executor is as fast as possible.

    Among equally fast splits it gives the one whose sorted loads are smallest throughout, then even shares, then larger
    shares first. `max_share` caps each executor. Takes O(E log E) for E executors, however many logical workers.

    >>> best_split(7, [1.0, 1.0, 1.0])
    (3, 2, 2)
    >>> best_split(16, [0.5, 0.5, 1.0, 1.0, 1.0])
    (5, 5, 2, 2, 2)
    """
    turns = [float(seconds) for seconds in turn_seconds]
    caps = [num_logical_workers] * len(turns) if max_share is None else [int(cap) for cap in max_share]
    _check(num_logical_workers, turns, caps)
    return tuple(_dealt(num_logical_workers, turns, caps, least=1))


def best_use(num_logical_workers: int, turn_seconds: Sequence[float]) -> tuple[int, ...]:
    """Shares, one per executor, of the fastest split there is if executors may also be left without work: share 0.

    Left out are exactly those whose single turn would take longer than the whole step of the others, so it is never
    slower than `best_split`, and equal to it where that is as fast.

    >>> best_use(4, [1.0, 1.0, 5.0]), best_split(4, [1.0, 1.0, 5.0])
    ((2, 2, 0), (2, 1, 1))
    """
    turns = [float(seconds) for seconds in turn_seconds]
    caps = [num_logical_workers] * len(turns)
    _check(num_logical_workers, turns, caps)
    fastest = split_seconds(_dealt(num_logical_workers, turns, caps, least=0), turns)
    used = [i for i, turn in enumerate(turns) if turn <= fastest]
    shares = [0] * len(turns)
    for i, share in zip(used, best_split(num_logical_workers, [turns[i] for i in used]), strict=True):
        shares[i] = share
    return tuple(shares)


def split_seconds(shares: Sequence[int], turn_seconds: Sequence[float]) -> float:
    """Seconds of a step's turns: the slowest executor's share times its turn."""
    return max(share * turn for share, turn in zip(shares, turn_seconds, strict=True))


def plan_figures(num_logical_workers: int, units: Sequence[int], turn_seconds: Sequence[float]) -> PlanFigures:
    """EasyScale's waste and performance of a plan that has room for `units[i]` turns on device i.

    >>> figures = plan_figures(5, [3, 1, 1], [0.5, 1.0, 1.0])
    >>> figures.step_s, round(figures.waste, 3), round(figures.waste_share, 3), round(figures.perf, 3)
    (1.5, 0.667, 0.167, 3.333)
    """
    capacity = sum(units)
    if capacity < num_logical_workers:
        raise ValueError(f"units={tuple(units)}: room for {capacity} of {num_logical_workers} logical workers")
    capabilities = [1.0 / turn for turn in turn_seconds]
    step_s = split_seconds(units, turn_seconds)
    total = math.fsum(capabilities)
    idle = math.fsum(c - a / step_s for c, a in zip(capabilities, units, strict=True))
    waste = max(0.0, idle + (capacity - num_logical_workers) / step_s)
    return PlanFigures(
        capacity=capacity, step_s=step_s, waste=waste, waste_share=waste / total, perf=num_logical_workers / step_s
    )


def _check(num_logical_workers: int, turns: Sequence[float], caps: Sequence[int]) -> None:
    if not turns or len(turns) > num_logical_workers:
        raise UserError(
            field="executors",
            value=len(turns),
            problem=f"{num_logical_workers} logical workers cannot give each executor at least one",
            remedy=f"use 1 to {num_logical_workers} executors",
        )
    if not all(0 < turn < math.inf for turn in turns):
        raise UserError(
            field="turn_seconds",
            value=tuple(turns),
            problem="a turn takes a positive, finite time",
            remedy="measure again",
        )
    if len(caps) != len(turns) or min(caps) < 1 or sum(caps) < num_logical_workers:
        raise UserError(
            field="max_share",
            value=tuple(caps),
            problem=f"these caps have no room for {num_logical_workers} logical workers on {len(turns)} executors",
            remedy="give one positive cap per executor, in sum at least the number of logical workers",
        )


def _dealt(num_logical_workers: int, turns: Sequence[float], caps: Sequence[int], *, least: int) -> list[int]:
    """The best shares of at least `least` each."""
    level = _water_level(num_logical_workers, turns, caps, least) * (1 - _SLACK)
    shares = [min(max(int(level / turn), least), cap) for turn, cap in zip(turns, caps, strict=True)]
    # Handing the rest out one by one, always to the smallest next load, continues what the level has begun: every
    # worker placed so far had a next load below it.
    heap = [((shares[i] + 1) * turns[i], shares[i] + 1, i) for i in range(len(turns)) if shares[i] < caps[i]]
    heapq.heapify(heap)
    for _ in range(num_logical_workers - sum(shares)):
        _, share, i = heap[0]
        shares[i] = share
        if share < caps[i]:
            heapq.heapreplace(heap, ((share + 1) * turns[i], share + 1, i))
        else:
            heapq.heappop(heap)
    return shares


def _water_level(num_logical_workers: int, turns: Sequence[float], caps: Sequence[int], least: int) -> float:
    """The T at which shares of T / turn_i, between `least` and cap_i, would sum to N if they could be fractions."""
    # The sum is piecewise linear and grows in T: executor i leaves `least` at T = least * turn_i, and reaches its cap
    # at cap_i * turn_i.
    bends = sorted(
        [(least * turn, 1.0 / turn, -least) for turn in turns]
        + [(cap * turn, -1.0 / turn, cap) for turn, cap in zip(turns, caps, strict=True)]
    )
    slope, constant, begin = 0.0, least * len(turns), bends[0][0]
    for bend, slope_change, constant_change in bends:
        if slope * bend + constant >= num_logical_workers:
            break
        slope += slope_change
        constant += constant_change
        begin = bend
    # The running slope has lost digits if turns differ by many orders; add that of the piece up afresh.
    slope = math.fsum(1.0 / turn for turn, cap in zip(turns, caps, strict=True) if least * turn <= begin < cap * turn)
    return max(begin, (num_logical_workers - constant) / slope) if slope > 0 else begin
