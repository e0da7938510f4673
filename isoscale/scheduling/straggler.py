"""When to move logical workers away from a slow executor, back to one that recovered, or off one for good.

The rule is fed with rounds of measured turn times and answers with new shares, rarely. A move needs

- *evidence*: at least `steps` steps, twice as many as such a thing has lasted before until it passed by itself, whose
  rounds agree so well, compared with how much rounds have varied so far, that the gain is no chance;
- *gain*: a step at least `gain` times as fast, which also earns the pause of the switch within the horizon;
- *no bad record*: a move that was undone, or did not help, doubles the evidence for the next one in that direction; one
  that proved right halves it again. So what comes and goes moves workers ever more rarely: in n steps about
  log2(n / steps) times at most, to and fro.

It does not replace devices, knows nothing of membership, and holds no clock: it counts steps. The same observations
always give the same answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isoscale.scheduling.planner import best_split, best_use
from isoscale.scheduling.speeds import Speeds
from isoscale.scheduling.trials import HORIZON, Trials
from isoscale.scheduling.turn_history import Round, TurnHistory, Vector, estimate, log_step

__all__ = ["Proposal", "StragglerRule"]

#: an executor that is set aside does not come back by itself: so many times the evidence, from so many rounds
_ASIDE_TIMES, _ASIDE_ROUNDS = 8, 5


@dataclass(frozen=True, slots=True)
class Proposal:
    """Better shares, and why."""

    #: 0 for executors to set aside
    shares: tuple[int, ...]
    #: the executor with the longest turns, and their length over the lower median
    slowest: int
    ratio: float
    #: how many times as fast a step will probably be
    gain: float


class StragglerRule:
    """Watches one job. Executors are compared if one's turns take more than `ratio` times the lower median (a
    straggler), or if its whole share takes less than the slowest executor's by that factor (it has room)."""

    def __init__(self, ratio: float = 1.2, steps: int = 10, gain: float = 1.02) -> None:
        if not (ratio > 1 and steps >= 1 and gain >= 1):
            raise ValueError(f"ratio={ratio}, steps={steps}, gain={gain}: need ratio > 1, steps >= 1, gain >= 1")
        self.ratio = ratio
        self.steps = steps
        self.gain = gain
        #: outlive moves and changes of membership
        self.speeds = Speeds()
        self._trials = Trials(steps)
        self._members: tuple[int, ...] = ()
        self._shares: tuple[int, ...] = ()
        self._history = TurnHistory(0)
        #: variance of a logarithm from round to round, as it was before these members were seen together
        self._expected = 0.0

    def observe(
        self, seen: Round, members: Sequence[int], shares: Sequence[int], *, pause_s: float = 0.0
    ) -> Proposal | None:
        """What to change, or None to leave things as they are. A switch is known to take `pause_s`.

        A round with a time that is no positive number says nothing. Other members start the comparison anew, other
        shares only its evidence.
        """
        self._follow(tuple(members), tuple(shares))
        if not seen.is_usable:
            return None
        self._history.add(seen, self._shares)
        self._trials.hear(seen, self._expected)
        self.speeds.learn(dict(zip(members, seen.turn_seconds, strict=True)))
        for window, covered in self._history.windows(self.steps):
            found = self._better(window, covered, pause_s)
            if found is not None:
                self._trials.propose(self._members, self._shares, found.shares, covered)
                self._history.fresh = 0
                return found
        return None

    def forget(self, executor: int) -> None:
        """It is gone, and its id is never used again."""
        self.speeds.forget(executor)
        self._trials.forget(executor)

    def _follow(self, members: tuple[int, ...], shares: tuple[int, ...]) -> None:
        if (members, shares) == (self._members, self._shares):
            return
        if members != self._members:
            self._history = TurnHistory(len(members))
            self._expected = self.speeds.variance(members)
        self._trials.moved(members, shares)
        self._members, self._shares, self._history.fresh = members, shares, 0

    def _better(self, window: int, covered: int, pause_s: float) -> Proposal | None:
        """What the last `window` rounds, of so many steps, ask for."""
        weights = self._history.steps[-window:] / covered
        mean = np.exp(weights @ np.log(self._history.times[-window:]))
        loads, median = np.array(self._shares) * mean, _median_low(mean)
        has_straggler = bool(np.any(mean > self.ratio * median))
        if not has_straggler and not np.any(loads * self.ratio < loads.max()):
            return None
        total, turns = sum(self._shares), mean.tolist()
        for split in dict.fromkeys((best_use(total, turns), best_split(total, turns))):
            # Where nobody is a straggler, who is slowest is chance: shares become more even, or stay.
            makes_sense = has_straggler or _unevenness(split) < _unevenness(self._shares)
            if makes_sense and split != self._shares and covered >= self._needed(split, window):
                gain = self._gain(split, weights, covered, pause_s)
                if gain is not None:
                    slowest = int(np.argmax(mean))
                    return Proposal(split, self._members[slowest], float(mean[slowest]) / median, gain)
        return None

    def _needed(self, split: tuple[int, ...], window: int) -> float:
        needed = self._trials.needed(self._members, self._shares, split)
        if 0 not in split:
            return needed
        return _ASIDE_TIMES * needed if window >= _ASIDE_ROUNDS else math.inf

    def _gain(self, split: tuple[int, ...], weights: Vector, covered: int, pause_s: float) -> float | None:
        """How many times as fast a step probably is with this split; None if that is too little, or may be chance."""
        history, window = self._history, len(weights)
        now = log_step(self._shares, history.times, history.rest)
        gains = now - log_step(split, history.times, history.rest)
        if covered < 2 * history.longest_passed(gains[:-window], self._shares):
            return None
        likely, sure = estimate(gains, weights, self._expected)
        if likely < math.log(self.gain) or sure <= 0:
            return None
        saved_s = -math.expm1(-sure) * math.exp(float(weights @ now[-window:]))
        return math.exp(likely) if saved_s * HORIZON * covered >= pause_s else None


def _unevenness(shares: Sequence[int]) -> int:
    return sum(share * share for share in shares)


def _median_low(values: Vector) -> float:
    middle = (len(values) - 1) // 2
    return float(np.partition(values, middle)[middle])
