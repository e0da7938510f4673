"""The gradient noise scale, from the N gradients that a step has anyway. Pure arithmetic in float64.

Symbols of McCandlish et al., "An Empirical Model of Large-Batch Training", appendix A.1. A step of N logical workers
with b samples each gives N gradients G_b over b samples, and their mean G_B over B = N b samples. With |G_b|^2 the mean
over logical workers,

    |G|^2 = (B |G_B|^2 - b |G_b|^2) / (B - b)          the true gradient's squared norm, without bias
    S     = (|G_b|^2 - |G_B|^2) / (1/b - 1/B)          the trace of the covariance of one sample's gradient

and the noise scale is B_simple = S / |G|^2, in samples: about the batch at which noise and gradient are equally large.
Each estimate is noisy and their ratio is biased, so numerator and denominator are smoothed apart. Pollux calls the
same ratio phi; its statistical efficiency of batch B relative to batch B0 is (phi + B0) / (phi + B).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Measured", "NoiseScale", "gain", "measured"]

#: weight of the estimates so far, at each new one
_DECAY = 0.9


@dataclass(frozen=True, slots=True)
class Measured:
    """One step's estimates."""

    #: |G|^2 and S: either may come out negative where noise is large
    grad_sq: float
    trace: float


def measured(mean_small_sq: float, big_sq: float, b: int, num_workers: int) -> Measured | None:
    """From |G_b|^2 (the mean over `num_workers` > 1 gradients of b samples) and |G_B|^2; None if not finite.

    >>> measured(3.0, 2.0, 1, 2)
    Measured(grad_sq=1.0, trace=2.0)
    """
    big = b * num_workers
    grad_sq = (big * big_sq - b * mean_small_sq) / (big - b)
    trace = (mean_small_sq - big_sq) / (1.0 / b - 1.0 / big)
    return Measured(grad_sq, trace) if math.isfinite(grad_sq) and math.isfinite(trace) else None


class NoiseScale:
    """Smoothed over a job's life; equal on all executors, and kept with the job."""

    def __init__(self) -> None:
        self._grad_sq = self._trace = 0.0
        #: the sum of weights, by which the first estimates are not drawn towards zero
        self._weight = 0.0
        #: estimates, and steps at which there could be none
        self.num_measured = self.num_skipped = 0

    def add(self, one: Measured) -> None:
        self._grad_sq = _DECAY * self._grad_sq + (1.0 - _DECAY) * one.grad_sq
        self._trace = _DECAY * self._trace + (1.0 - _DECAY) * one.trace
        self._weight = _DECAY * self._weight + (1.0 - _DECAY)
        self.num_measured += 1

    def skip(self) -> None:
        self.num_skipped += 1

    @property
    def value(self) -> float | None:
        """B_simple in samples of all logical workers; None while there is no estimate, or none that is positive."""
        if not self.num_measured or self._grad_sq <= 0.0:
            return None
        return max(0.0, self._trace / self._grad_sq)

    def state(self) -> list[float | int]:
        return [self._grad_sq, self._trace, self._weight, self.num_measured, self.num_skipped]

    def load(self, state: list[float | int]) -> None:
        self._grad_sq, self._trace, self._weight = (float(one) for one in state[:3])
        self.num_measured, self.num_skipped = int(state[3]), int(state[4])


def gain(noise_scale: float, old: int, new: int) -> float:
    """AdaScale's gain of batch `new` over `old`, both of all logical workers: how many steps of the old one step of the
    new one is worth. With the variance of a batch's gradient S / batch: (S/old + |G|^2) / (S/new + |G|^2).

    >>> gain(0.0, 32, 64), gain(1e30, 32, 64)
    (1.0, 2.0)
    """
    return (noise_scale / old + 1.0) / (noise_scale / new + 1.0)
