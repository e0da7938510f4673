"""How long an executor may be silent, or keep the others waiting, before it counts as lost. Rules on times.

If nobody at all is heard, it is rather the coordinator's own machine that is cut off: the others train on, and will be
heard again. Then not all at once: TCP tries again after as long as it has already waited.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from isoscale.protocol import messages as m
from isoscale.types import Settings

__all__ = ["Hearing"]


@dataclass(slots=True)
class Hearing:
    settings: Settings
    #: nobody has been heard since
    _deaf_since: float = 0.0
    #: and everybody has until then to be heard again
    _patient_until: float = 0.0

    def limit(self, silences: Collection[float], now: float) -> float:
        """Seconds of silence that are too long, given how long each of them has been silent."""
        is_heard = any(silent <= 2 * self.settings.heartbeat_s for silent in silences)
        if not is_heard:
            self._deaf_since = self._deaf_since or now
            self._patient_until = now + max(self.settings.lost_after_s, now - self._deaf_since)
        elif now > self._patient_until:
            self._deaf_since = 0.0
        return self.settings.lost_after_s if is_heard and not self._deaf_since else self.settings.orphan_s

    def why_dead(self, silent: float, beat: m.Beat | None, is_stopped: Callable[[], bool]) -> str:
        """Why a process of this machine, where nothing is cut off, is to be killed; "" if it is well.

        `beat` is a member's last one, `is_stopped` asks the system.
        """
        if silent > 2 * self.settings.heartbeat_s and is_stopped():
            return "stopped by a signal"
        if silent > self.settings.lost_after_s:
            return f"no heartbeat for {silent:.1f} s"
        if beat is not None and beat.place != "exchange" and beat.place_s > self.settings.stalled_after_s:
            return f"kept the others waiting for {beat.place_s:.0f} s"
        return ""
