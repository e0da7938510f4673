"""What became of earlier moves of logical workers, and how much evidence the next one needs therefore.

Every move that was made is on trial until it is undone or its horizon is over. A *direction* is an executor and whether
it gains workers (1) or loses some (-1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from isoscale.scheduling.turn_history import Round, estimate, log_step

__all__ = ["HORIZON", "Trials"]

#: what was so for n steps is expected to be so for this many times n more
HORIZON = 10

Shares = tuple[int, ...]


@dataclass(slots=True)
class _Move:
    members: tuple[int, ...]
    before: Shares
    after: Shares
    #: steps of evidence that led to it, and how long that then went on
    evidence: int
    lasted: int = 0
    #: since it was made: steps, and by how much each round's step would have been longer without it, as a logarithm
    steps: int = 0
    advantages: list[float] = field(default_factory=list)

    def directions(self) -> list[tuple[int, int]]:
        return _directions(self.members, self.before, self.after)


class Trials:
    def __init__(self, least: int) -> None:
        """`least`: steps of evidence that a move needs of which nothing bad is known."""
        self._least = least
        self._proposed: _Move | None = None
        self._trial: _Move | None = None
        self._needed: dict[tuple[int, int], int] = {}

    def needed(self, members: Sequence[int], before: Shares, after: Shares) -> int:
        """Steps of evidence for a move."""
        return max(self._needed.get(one, self._least) for one in _directions(members, before, after))

    def propose(self, members: tuple[int, ...], before: Shares, after: Shares, evidence: int) -> None:
        self._proposed = _Move(members, before, after, evidence)

    def moved(self, members: tuple[int, ...], shares: Shares) -> None:
        """Workers have moved: as proposed, or for other reasons. A move that undoes the one on trial is a verdict."""
        move, earlier = self._proposed, self._trial
        self._proposed = self._trial = None
        if move is None or (move.members, move.after) != (members, shares):
            return
        self._trial = move
        if earlier is not None and {(e, -sign) for e, sign in move.directions()} & set(earlier.directions()):
            self._wrong(earlier)

    def hear(self, seen: Round, expected: float) -> None:
        """Another round. A move proves right if over its horizon a step would surely have been longer without it."""
        trial = self._trial
        if trial is None:
            return
        times, rest = np.array([seen.turn_seconds]), np.array([seen.rest_s])
        advantage = float((log_step(trial.before, times, rest) - log_step(trial.after, times, rest))[0])
        if advantage > 0 and trial.lasted == trial.steps:
            trial.lasted += seen.steps
        trial.steps += seen.steps
        trial.advantages.append(advantage)
        if trial.steps < HORIZON * trial.evidence:
            return
        values = np.array(trial.advantages)
        _, sure = estimate(values, np.full(len(values), 1 / len(values)), expected)
        if sure > 0:
            for one in trial.directions():
                self._needed[one] = max(self._least, self._needed.get(one, self._least) // 2)
        else:
            self._wrong(trial)
        self._trial = None

    def forget(self, executor: int) -> None:
        for sign in (-1, 1):
            self._needed.pop((executor, sign), None)

    def _wrong(self, move: _Move) -> None:
        """Next time it takes twice the evidence: of what was needed, or of what has misled."""
        for one in move.directions():
            self._needed[one] = 2 * max(self._needed.get(one, self._least), move.evidence + move.lasted)


def _directions(members: Sequence[int], before: Shares, after: Shares) -> list[tuple[int, int]]:
    return [(e, 1 if new > old else -1) for e, old, new in zip(members, before, after, strict=True) if new != old]
