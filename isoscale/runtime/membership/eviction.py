"""Everybody who trains was told to go: how long others may take to come before the job is ended. Pure bookkeeping.

Says when a checkpoint is due, and when the end after one is. Who could come, and how, is
`runtime.membership.recruiting`'s affair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Eviction"]

#: what a last checkpoint may take, beside the steps before it
_MARGIN_S = 2.0


@dataclass(slots=True)
class Eviction:
    #: seconds that somebody who was told to go may stay
    notice_s: float
    _since: float | None = None
    _has_asked: bool = False

    def look(
        self, *, everybody: bool, rescued: bool, hopeless: bool, step_s: float, now: float
    ) -> Literal["", "checkpoint", "stop"]:
        """What must be done now. `everybody`: nobody trains who may stay; `rescued`: the order to go over to others
        is out; `hopeless`: nobody will come; a step takes `step_s`.

        The checkpoint at the beginning is for a notice that was shorter than it should be. The end is asked for early
        enough for the step at hand and its checkpoint; should it fail, again after as long.
        """
        if not everybody:
            self._since, self._has_asked = None, False
            return ""
        if self._since is None:
            self._since = now
            return "checkpoint"
        lead = min(self.notice_s / 2, 2 * step_s + _MARGIN_S)
        if rescued or not (now - self._since >= self.notice_s - lead or (hopeless and not self._has_asked)):
            return ""
        self._since, self._has_asked = now, True
        return "stop"
