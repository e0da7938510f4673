"""What is known of executors' speeds, from rounds in which all were measured side by side. Counts no time.

A round compares its members only with each other: whatever slows all of them alike (a busy machine, longer batches)
says nothing about who is slow. What is known of an executor outlives moves of logical workers and changes of
membership; the newest rounds count most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["CONFIDENCE", "Speeds"]

#: standard errors by which something must differ from what chance would make of it
CONFIDENCE = 2.5
#: weight of the newest round, once there were some
_NEWEST = 0.2
#: nothing repeats itself more exactly: relative spread of an executor's time from round to round
_QUIET = 0.035


@dataclass(slots=True)
class _Known:
    """Logarithm of a turn's time, relative to the round's geometric mean: its mean and variance."""

    mean: float
    variance: float = 0.0
    rounds: int = 1


class Speeds:
    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def learn(self, turn_seconds: Mapping[int, float]) -> None:
        """Another round: positive seconds of a turn by executor. One alone says nothing."""
        if len(turn_seconds) < 2:
            return
        logs = {executor: math.log(seconds) for executor, seconds in turn_seconds.items()}
        middle = math.fsum(logs.values()) / len(logs)
        for executor, log in logs.items():
            value, known = log - middle, self._known.get(executor)
            if known is None:
                self._known[executor] = _Known(value)
                continue
            known.rounds += 1
            weight = max(_NEWEST, 1 / known.rounds)
            change = value - known.mean
            known.mean += weight * change
            known.variance = (1 - weight) * (known.variance + weight * change * change)

    def forget(self, executor: int) -> None:
        self._known.pop(executor, None)

    def variance(self, executors: Sequence[int]) -> float:
        """How much the comparison of two of them varies from round to round, as the variance of a logarithm."""
        known = [self._known[e].variance for e in executors if e in self._known]
        return 2 * max(_QUIET * _QUIET, math.fsum(known) / len(known) if known else 0.0)

    def relative(self, executors: Sequence[int], kinds: Sequence[str]) -> list[float]:
        """Turn times in a common unit. One that was never measured is taken for the mean of its kind, or of all."""
        values = {e: self._known[e].mean for e in executors if e in self._known}
        by_kind: dict[str, list[float]] = {}
        for executor, kind in zip(executors, kinds, strict=True):
            if executor in values:
                by_kind.setdefault(kind, []).append(values[executor])
        overall = math.fsum(values.values()) / len(values) if values else 0.0
        means = {kind: math.fsum(logs) / len(logs) for kind, logs in by_kind.items()}
        return [
            math.exp(values.get(executor, means.get(kind, overall)))
            for executor, kind in zip(executors, kinds, strict=True)
        ]

    def surely_differ(self, executors: Sequence[int], ratio: float) -> bool:
        """Is the slowest of them more than `ratio` times as slow as the fastest, and not by chance?"""
        known = [self._known[e] for e in executors if e in self._known]
        if len(known) < 2:
            return False
        slowest, fastest = max(known, key=lambda one: one.mean), min(known, key=lambda one: one.mean)
        noise = math.sqrt(self._error(slowest) + self._error(fastest))
        return slowest.mean - fastest.mean - CONFIDENCE * noise > math.log(ratio)

    def _error(self, known: _Known) -> float:
        """Of the mean, squared. One that was seen a few times only is no steadier than others."""
        lasting = (2 - _NEWEST) / _NEWEST
        return max(known.variance, self.variance(tuple(self._known)) / 2) / min(known.rounds, lasting)
