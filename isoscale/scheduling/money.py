"""What work is worth in dollars where devices are rented: completion times against prices that change.

An hour of waiting for a job is worth `hour_worth` dollars to its owner (c per second), devices cost p per second.
Minimising the sum of both, over time, says as `flowtime` does without prices: give job j the devices that maximise

    w_j rate_j(o) - dollars_now(o),        w_j >= min over o of (c + dollars_usual(o)) / rate_j(o)

with equality where devices are not scarce: a unit of work is worth what it costs at usual prices, the owner's time
included. So a job takes more devices when they are cheap, fewer or none when they are dear, and cheaper kinds when time
is worth little. Where devices are scarce w_j is at least c times its weight for completion times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.options import DeviceOptions

__all__ = ["Prices", "dollars_per_s", "worth_in_dollars"]

Floats = NDArray[np.float64]


class Prices:
    """Prices by kind, in dollars for a device and an hour, and their mean over the time since the first."""

    def __init__(self) -> None:
        self.now: Mapping[str, float] = {}
        self._begun_s = self._since_s = 0.0
        self._paid: dict[str, float] = {}

    def change(self, prices: Mapping[str, float], now: float) -> None:
        if not self.now:
            self._begun_s = now
        for kind, price in self.now.items():
            self._paid[kind] = self._paid.get(kind, 0.0) + price * (now - self._since_s)
        self.now, self._since_s = dict(prices), now

    def usual(self, now: float) -> dict[str, float]:
        """A device for an hour, on average so far."""
        lasted = now - self._begun_s
        if lasted <= 0:
            return dict(self.now)
        running = now - self._since_s
        return {kind: (self._paid.get(kind, 0.0) + price * running) / lasted for kind, price in self.now.items()}


def dollars_per_s(options: DeviceOptions, kinds: Sequence[str], prices: Mapping[str, float]) -> Floats:
    """What each option costs. `prices` are dollars for a device and an hour; a kind without one is free."""
    return np.asarray(options.counts @ np.array([prices.get(kind, 0.0) / 3600.0 for kind in kinds]))


def worth_in_dollars(options: DeviceOptions, usual: Floats, hour_worth: float, weight: float) -> float:
    """Dollars that a unit of a job's work is worth; `usual` are the options' dollars per second at usual prices and
    `weight` is the job's for completion times."""
    able = options.rates > 0
    if not able.any():
        return 0.0
    per_s = hour_worth / 3600.0
    return max(per_s * weight, float(((per_s + usual[able]) / options.rates[able]).min()))
