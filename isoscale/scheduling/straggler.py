"""When to move logical workers away from a slow executor, back to one that recovered, or off one for good.

The rule is fed with rounds of measured turn times and answers with new shares, rarely. Every round can be asked how
long a step would have taken with other shares. So a *claim*, that some shares are better than the present ones, is
counted in steps: rounds that bear it out add theirs, others take away twice theirs, and at nothing left it has passed.

- *Evidence*: a move is proposed when its claim has come to `steps` steps.
- *Gain*: a step at least `gain` times as fast, which also earns the pause of the switch if it goes on for a while.
- *Memory*: a move whose claim passes soon is undone. Whatever passes soon, before or after its move was made, has
  misled: from then on twice the steps for which it lasted are asked for. So what comes and goes moves workers ever more
  rarely, to and fro.

It does not replace devices, knows nothing of membership, and holds no clock: it counts steps. The same observations
always give the same answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from isoscale.scheduling.planner import best_split, best_use, split_seconds

__all__ = ["Proposal", "Round", "StragglerRule"]

Shares = tuple[int, ...]

#: steps that a round takes away from a claim that it does not bear out, for each of its own
_AGAINST = 2
#: what was so for n steps is expected for this many times n more; a move that goes on to be right for as long was right
_LASTING = 20
#: no noise makes it ask for more than so many times the usual evidence
_MOST_TIMES = 100
#: an executor that is set aside does not come back by itself: so many times the evidence, from so many rounds
_ASIDE_TIMES, _ASIDE_ROUNDS = 8, 8


@dataclass(frozen=True, slots=True)
class Round:
    """What all members measured over the same steps, in their order."""

    steps: int
    #: seconds of one more turn
    turn_seconds: tuple[float, ...]
    #: seconds of a step that no split changes
    rest_s: float = 0.0

    @property
    def is_usable(self) -> bool:
        times = (*self.turn_seconds, 1.0 + self.rest_s)
        return self.steps >= 1 and bool(self.turn_seconds) and all(0 < t < math.inf for t in times)

    def step_s(self, shares: Shares) -> float:
        """What a step would have taken with these shares."""
        return split_seconds(shares, self.turn_seconds) + self.rest_s

    def gain(self, before: Shares, after: Shares) -> float:
        """How many times as fast it would have been with those shares."""
        return self.step_s(before) / self.step_s(after)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Better shares, and why."""

    #: 0 for executors to set aside
    shares: Shares
    #: the executor with the longest turns, and their length over the lower median
    slowest: int
    ratio: float
    #: how many times as fast a step will probably be
    gain: float


@dataclass(slots=True)
class _Claim:
    """That `after` are better shares than `before`."""

    before: Shares
    after: Shares
    #: all rounds that bear it out, as one
    mean: Round
    #: steps for it, less those against it
    score: float
    rounds: int = 1
    #: what `score` was when the move was made, 0 before
    evidence: float = 0

    def weigh(self, seen: Round, bears_out: bool) -> bool:
        """Another round. False if the claim has passed."""
        if not bears_out:
            self.score -= _AGAINST * seen.steps
            return self.score > 0
        self.mean = _merged(self.mean, seen)
        self.rounds += 1
        # However long it went on: what passes shall be seen to pass.
        self.score = min(self.score + seen.steps, _AGAINST * self.evidence or math.inf)
        return True

    @property
    def was_right(self) -> bool:
        """It has gone on for so long after the move that what may come is another story."""
        return self.mean.steps > _LASTING * self.evidence


