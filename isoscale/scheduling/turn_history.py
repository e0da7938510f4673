"""Rounds of measured turn times of one set of executors, and what they say for sure. Decides nothing.

A round holds what all members measured over the same steps. Every past round can be asked how long a step would have
taken with other shares; so a split is judged by rounds in which all were slowed alike as well as by others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.speeds import CONFIDENCE

__all__ = ["Round", "TurnHistory", "Vector", "estimate", "log_step"]

Vector = NDArray[np.float64]

#: rounds that are remembered
_MEMORY = 256
#: how many rounds an expectation of the noise is worth against rounds that were seen
_EXPECTED_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Round:
    """What all members measured over the same steps, in their order."""

    steps: int
    #: seconds of one more turn
    turn_seconds: tuple[float, ...]
    #: seconds of a step that no split changes
    rest_s: float = 0.0

    @property
    def is_usable(self) -> bool:
        return self.steps >= 1 and bool(self.turn_seconds) and all(0 < t < math.inf for t in self.turn_seconds)


class TurnHistory:
    """One row per round, the newest last. `fresh` of them are evidence: with the present shares, since a proposal."""

    def __init__(self, num_members: int) -> None:
        self.fresh = 0
        self.steps: Vector = np.empty(0)
        self.rest: Vector = np.empty(0)
        self.times: Vector = np.empty((0, num_members))
        self._shares: Vector = np.empty((0, num_members))

    def add(self, seen: Round, shares: tuple[int, ...]) -> None:
        """What was measured, with these shares."""
        self.fresh = min(self.fresh + 1, _MEMORY)
        self.steps = np.append(self.steps, seen.steps)[-_MEMORY:]
        self.rest = np.append(self.rest, seen.rest_s)[-_MEMORY:]
        self.times = np.vstack((self.times, seen.turn_seconds))[-_MEMORY:]
        self._shares = np.vstack((self._shares, shares))[-_MEMORY:]

    def windows(self, least: int) -> Iterator[tuple[int, int]]:
        """So many of the newest rounds, and their steps: as few as cover `least` steps, then twice as many, and on."""
        covered = np.cumsum(self.steps[::-1][: self.fresh])
        goal: float = least
        while len(covered) and goal <= covered[-1]:
            window = int(np.searchsorted(covered, goal)) + 1
            # Long windows change slowly: they are looked at when they have changed by half, which saves most work.
            if goal == least or self.fresh % max(1, window // 2) == 0:
                yield window, int(covered[window - 1])
            goal = 2 * float(covered[window - 1])

    def longest_passed(self, gains: Vector, shares: tuple[int, ...]) -> float:
        """Steps for which, with these shares, `gains` (of the oldest rounds) were positive in one go until that passed
        by itself. What goes on has not passed, and what ended in a move neither."""
        alike = np.all(self._shares[: len(gains)] == shares, axis=1)
        better = alike & (gains > 0)
        so_far = np.cumsum(self.steps[: len(gains)] * better)
        runs = so_far - np.maximum.accumulate(np.where(better, 0.0, so_far))
        passed = runs[:-1][better[:-1] & ~better[1:] & alike[1:]]
        return float(passed.max(initial=0.0))


def log_step(shares: Sequence[int], times: Vector, rest: Vector) -> Vector:
    """Logarithms of a step's seconds in each round, had these been the shares."""
    seconds: Vector = (times * np.array(shares)).max(axis=1) + rest
    return np.log(seconds)


def estimate(values: Vector, weights: Vector, expected: float) -> tuple[float, float]:
    """The weighted mean of the newest values, and what it is at least, if chance is as large as it has been.

    That is measured by how much values vary about the mean of their part: those with a weight, and all before. So a
    lasting change is no chance, what comes and goes is. `expected` is the variance to reckon with before any was seen.
    """
    window = len(weights)
    parts = [part for part in (values[:-window], values[-window:]) if len(part)]
    squares = math.fsum(float(np.var(part)) * len(part) for part in parts)
    freedom = sum(len(part) - 1 for part in parts)
    variance = (_EXPECTED_ROUNDS * expected + squares) / (_EXPECTED_ROUNDS + freedom)
    mean = float(weights @ values[-window:])
    return mean, mean - CONFIDENCE * math.sqrt(variance / window)
