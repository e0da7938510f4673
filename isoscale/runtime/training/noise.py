"""Measures the gradient noise scale every few steps of a job, from gradients that are there anyway (`core.noise`).

At the end of a turn the squared norm of its gradient is taken, before it is divided by N; with the step's seal all
executors get all of them, in logical order, and the norm of the mean gradient is taken before the script can clip it.
So the estimate depends on the gradients alone, not on where they were computed. The loss must be a mean over samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from isoscale.core.noise import NoiseScale, measured
from isoscale.core.totals import Combined, Tally

if TYPE_CHECKING:
    from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["NoiseMeter"]

_NORM, _COUNT, _SQUARED, _ODD = (f"isoscale/noise {name}" for name in ("norm", "count", "squared", "odd"))


class NoiseMeter:
    def __init__(self, loop: TrainingLoop, every: int) -> None:
        self._loop, self._every = loop, every
        self.scale = NoiseScale()
        self.is_on = False
        self._norms: dict[int, float] = {}
        self._samples: dict[int, int] = {}
        self._is_odd = False
        #: if the present step was skipped, how many were so far
        self.skipped_here = 0

    def begin(self, step: int) -> None:
        """Step number `step` begins."""
        self.is_on = step % self._every == 0
        self.skipped_here = 0
        self._loop.engine.on_gradients = self._turn_ends if self.is_on else None
        if self.is_on:
            self._norms, self._samples = {}, {}
            self._is_odd = any(bool(grad.count_nonzero()) for grad in self._gradients())

    def reads(self, logical_rank: int, samples: int) -> None:
        self._samples[logical_rank] = samples

    def _turn_ends(self, logical_rank: int) -> None:
        self._norms[logical_rank] = self._squared_norm()

    def told(self, tally: Tally) -> Tally:
        """What goes into the seal: `tally`, and what was measured of the turns here."""
        told = Tally()
        told.add(tally)
        for rank in self._loop.engine.ranks:
            count = self._samples.get(rank, 0)
            told.log(rank, {_NORM: self._norms[rank]})
            told.sum(rank, {_COUNT: count, _SQUARED: count * count, _ODD: int(self._is_odd)})
        return told

    def sealed(self, values: Combined) -> float | None:
        """The step is sealed: the estimate, smoothed over earlier ones. Takes what it told out of the values."""
        mean = values.means.pop(_NORM, None)
        by_rank = values.by_rank.pop(_NORM, {})
        count, squared, odd = (int(values.sums.pop(name, 0)) for name in (_COUNT, _SQUARED, _ODD))
        if not self.is_on or mean is None:
            return None
        n, unit = self._loop.spec.workers, self._unit()
        equal = len(by_rank) == n and count > 0 and n * squared == count * count
        one = measured(mean / unit, self._squared_norm() / unit, count // n, n) if equal and unit > 0 else None
        if one is None or odd:
            self.scale.skip()
            self.skipped_here = self.scale.num_skipped
            return None
        self.scale.add(one)
        return self.scale.value

    def _unit(self) -> float:
        """The square of what the loss was multiplied with; 0 if that is not known."""
        scalers = [one for one in self._loop.state.kept.values() if isinstance(one, torch.amp.GradScaler)]
        scales = {float(one.get_scale()) for one in scalers if one.is_enabled()}
        return 1.0 if not scales else scales.pop() ** 2 if len(scales) == 1 else 0.0

    def _squared_norm(self) -> float:
        total = 0.0
        for grad in self._gradients():
            norm = float(torch.linalg.vector_norm(grad, dtype=torch.float64))
            total += norm * norm
        return total

    def _gradients(self) -> Iterator[torch.Tensor]:
        for model in self._loop.engine.models:
            for param in model.params:
                if param.grad is not None:
                    yield param.grad
