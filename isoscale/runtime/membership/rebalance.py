"""How many logical workers each executor hosts: equally many, unless measured speeds say otherwise. Pure bookkeeping.

Turns what executors measured into comparable rounds, asks the rule (`scheduling.straggler`) and says when logical
workers should move, or an executor be set aside. Doing so is a change of generation, which
`runtime.membership.rescaling` makes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from isoscale.protocol import messages as m
from isoscale.scheduling.planner import best_split, split_seconds
from isoscale.scheduling.speeds import Speeds
from isoscale.scheduling.straggler import Round, StragglerRule
from isoscale.types import Placement, Settings

__all__ = ["Move", "Rebalance"]

#: logical workers move if that makes a step this much faster: less is not worth the trouble
_WORTH_MOVING = 1.1
#: weight of the newest measurement of what changes slowly
_NEWEST = 0.2


@dataclass(frozen=True, slots=True)
class Move:
    """Better shares of those who stay, who is set aside, and because of whom: its time over the median's."""

    shares: tuple[int, ...]
    aside: tuple[int, ...]
    slowest: int
    ratio: float
    #: how many times as fast a step will be
    gain: float


@dataclass(slots=True)
class Rebalance:
    num_logical_workers: int
    settings: Settings
    #: beats since all members have been heard
    _heard: dict[int, m.Beat] = field(default_factory=dict)
    #: seconds of a turn over those of a step's last one
    _over_last: float | None = None
    #: outlive moves and changes of membership
    _speeds: Speeds = field(default_factory=Speeds)
    #: what a switch costs; 0 before the first
    pause_s: float = 0.0
    _rule: StragglerRule = field(init=False)

    def __post_init__(self) -> None:
        self._rule = StragglerRule(self.settings.straggler_ratio, self.settings.straggler_steps, _WORTH_MOVING)

    def split(self, executors: Sequence[int], kinds: Sequence[str]) -> tuple[int, ...]:
        """Even, unless executors surely differ by more than a straggler may and another split is worth it."""
        even = Placement.even(self.num_logical_workers, len(executors)).shares
        speeds = self._speeds
        if not self.settings.rebalance or not speeds.surely_differ(executors, self.settings.straggler_ratio):
            return even
        turns = speeds.relative(executors, kinds)
        best = best_split(self.num_logical_workers, turns)
        return best if split_seconds(even, turns) >= _WORTH_MOVING * split_seconds(best, turns) else even

    def begin_anew(self) -> None:
        """Another generation: a beat of the last one is not compared with one of this."""
        self._heard = {}

    def forget(self, executor: int) -> None:
        self._heard.pop(executor, None)
        self._speeds.forget(executor)

    def switched(self, pause_s: float) -> None:
        """A change of generation was made, and training stood still for so long."""
        self.pause_s = pause_s if not self.pause_s else (1 - _NEWEST) * self.pause_s + _NEWEST * pause_s

    def measure(
        self, executor: int, beat: m.Beat, members: tuple[int, ...], shares: tuple[int, ...], *, may_move: bool
    ) -> Move | None:
        """A member's measured speeds. All members are compared when all have been heard, but not while a change is
        being made (`may_move`)."""
        self._heard[executor] = beat
        if len(self._heard) < len(members):
            return None
        heard, self._heard = self._heard, {}
        if not self.settings.rebalance or not may_move or heard.keys() != set(members):
            return None
        beats = [heard[e] for e in members]
        seen = Round(
            min(b.steps for b in beats), self._one_more_turn(beats, shares), max(0.0, min(b.exchange_s for b in beats))
        )
        if seen.is_usable:
            self._speeds.learn(dict(zip(members, seen.turn_seconds, strict=True)))
        found = self._rule.observe(seen, members, shares, pause_s=self.pause_s)
        if found is None:
            return None
        aside = tuple(e for e, share in zip(members, found.shares, strict=True) if not share)
        return Move(tuple(filter(None, found.shares)), aside, found.slowest, found.ratio, found.gain)

    def _one_more_turn(self, beats: Sequence[m.Beat], shares: Sequence[int]) -> tuple[float, ...]:
        """Seconds that another turn would take each. The last turn of a step has the exchange in it, so a mean over few
        turns is longer than one over many: without this an executor with a single turn would look slow."""
        ratios = [_over_last(beat, share) for beat, share in zip(beats, shares, strict=True) if share > 1]
        if any(ratios):
            newest, known = math.log(median(filter(None, ratios))), self._over_last
            self._over_last = math.exp(newest if known is None else (1 - _NEWEST) * math.log(known) + _NEWEST * newest)
        last = 1 / (self._over_last or 1.0)
        return tuple(beat.turn_s * share / (share - 1 + last) for beat, share in zip(beats, shares, strict=True))


def _over_last(beat: m.Beat, share: int) -> float:
    """A turn before the last one of a step, on average, over the last one; 0 if that was not measured."""
    before = (share * beat.turn_s - beat.last_turn_s) / (share - 1)
    return before / beat.last_turn_s if beat.last_turn_s > 0 and before > 0 else 0.0
