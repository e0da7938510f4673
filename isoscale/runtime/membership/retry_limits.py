"""How often things may go wrong in a row before a target, or the job, is given up. Pure bookkeeping.

What counts are events, not processes: whatever ended one executor may end all that were there with it. Between tries
there is a pause that doubles, so that what fails for ever does not spin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from isoscale.errors import ExecutorLostError

__all__ = ["Breakage", "RetryLimits", "Strikes", "Tries", "broken_too_often", "pause_before"]

#: an exchange that broke although nobody is gone is formed again after so long, and so often without a seal in between
_BROKEN_GRACE_S = 3.0
_MAX_BROKEN = 5
#: groups that cannot be formed beside training, one after the other, until the target is given up
_MAX_UNFORMED = 5
#: bursts of newcomers that die before they are of use, one after the other, until the target is given up
_MAX_STILLBORN = 3
#: losses in so short a time have one cause
_BURST_S = 1.0
_LONGEST_PAUSE_S = 30.0


def pause_before(attempt: int) -> float:
    """Seconds before a try, by how many have failed in a row: 0, 1, 2, 4 ...

    >>> [pause_before(failed) for failed in (0, 1, 2, 3, 4, 50)]
    [0.0, 0.0, 1.0, 2.0, 4.0, 30.0]
    """
    return 0.0 if attempt < 2 else min(_LONGEST_PAUSE_S, 2.0 ** min(attempt - 2, 30))


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
class Tries:
    """Executors that are lost before they were of use, and when the next ones may be started."""

    #: bursts in a row of such as could not even join
    count: int = 0
    #: bursts in a row in all
    _bursts: int = 0
    #: executors from here on were started after the last burst
    _after: int = 0
    _burst_at: float = -math.inf
    _wait_until: float = -math.inf

    def lose(self, executor: int, started: int, now: float, *, joined: bool = False) -> bool:
        """One is lost, with `started` executors started so far. True if it begins a burst of its own."""
        if executor < self._after:
            return False
        self._after = started
        if now < self._burst_at + _BURST_S:
            # It met the first replacements, too. They are not replaced at once again: whatever it is, it may go on.
            self._wait_until = max(self._wait_until, self._burst_at + _BURST_S)
            return False
        self._burst_at = now
        self._bursts += 1
        self.count += not joined
        self._wait_until = now + pause_before(self._bursts)
        return True

    def waits(self, now: float) -> float:
        """Seconds until executors may be started again; 0 if they may."""
        return max(0.0, self._wait_until - now)

    def pause(self, seconds: float, now: float) -> None:
        self._wait_until = max(self._wait_until, now + seconds)

    @property
    def troubled(self) -> bool:
        return self._bursts > 0

    def joined(self) -> None:
        """They can: nobody needs to give the target up."""
        self.count = 0

    def clear(self) -> None:
        """Those who joined have lasted, or somebody asks for another try."""
        self.count = self._bursts = 0
        self._burst_at = self._wait_until = -math.inf


@dataclass(slots=True)
class RetryLimits:
    newcomers: Tries = field(default_factory=Tries)
    #: of spares nothing depends
    spares: Tries = field(default_factory=Tries)
    unformed: Strikes = field(default_factory=lambda: Strikes(_MAX_UNFORMED))
    broken: Strikes = field(default_factory=lambda: Strikes(_MAX_BROKEN + 1))
    #: the time of the last tick
    now: float = 0.0

    def tick(self, now: float) -> bool:
        """Time passes. True if executors may be started now that had to wait."""
        tries, before, self.now = (self.newcomers, self.spares), self.now, now
        return any(one.waits(before) and not one.waits(now) for one in tries)

    def lose_early(self, executor: int, started: int, *, needed: bool) -> int:
        """One is lost before it was of use. How often that has happened in a row, if no more may; else 0: it was a
        spare, or several met the same."""
        tries = self.newcomers if needed else self.spares
        is_another = tries.lose(executor, started, self.now) and needed
        return self.newcomers.count if is_another and self.exhausted else 0

    def pause_s(self) -> float:
        """How long executors are not started yet."""
        return max(tries.waits(self.now) for tries in (self.newcomers, self.spares))

    @property
    def exhausted(self) -> bool:
        """Newcomers have ended before they could join as often as they may."""
        return self.newcomers.count >= _MAX_STILLBORN


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
        self._since = -math.inf if self._since is None else self._since

    def is_overdue(self, now: float) -> bool:
        """Nobody turned out to be gone in all this time."""
        return self._since is not None and now - self._since >= _BROKEN_GRACE_S

    def mend(self) -> None:
        self._since = None


def broken_too_often(first: int, generation: int, count: int, reason: str) -> ExecutorLostError:
    """Why the job is given up; `first` stands for its members."""
    why = f"the exchange broke {count} times although nobody is gone: {reason}"
    return ExecutorLostError(executor=first, pid=0, generation=generation, reason=why)
