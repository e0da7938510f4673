"""When to move logical workers away from a slow executor, or back to one that recovered.

The rule is fed with measured turn times and answers with new shares, rarely. It does not replace devices, does not
know communication, and holds no clock: it counts steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median_low

from isoscale.scheduling.planner import best_split, split_seconds

__all__ = ["StragglerRule"]


class StragglerRule:
    """Watches one job. An instance remembers; the same observations always give the same answers.

    An executor is *out of line* in a step if its turn takes more than `ratio` times the lower median of all members
    (a straggler), or if its whole share takes less than the slowest executor's by that factor (it has room: a slow
    device that recovered). When one has been out of line for `steps` steps in a row, the best split for the times
    measured over those steps is worked out, and proposed if it makes a step at least `gain` times faster.
    Either way counting starts again, so a split is worked out at most once in `steps` steps; a round costs O(E).
    """

    def __init__(self, ratio: float = 1.2, steps: int = 10, gain: float = 1.02) -> None:
        if not (ratio > 1 and steps >= 1 and gain >= 1):
            raise ValueError(f"ratio={ratio}, steps={steps}, gain={gain}: need ratio > 1, steps >= 1, gain >= 1")
        self.ratio = ratio
        self.steps = steps
        self.gain = gain
        #: executor with the longest turns when a split was last worked out, and its ratio to the lower median
        self.slowest: tuple[int, float] = (-1, 1.0)
        self._layout: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._streaks: dict[int, int] = {}
        #: the latest observations, as few as cover `steps` steps, and their sums weighted by steps
        self._window: deque[tuple[int, dict[int, float]]] = deque()
        self._covered = 0
        self._sums: dict[int, float] = {}

    def observe(
        self, turn_seconds: Mapping[int, float], steps: int, members: Sequence[int], shares: Sequence[int]
    ) -> tuple[int, ...] | None:
        """New shares for `members` in their order, or None to leave things as they are.

        `turn_seconds` holds the mean seconds of a turn by executor id over the last `steps` steps. Executors that are
        no members are ignored. A round that lacks a member says nothing and is skipped; another list of members or
        shares than last time starts the count anew.
        """
        layout = (tuple(members), tuple(shares))
        if layout != self._layout:
            self._layout = layout
            self._forget()
        if steps < 1 or not members or any(not turn_seconds.get(member, 0.0) > 0 for member in members):
            return None
        times = {member: float(turn_seconds[member]) for member in members}
        self._remember(steps, times)
        self._count(steps, times)
        if max(self._streaks.values()) < self.steps:
            return None
        mean = [self._sums[member] / self._covered for member in members]
        best = best_split(sum(shares), mean)
        slowest = max(range(len(mean)), key=lambda i: (mean[i], -i))
        self.slowest = (members[slowest], mean[slowest] / median_low(mean))
        self._forget()
        return best if split_seconds(shares, mean) >= self.gain * split_seconds(best, mean) else None

    def _count(self, steps: int, times: Mapping[int, float]) -> None:
        members, shares = self._layout
        median = median_low(times.values())
        slowest_load = max(share * times[member] for member, share in zip(members, shares, strict=True))
        for member, share in zip(members, shares, strict=True):
            out_of_line = times[member] > self.ratio * median or share * times[member] * self.ratio < slowest_load
            self._streaks[member] = self._streaks.get(member, 0) + steps if out_of_line else 0

    def _remember(self, steps: int, times: dict[int, float]) -> None:
        self._window.append((steps, times))
        self._covered += steps
        for member, seconds in times.items():
            self._sums[member] = self._sums.get(member, 0.0) + steps * seconds
        while self._covered - self._window[0][0] >= self.steps:
            old_steps, old_times = self._window.popleft()
            self._covered -= old_steps
            for member, seconds in old_times.items():
                self._sums[member] -= old_steps * seconds

    def _forget(self) -> None:
        self._streaks = {}
        self._window.clear()
        self._covered = 0
        self._sums = {}
