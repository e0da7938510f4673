"""How many logical workers each executor hosts: equally many, unless measured speeds say otherwise. Pure bookkeeping.

Says when logical workers should move from a slow executor to others; moving them is a change of generation, which
`runtime.rescale` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from isoscale.protocol import messages as m
from isoscale.scheduling.planner import best_split
from isoscale.scheduling.straggler import StragglerRule
from isoscale.types import Placement, Settings

__all__ = ["Balance", "Move"]

#: logical workers move if that makes a step this much faster: less is noise, and would go back and forth
_WORTH_MOVING = 1.1


@dataclass(frozen=True, slots=True)
class Move:
    """Better shares, and because of whom: its time over the median's."""

    shares: tuple[int, ...]
    slowest: int
    ratio: float


@dataclass(slots=True)
class Balance:
    num_logical_workers: int
    settings: Settings
    #: beats since all members have been heard
    _heard: dict[int, m.Beat] = field(default_factory=dict)
    _rule: StragglerRule = field(init=False)

    def __post_init__(self) -> None:
        self._rule = StragglerRule(self.settings.straggler_ratio, self.settings.straggler_steps, _WORTH_MOVING)

    def split(self, num_executors: int, turn_s: Sequence[float] | None) -> tuple[int, ...]:
        """Even, unless executors are known to differ by more than a straggler may."""
        known = turn_s is not None and self.settings.rebalance
        if turn_s is None or not known or max(turn_s) <= self.settings.straggler_ratio * min(turn_s):
            return Placement.even(self.num_logical_workers, num_executors).shares
        return best_split(self.num_logical_workers, list(turn_s))

    def begin_anew(self) -> None:
        """Another generation: what was measured in the last one is not compared."""
        self._heard = {}

    def forget(self, executor: int) -> None:
        self._heard.pop(executor, None)

    def hear(
        self, executor: int, beat: m.Beat, members: tuple[int, ...], shares: tuple[int, ...], *, may_move: bool
    ) -> Move | None:
        """A member's measured speeds. All members are compared when all have been heard, but not while a change is
        being made (`may_move`)."""
        self._heard[executor] = beat
        if len(self._heard) < len(members):
            return None
        heard, self._heard = self._heard, {}
        if not self.settings.rebalance or not may_move:
            return None
        times = {e: b.turn_s for e, b in heard.items()}
        better = self._rule.observe(times, min(b.steps for b in heard.values()), members, shares)
        return None if better is None or better == shares else Move(better, *self._rule.slowest)
