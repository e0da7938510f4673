"""How often things may go wrong in a row before a target, or the job, is given up. Pure bookkeeping."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Breakage", "Patience", "Strikes"]

#: an exchange that broke although nobody is gone is formed again after so long, and so often without a seal in between
_BROKEN_GRACE_S = 3.0
_MAX_BROKEN = 5
#: groups that cannot be formed beside training, one after the other, until the target is given up
_MAX_UNFORMED = 5
#: newcomers that die before they are of use, one after the other, until the target is given up
_MAX_STILLBORN = 3
#: times that everybody is gone, without a step in between
_MAX_RESTARTS = 3


@dataclass(slots=True)
class Strikes:
    """Failures of one sort, one after the other."""

    limit: int
    count: int = 0

    def strike(self) -> bool:
        """Once more. True if it has now happened as often as the limit."""
        self.count += 1
        return self.count >= self.limit

    def clear(self) -> None:
        self.count = 0


@dataclass(slots=True)
class Patience:
    stillborn: Strikes = field(default_factory=lambda: Strikes(_MAX_STILLBORN))
    unformed: Strikes = field(default_factory=lambda: Strikes(_MAX_UNFORMED))
    restarts: Strikes = field(default_factory=lambda: Strikes(_MAX_RESTARTS + 1))
    broken: Strikes = field(default_factory=lambda: Strikes(_MAX_BROKEN + 1))


@dataclass(slots=True)
class Breakage:
    """The exchange of the present generation is broken, as somebody said. Usually the news that an executor is gone
    follows at once, and matters more."""

    reason: str = ""
    _since: float | None = None

    def __bool__(self) -> bool:
        """Is it broken?"""
        return self._since is not None

    def report(self, reason: str, now: float) -> None:
        """Somebody cannot exchange; the first who says so counts."""
        if self._since is None:
            self._since, self.reason = now, reason

    def assume(self, reason: str = "") -> None:
        """It has been broken for long, for a reason that is known otherwise."""
        self.reason = reason or self.reason
        self._since = 0.0 if self._since is None else self._since

    def is_overdue(self, now: float) -> bool:
        """Nobody turned out to be gone in all this time."""
        return self._since is not None and now - self._since >= _BROKEN_GRACE_S

    def mend(self) -> None:
        self._since = None