class StragglerRule:
    """Watches one job. Executors are compared if the turns of one take more than `ratio` times the lower median's, or
    less by that factor, or if its whole share takes less than the slowest executor's by that factor (it has room)."""

    def __init__(self, ratio: float = 1.2, steps: int = 10, gain: float = 1.02) -> None:
        if not (ratio > 1 and steps >= 1 and gain >= 1):
            raise ValueError(f"ratio={ratio}, steps={steps}, gain={gain}: need ratio > 1, steps >= 1, gain >= 1")
        self.ratio = ratio
        self.steps = steps
        self.gain = gain
        #: steps of evidence for a move: outlives moves and changes of membership
        self._needed = steps
        self._members: tuple[int, ...] = ()
        self._shares: Shares = ()
        self._claim: _Claim | None = None
        #: what was proposed last, and once that was done until it is known whether it was right
        self._proposed: _Claim | None = None
        self._made: _Claim | None = None

    def observe(
        self, seen: Round, members: Sequence[int], shares: Sequence[int], *, pause_s: float = 0.0
    ) -> Proposal | None:
        """What to change, or None to leave things as they are. A switch is known to take `pause_s`.

        A round with a time that is no positive number says nothing. Other members start the comparison anew.
        """
        self._follow(tuple(members), tuple(shares))
        if not seen.is_usable:
            return None
        if self._made is not None and seen.gain(self._made.before, self._made.after) <= 1:
            return self._doubt(self._made, seen)
        if self._made is not None and self._made.weigh(seen, True) and self._made.was_right:
            self._made = None
        claim = self._claim = self._hear(seen)
        if claim is None or not self._is_proven(claim, pause_s):
            return None
        self._proposed, self._claim = claim, None
        return self._proposal(claim.after, claim.mean)

    def _follow(self, members: tuple[int, ...], shares: Shares) -> None:
        if (members, shares) == (self._members, self._shares):
            return
        move = self._proposed
        self._made = move if move is not None and (self._members, move.after) == (members, shares) else None
        if self._made is not None:
            self._made.evidence = self._made.score
        self._members, self._shares, self._claim, self._proposed = members, shares, None, None

    def _doubt(self, made: _Claim, seen: Round) -> Proposal | None:
        """A round in which the last move was none for the better: after enough of them it is undone."""
        if made.weigh(seen, False):
            return None
        self._made = self._claim = None
        self._misled(made.mean.steps)
        return self._proposal(made.before, seen) if seen.gain(made.after, made.before) >= self.gain else None

    def _proposal(self, shares: Shares, seen: Round) -> Proposal:
        slowest = max(range(len(shares)), key=seen.turn_seconds.__getitem__)
        ratio = seen.turn_seconds[slowest] / median_low(seen.turn_seconds)
        return Proposal(shares, self._members[slowest], ratio, seen.gain(self._shares, shares))

    def _misled(self, lasted: int) -> None:
        """By a claim that passed after so many steps."""
        self._needed = min(max(self._needed, 2 * lasted), _MOST_TIMES * self.steps)

    def _hear(self, seen: Round) -> _Claim | None:
        """The claim there is, or a new one, after another round."""
        claim = self._claim
        if claim is not None:
            if claim.weigh(seen, seen.gain(claim.before, claim.after) >= self.gain):
                claim.after = self._better(claim.mean) or claim.after
                return claim
            self._misled(claim.mean.steps)
        better = self._better(seen)
        return None if better is None else _Claim(self._shares, better, seen, seen.steps)

    def _better(self, seen: Round) -> Shares | None:
        """Shares that would have been worth a move."""
        turns, total = seen.turn_seconds, sum(self._shares)
        loads = [share * turn for share, turn in zip(self._shares, turns, strict=True)]
        middle = median_low(turns)
        differ = max(turns) > self.ratio * middle or middle > self.ratio * min(turns)
        if not differ and min(loads) * self.ratio >= max(loads):
            return None
        # Whoever is slow loses what it can first; only one that is too slow for a single worker is set aside.
        for split in (best_split(total, turns), best_use(total, turns)):
            # Where they do not, who is slowest is chance: shares become more even, or stay.
            makes_sense = differ or _unevenness(split) < _unevenness(self._shares)
            if makes_sense and split != self._shares and seen.gain(self._shares, split) >= self.gain:
                return split
        return None

    def _is_proven(self, claim: _Claim, pause_s: float) -> bool:
        is_aside = 0 in claim.after
        needed, rounds = (_ASIDE_TIMES * self._needed, _ASIDE_ROUNDS) if is_aside else (self._needed, 1)
        if claim.score < needed or claim.rounds < rounds:
            return False
        saved_s = claim.mean.step_s(claim.before) - claim.mean.step_s(claim.after)
        return saved_s * _LASTING * claim.score >= pause_s


def _merged(one: Round, two: Round) -> Round:
    """Their geometric means, by steps: a round that is far off weighs no more than others."""
    steps = one.steps + two.steps
    weight = two.steps / steps
    times = tuple(a ** (1 - weight) * b**weight for a, b in zip(one.turn_seconds, two.turn_seconds, strict=True))
    return Round(steps, times, (1 - weight) * one.rest_s + weight * two.rest_s)


def _unevenness(shares: Shares) -> int:
    return sum(share * share for share in shares)
