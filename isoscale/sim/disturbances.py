"""What happens to devices: failures and repairs, and a serving load that lends its idle devices and wants them back.

Both are streams of changes, drawn from a seed before the simulation begins or as it goes; neither knows jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isoscale.errors import UserError
from isoscale.scheduling.state import Cluster

__all__ = ["DeviceBook", "DeviceFailures", "Lending", "ServingLoad", "serving_load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFailures:
    """Each device fails on average every `mean_s` seconds of being there, and is back after `repair_s`."""

    mean_s: float
    repair_s: float = 3600.0

    def __post_init__(self) -> None:
        if not self.mean_s > 0 or not self.repair_s > 0:
            raise UserError(
                field="--failures",
                value=f"{self.mean_s}/{self.repair_s}",
                problem="not a time between failures and a time to repair",
                remedy="give two positive numbers of seconds",
            )


@dataclass(frozen=True, slots=True)
class Lending:
    """From time `t` on training may use `devices` devices of a node."""

    t: float
    node: int
    devices: int


class DeviceBook:
    """Devices of each node that are ours and work: what is lent to us, less what is broken."""

    def __init__(self, cluster: Cluster) -> None:
        self._lent = [node.num_devices for node in cluster.nodes]
        self._broken = [0] * len(self._lent)

    def there(self, node: int) -> int:
        return max(0, self._lent[node] - self._broken[node])

    def total(self) -> int:
        return sum(self.there(node) for node in range(len(self._lent)))

    def lend(self, node: int, devices: int) -> int:
        """From now on the node has this many; returns how many more that is."""
        change = devices - self._lent[node]
        self._lent[node] = devices
        return change

    def draw(self, rng: np.random.Generator) -> tuple[int, int] | None:
        """A device that works, each as likely as any other, as (node, number among the node's); None if none does."""
        working = np.cumsum([self.there(node) for node in range(len(self._lent))])
        if not working[-1]:
            return None
        device = int(rng.integers(working[-1]))
        node = int(np.searchsorted(working, device, side="right"))
        return node, device - int(working[node] - self.there(node))

    def fail(self, node: int) -> None:
        self._broken[node] += 1

    def repair(self, node: int) -> None:
        self._broken[node] -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLoad:
    """Serving over the day: it needs a share of the cluster between `low` and `high`, highest at `peak_hour`.

    Every `step_s` seconds the need is computed anew: a cosine over the day, to the power of `sharpness` (a high one
    makes short peaks), times a seeded log-normal of spread `noise`. Serving keeps `headroom` of the cluster free for
    itself on top of its need. Devices that it has, it keeps busy for need / devices held of the time.
    """

    low: float = 0.25
    high: float = 0.75
    peak_hour: float = 20.0
    sharpness: float = 1.0
    noise: float = 0.05
    headroom: float = 0.05
    step_s: float = 300.0
    seed: int = 0

    def need(self, until_s: float) -> NDArray[np.float64]:
        """Share of the cluster that serving needs in each step from 0 to `until_s`."""
        times = np.arange(math.ceil(until_s / self.step_s) + 1) * self.step_s
        day = 0.5 + 0.5 * np.cos((times / 3600.0 - self.peak_hour) * (2 * math.pi / 24.0))
        level = self.low + (self.high - self.low) * day**self.sharpness
        spread = np.random.default_rng([self.seed, 7]).normal(0.0, self.noise, size=len(times))
        share: NDArray[np.float64] = np.clip(level * np.exp(spread), 0.0, 1.0)
        return share


def serving_load(load: ServingLoad, cluster: Cluster, until_s: float) -> tuple[list[Lending], NDArray[np.float64]]:
    """What serving lends from 0 to `until_s`, and the devices that it needs in each step.

    Whole nodes go back first and come last, in the order of the cluster: a reclaim touches few nodes, and few jobs.
    """
    need = load.need(until_s)
    total = cluster.num_devices
    kept = np.minimum(total, np.ceil((need + load.headroom) * total)).astype(int)
    sizes = [node.num_devices for node in cluster.nodes]
    lendings: list[Lending] = []
    lent: Sequence[int] = [0] * len(sizes)
    for number, devices in enumerate(kept):
        now = _lent_by_node(sizes, int(devices))
        changed = [node for node in range(len(sizes)) if now[node] != lent[node] or number == 0]
        lendings.extend(Lending(number * load.step_s, node, now[node]) for node in changed)
        lent = now
    return lendings, need * total


def _lent_by_node(sizes: Sequence[int], kept: int) -> list[int]:
    lent = []
    for size in sizes:
        own = min(size, kept)
        kept -= own
        lent.append(size - own)
    return lent
