"""Time as an argument: whoever needs the time is given a `Clock`.

The live services use `WallClock`; the simulator and unit tests use `VirtualClock`, where time passes only when told.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "Instant", "VirtualClock", "WallClock", "since_boot"]

_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot() -> float:
    """Seconds of a clock of this machine that nobody sets, and that goes on while the machine is suspended."""
    return time.clock_gettime(_SINCE_BOOT)


class Clock(Protocol):
    """What time it is, and waiting."""

    def now(self) -> float:
        """Unix seconds, for timestamps; may jump when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment, for durations and deadlines; never goes back, whatever the clock is set to.

        Goes on while the machine is suspended, where the system can tell.
        """
        ...

    def sleep(self, seconds: float) -> None:
        """Returns after `seconds`; negative durations are a ValueError."""
        ...


class WallClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return since_boot()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Instant:
    """Now, so that later moments are known in unix seconds too, however the machine's clock is set meanwhile."""

    def __init__(self) -> None:
        self.unix, self._at = time.time(), time.monotonic()

    def seconds_ago(self) -> float:
        return time.monotonic() - self._at

    def unix_now(self) -> float:
        return self.unix + self.seconds_ago()


class VirtualClock:
    """A clock that moves only by `advance` and `sleep`, which are the same. For one thread.

    >>> clock = VirtualClock()
    >>> clock.advance(2.5)
    >>> clock.now()
    2.5
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        if not seconds >= 0:  # refuses NaN as well
            raise ValueError(f"time cannot advance by {seconds} seconds")
        self._now += seconds
