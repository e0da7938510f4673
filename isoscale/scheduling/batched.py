"""The speed of a job of N logical workers whose batch size may be one of a few: what a live scheduler chooses from.

    turn_s(b)     = fixed_s + per_sample_s * b                      of one logical worker, by kind
    step_s(b)     = slowest executor's turns + communication        as `LogicalWorkerSpeed` has it
    efficiency(B) = (noise_scale + B0) / (noise_scale + B)          progress per sample, relative to the smallest batch
    rate(b)       = b / b0 / step_s(b) * efficiency(N b)            work is counted in steps of the smallest size b0

Batches are global (N b) wherever a scheduler speaks of them. A value, like the other models of `throughput`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.state import Shape
from isoscale.scheduling.throughput import Communication, LogicalWorkerSpeed

__all__ = ["BatchedSpeed", "fit_turns"]

#: a change of size must promise at least so much: speeds are measured, and measurements differ
_WORTH = 0.05
#: share of a turn that is taken to be fixed while one size only was measured: hopeful, so that another one is tried
_HOPE = 0.3


def fit_turns(seconds: Mapping[int, float]) -> tuple[float, float]:
    """(fixed_s, per_sample_s) from measured seconds of a turn by batch size.

    >>> fit_turns({16: 0.2, 32: 0.3, 64: 0.5})
    (0.1, 0.00625)
    >>> fit_turns({10: 1.0})
    (0.3, 0.07)
    """
    sizes = np.array(sorted(seconds), dtype=np.float64)
    times = np.array([seconds[int(size)] for size in sizes])
    if len(sizes) < 2:
        return round(float(times[0]) * _HOPE, 12), round(float(times[0]) * (1 - _HOPE) / float(sizes[0]), 12)
    per_sample = max(0.0, float(np.polyfit(sizes, times, 1)[0]))
    fixed = max(0.0, float((times - per_sample * sizes).mean()))
    if not fixed:
        per_sample = float((times * sizes).sum() / (sizes * sizes).sum())
    return round(fixed, 12), round(per_sample, 12)


@dataclass(frozen=True, kw_only=True)
class BatchedSpeed:
    num_logical_workers: int
    #: (fixed_s, per_sample_s) by kind
    turns: Mapping[str, tuple[float, float]]
    #: of one logical worker, ascending; the one in use is `size`
    sizes: tuple[int, ...]
    size: int
    communication: Communication = field(default_factory=Communication)
    #: in samples; None: not measured, and a sample is worth the same in every batch
    noise_scale: float | None = None

    def step_s(self, shape: Shape, batch: int = 0) -> float:
        return self._at(batch or self.best_batch(shape)).step_s(shape)

    def rate(self, shape: Shape, batch: int = 0) -> float:
        batch = batch or self.best_batch(shape)
        return self._worth(batch) * self._at(batch).rate(shape) if shape else 0.0

    def best_batch(self, shape: Shape) -> int:
        """The one in use, unless another one is surely better."""
        rates = {size: self._worth(self._batch(size)) * self._at(self._batch(size)).rate(shape) for size in self.sizes}
        best = max(rates, key=rates.__getitem__)
        keep = self.size in rates and rates[self.size] * (1 + _WORTH) >= rates[best]
        return self._batch(self.size if keep else best)

    def rates(self, kind: str, max_devices: int, node_size: int) -> NDArray[np.float64]:
        batches = [self._batch(size) for size in self.sizes]
        tables = [self._worth(batch) * self._at(batch).rates(kind, max_devices, node_size) for batch in batches]
        return np.asarray(np.max(tables, axis=0))

    def _batch(self, size: int) -> int:
        return size * self.num_logical_workers

    def _worth(self, batch: int) -> float:
        """Of one step, in steps of the smallest batch."""
        least = self._batch(min(self.sizes))
        if self.noise_scale is None:
            return batch / least
        return batch / least * (self.noise_scale + least) / (self.noise_scale + batch)

    def _at(self, batch: int) -> LogicalWorkerSpeed:
        if batch not in self._models:
            size = batch / self.num_logical_workers
            self._models[batch] = LogicalWorkerSpeed(
                num_logical_workers=self.num_logical_workers,
                turn_s={kind: fixed + per_sample * size for kind, (fixed, per_sample) in self.turns.items()},
                communication=self.communication,
                batch=batch,
            )
        return self._models[batch]

    @cached_property
    def _models(self) -> dict[int, LogicalWorkerSpeed]:
        return {}
