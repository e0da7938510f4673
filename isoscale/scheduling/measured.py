"""A job's speed from what was measured of it so far, by kind and number of devices.

Between measured numbers of a kind's devices the logarithm of the rate is linear in the logarithm of the number; below
the smallest the rate is taken in proportion; beyond the largest it goes on as it went between the last two, and after a
single one like k^SLOPE. A kind of which nothing was measured is as fast as a measured one times what is said of the two
kinds (`relative`), 1 each if nothing is said. A fit of few points errs: `proven_on` says how far it was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.state import Shape

__all__ = ["SLOPE", "MeasuredSpeed"]

#: exponent of scaling while nothing else is known: hopeful, so that a scheduler tries
SLOPE = 0.9


@dataclass(frozen=True, kw_only=True)
class MeasuredSpeed:
    """`points[kind, count]` is a measured rate; with none at all `assumed` is the rate on one device of speed 1."""

    points: Mapping[tuple[str, int], float]
    #: speed of a kind's device beside others', before anything was measured; a kind not named is 1
    relative: Mapping[str, float] = field(default_factory=dict)
    #: kinds that the job can run on; () any
    kinds: tuple[str, ...] = ()
    assumed: float = 1.0
    batch: int = 0
    slope: float = SLOPE

    def rate(self, shape: Shape, batch: int = 0) -> float:
        """Devices of several kinds count as the slowest of them."""
        count = sum(n for _, n in shape)
        if not count:
            return 0.0
        return min(self._of(kind, count) for kind in {kind for kind, _ in shape})

    def step_s(self, shape: Shape, batch: int = 0) -> float:
        rate = self.rate(shape)
        return 1.0 / rate if rate > 0 else math.inf

    def best_batch(self, shape: Shape) -> int:
        return self.batch

    def rates(self, kind: str, max_devices: int, node_size: int) -> NDArray[np.float64]:
        """
        >>> speed = MeasuredSpeed(points={("T4", 1): 1.0, ("T4", 4): 2.0}, relative={"V100": 3.0})
        >>> speed.rates("T4", 4, 4).round(2).tolist(), round(speed.rate((("V100", 4),)), 2)
        ([0.0, 1.0, 1.41, 1.73, 2.0], 6.0)
        """
        key = (kind, max_devices)
        if key not in self._tables:
            self._tables[key] = self._table(kind, max_devices)
        return self._tables[key]

    def proven_on(self, kind: str) -> int:
        """The most devices of a kind that were measured; of a kind that was not, 0."""
        return max((count for at, count in self.points if at == kind), default=0)

    @property
    def proven_devices(self) -> int:
        return max((count for _, count in self.points), default=0)

    @cached_property
    def _tables(self) -> dict[tuple[str, int], NDArray[np.float64]]:
        return {}

    def _of(self, kind: str, count: int) -> float:
        return float(self.rates(kind, count, 0)[count])

    def _table(self, kind: str, most: int) -> NDArray[np.float64]:
        counts = np.arange(1, most + 1, dtype=np.float64)
        if self.kinds and kind not in self.kinds:
            return np.zeros(most + 1)
        source = kind if self.proven_on(kind) else self._best_known
        factor = self._speed(kind) / self._speed(source) if source != kind else 1.0
        known = sorted((count, rate) for (at, count), rate in self.points.items() if at == source)
        if not known:
            return np.concatenate([[0.0], self.assumed * self._speed(kind) * counts**self.slope])
        sizes, rates = np.array(known, dtype=np.float64).T
        slope = self.slope
        if len(sizes) > 1:
            slope = float(np.clip(np.log(rates[-1] / rates[-2]) / np.log(sizes[-1] / sizes[-2]), 0.0, 1.0))
        found = np.exp(np.interp(np.log(counts), np.log(sizes), np.log(rates)))
        found = np.where(counts < sizes[0], rates[0] * counts / sizes[0], found)
        found = np.where(counts > sizes[-1], rates[-1] * (counts / sizes[-1]) ** slope, found)
        return np.concatenate([[0.0], factor * found])

    @cached_property
    def _best_known(self) -> str:
        """The kind of which most is known, the first by name of equals; "" if nothing is."""
        kinds = sorted({kind for kind, _ in self.points})
        return max(kinds, key=lambda kind: sum(at == kind for at, _ in self.points), default="")

    def _speed(self, kind: str) -> float:
        return self.relative.get(kind, 1.0)
