"""How fast an executor is: seconds per turn, per exchange and per step, and where it is right now.

Told by the job at a few places of every step; read by the thread that sends heartbeats.
"""

from __future__ import annotations

import time
from typing import Literal

from isoscale.protocol import messages as m

__all__ = ["Pace"]

Place = Literal["outside", "turn", "exchange"]


class Pace:
    def __init__(self) -> None:
        self._place: Place = "outside"
        self._since = time.monotonic()
        self._begun = self._last_begun = self._turned = self._sealed_at = time.monotonic()
        self._turns = self._last_turns = self._exchanges = self._all = 0.0
        self._steps = self._num_turns = 0

    def turns_begin(self) -> None:
        self._begun = self._enter("turn")

    def last_turn_begins(self) -> None:
        self._last_begun = time.monotonic()

    def turns_end(self) -> None:
        self._turned = self._enter("exchange")

    def sealed(self, num_turns: int) -> None:
        """A training step is sealed; this executor had `num_turns` turns in it."""
        now = self._enter("outside")
        self._turns += self._turned - self._begun
        self._last_turns += self._turned - self._last_begun
        self._exchanges += now - self._turned
        self._all += now - self._sealed_at
        self._sealed_at = now
        self._num_turns += num_turns
        self._steps += 1

    def restart(self) -> None:
        """What was measured so far was in another generation."""
        self._turns = self._last_turns = self._exchanges = self._all = 0.0
        self._steps = self._num_turns = 0
        self._sealed_at = time.monotonic()

    def outside(self) -> None:
        self._enter("outside")

    def beat(self, step: int) -> m.Beat:
        """The averages since the last call."""
        steps, turns = self._steps, self._num_turns
        beat = m.Beat(
            step=step,
            place=self._place,
            place_s=round(time.monotonic() - self._since, 3),
            steps=steps,
            turn_s=self._turns / turns if turns else 0.0,
            last_turn_s=self._last_turns / steps if steps else 0.0,
            exchange_s=self._exchanges / steps if steps else 0.0,
            step_s=self._all / steps if steps else 0.0,
        )
        self._turns = self._last_turns = self._exchanges = self._all = 0.0
        self._steps = self._num_turns = 0
        return beat

    def _enter(self, place: Place) -> float:
        self._place, self._since = place, time.monotonic()
        return self._since
