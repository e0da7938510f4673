"""How late the coordinator hears of what executors tell: so events are written with the time at which they happened.

A message says when it was written, in seconds of a clock of its executor's machine that nobody sets; what that clock
shows has no meaning elsewhere. The message that was least under way shows how the two clocks differ, at most; whatever
took longer than that was under way for longer, or lay unread. So a time is never later than when it was heard of, and
never earlier than it was.
"""

from __future__ import annotations

import math

__all__ = ["Lateness"]

#: two clocks may run apart by so many seconds a second; what is known of their difference ages by as much
_DRIFT = 1e-4


class Lateness:
    def __init__(self) -> None:
        #: by executor: the least difference between this clock and its own, and when that was looked at
        self._least: dict[int, tuple[float, float]] = {}

    def of(self, executor: int, at: float, now: float) -> float:
        """Seconds since `at`, by the clock of the executor whose message was read `now`; 0.0 if it does not say."""
        if not at or not math.isfinite(at):
            return 0.0
        apart = now - at
        least, looked_at = self._least.get(executor, (apart, now))
        least = min(apart, least + _DRIFT * max(0.0, now - looked_at))
        self._least[executor] = (least, now)
        return apart - least
