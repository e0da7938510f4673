"""The coordinator's own running time, by which silences and deadlines are counted.

A process that was stopped by a signal, swapped out, suspended with its machine or held up in its event loop has heard
nobody meanwhile, through nobody's fault. This clock stands still as long as the coordinator does, so that no limit can
run out in a time in which nothing could have kept it. Not for timestamps.
"""

from __future__ import annotations

from isoscale.clock import Clock

__all__ = ["OwnTime"]

#: a stretch without a tick from which on it is worth telling
_NOTICED_S = 1.0


class OwnTime:
    """Ticks are to come every `tick_s`; of the time between two of them twice that counts at most."""

    def __init__(self, clock: Clock, tick_s: float) -> None:
        self._clock = clock
        self._tick_s = tick_s
        self._counted = self._ticked_at = clock.monotonic()

    def now(self) -> float:
        """Seconds; stands still if no tick comes."""
        return self._counted + self._credit(self._clock.monotonic())

    def tick(self) -> float:
        """To be called every `tick_s`: how many seconds are missing since the last time, 0 if none to speak of."""
        at = self._clock.monotonic()
        gap = at - self._ticked_at
        self._counted += self._credit(at)
        self._ticked_at = at
        return gap - self._tick_s if gap - self._tick_s > _NOTICED_S else 0.0

    def _credit(self, at: float) -> float:
        return min(at - self._ticked_at, 2 * self._tick_s)
