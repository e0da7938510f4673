"""What starting and changing a job costs on this cluster, as its jobs have shown of late; a guess before the first."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import mean, median

from isoscale.sim.costs import Costs

__all__ = ["RESCALE_S", "ChangeCosts", "is_news"]

#: before any was measured: from a launch to the first step, and standing still when devices change
_START_S, RESCALE_S = 2.0, 0.5
#: that count, the latest
_KEPT = 20
#: a cost is told anew if it differs by this share, and by so many seconds: a policy is asked again for it
_WORTH_TELLING, _LEAST_S = 0.25, 0.02


def is_news(before_s: float | None, seconds: float) -> bool:
    """Whether a job's cost says something else than it said before.

    >>> is_news(None, 0.1), is_news(0.1, 0.11), is_news(0.1, 0.2), is_news(0.001, 0.002)
    (True, False, True, False)
    """
    return before_s is None or abs(seconds - before_s) > max(_LEAST_S, _WORTH_TELLING * before_s)


@dataclass(slots=True)
class ChangeCosts:
    """Of all jobs of a service."""

    _starts: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _changes: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def started(self, seconds: float) -> None:
        """From a launch to the first step."""
        self._starts.append(seconds)

    def changed(self, seconds: float) -> None:
        """A job stood still for so long when its devices changed."""
        self._changes.append(seconds)

    @property
    def rescale_s(self) -> float:
        """What is to be expected of a job that has not shown it."""
        return median(self._changes) if self._changes else RESCALE_S

    def costs(self) -> Costs:
        """For the simulator."""
        start_s = mean(self._starts) if self._starts else _START_S
        return Costs(start_s=start_s, resume_s=start_s, rescale_s=self.rescale_s, ready_s=start_s)
