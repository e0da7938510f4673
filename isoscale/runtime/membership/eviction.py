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
    #: what had been given up before, which says nothing of those who may come now
    _given_up: str = ""

    def look(
        self, *, everybody: bool, rescued: bool, given_up: str, step_s: float, now: float
    ) -> Literal["", "checkpoint", "stop"]:
        """What must be done now. `everybody`: nobody trains who may stay; `rescued`: the order to go over to others
        is out; `given_up`: why nobody will come, "" if somebody may; a step takes `step_s`.

        The checkpoint at the beginning is for a notice that was shorter than it should be. The end is asked for early
        enough for the step at hand and its checkpoint; should it fail, again after as long.
        """
        if not everybody:
            self._since, self._has_asked = None, False
            return ""
        if self._since is None:
            self._since, self._given_up = now, given_up
            return "checkpoint"
        lead = min(self.notice_s / 2, 2 * step_s + _MARGIN_S)
        hopeless = given_up not in ("", self._given_up) and not self._has_asked
        if rescued or not (hopeless or now - self._since >= self.notice_s - lead):
            return ""
        self._since, self._has_asked = now, True
        return "stop"
