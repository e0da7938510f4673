"""How fast an executor is: seconds per turn, per exchange and per step, and where it is right now.

Told by the job at a few places of every step; read by the thread that sends heartbeats. Where it is also goes into a
`control.trail`, for the case that this process cannot say so any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from isoscale.clock import since_boot
from isoscale.protocol import messages as m
from isoscale.types import StepPlace

__all__ = ["Pace"]


class Pace:
    def __init__(self) -> None:
        #: told of every place that is entered: place, committed steps, logical rank
        self.trail: Callable[[StepPlace, int, int], None] | None = None
        self._place: StepPlace = "outside"
        #: committed steps, as the last turn knew them
        self._step = 0
        self._since = time.monotonic()
        #: at the last beat: when that was, since when it had been where it was, and how long that counted
        self._beat_at = self._seen = self._since
        self._stayed = 0.0
        self._begun = self._last_begun = self._turned = self._sealed_at = time.monotonic()
        self._turns = self._last_turns = self._exchanges = self._all = 0.0
        self._steps = self._num_turns = 0
        #: not all turns of the present step run
        self._is_partial = False

    def turns_begin(self) -> None:
        self._begun = time.monotonic()

    def turn(self, step: int, logical_rank: int, *, training: bool) -> None:
        """The turn of a logical worker begins, with so many steps committed."""
        self._step = step
        self._enter("turn" if training else "evaluation", logical_rank)

    def last_turn_begins(self) -> None:
        self._last_begun = time.monotonic()

    def leave_out(self) -> None:
        """The present step tells nothing of how fast turns are: one that had run before did not run again."""
        self._is_partial = True

    def turns_end(self) -> None:
        self._turned = self._enter("exchange")

    def sealed(self, num_turns: int) -> None:
        """A training step is sealed; this executor had `num_turns` turns in it."""
        self._step += 1
        now = self._enter("outside")
        before, self._sealed_at = self._sealed_at, now
        if self._is_partial:
            self._is_partial = False
            return
        self._turns += self._turned - self._begun
        self._last_turns += self._turned - self._last_begun
        self._exchanges += now - self._turned
        self._all += now - before
        self._num_turns += num_turns
        self._steps += 1

    def restart(self) -> None:
        """What was measured so far was in another generation."""
        self._turns = self._last_turns = self._exchanges = self._all = 0.0
        self._steps = self._num_turns = 0
        self._is_partial = False
        self._sealed_at = time.monotonic()

    def outside(self) -> None:
        self._enter("outside")

    def beat(self, step: int, every_s: float = 1.0) -> m.Beat:
        """The averages since the last call; calls are to come every `every_s`."""
        steps, turns = self._steps, self._num_turns
        beat = m.Beat(
            step=step,
            place=self._place,
            place_s=round(self._place_seconds(every_s), 3),
            steps=steps,
            turn_s=self._turns / turns if turns else 0.0,
            last_turn_s=self._last_turns / steps if steps else 0.0,
            exchange_s=self._exchanges / steps if steps else 0.0,
            step_s=self._all / steps if steps else 0.0,
            at=since_boot(),
        )
        self._turns = self._last_turns = self._exchanges = self._all = 0.0
        self._steps = self._num_turns = 0
        return beat

    def _place_seconds(self, every_s: float) -> float:
        """How long it has been where it is, without stretches in which this process itself was not running."""
        since = self._since
        now = time.monotonic()
        if since != self._seen:
            self._seen, self._stayed = since, 0.0
        self._stayed += min(now - max(since, self._beat_at), 2 * every_s)
        self._beat_at = now
        return self._stayed

    def _enter(self, place: StepPlace, logical_rank: int = -1) -> float:
        self._place, self._since = place, time.monotonic()
        if self.trail is not None:
            self.trail(place, self._step, logical_rank)
        return self._since
