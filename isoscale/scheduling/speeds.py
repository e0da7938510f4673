"""What is known of executors' speeds, from rounds in which all were measured side by side. Counts no time.

A round compares its members only with each other: whatever slows all of them alike (a busy machine, longer batches)
says nothing about who is slow. What is known of an executor outlives moves of logical workers and changes of
membership; the last few rounds count.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import mean, median

__all__ = ["Speeds"]

#: rounds that count, and fewer than which prove nothing
_KEPT, _LEAST = 8, 4


class Speeds:
    def __init__(self) -> None:
        #: by executor: logarithms of a turn's time, relative to the round's geometric mean
        self._known: dict[int, deque[float]] = {}

    def learn(self, turn_seconds: Mapping[int, float]) -> None:
        """Another round: positive seconds of a turn by executor. One alone says nothing."""
        if len(turn_seconds) < 2:
            return
        logs = {executor: math.log(seconds) for executor, seconds in turn_seconds.items()}
        middle = math.fsum(logs.values()) / len(logs)
        for executor, log in logs.items():
            self._known.setdefault(executor, deque(maxlen=_KEPT)).append(log - middle)

    def forget(self, executor: int) -> None:
        self._known.pop(executor, None)

    def relative(self, executors: Sequence[int], kinds: Sequence[str]) -> list[float]:
        """Turn times in a common unit. One that was never measured is taken for the mean of its kind, or of all."""
        values = {e: median(self._known[e]) for e in executors if e in self._known}
        by_kind: dict[str, list[float]] = {}
        for executor, kind in zip(executors, kinds, strict=True):
            if executor in values:
                by_kind.setdefault(kind, []).append(values[executor])
        overall = mean(values.values()) if values else 0.0
        means = {kind: mean(logs) for kind, logs in by_kind.items()}
        return [
            math.exp(values.get(executor, means.get(kind, overall)))
            for executor, kind in zip(executors, kinds, strict=True)
        ]

    def surely_differ(self, executors: Sequence[int], ratio: float) -> bool:
        """Was the slowest of them more than `ratio` times as slow as the fastest, in most rounds of both?"""
        known = [sorted(self._known[e]) for e in executors if len(self._known.get(e, ())) >= _LEAST]
        if len(known) < 2:
            return False
        slowest, fastest = max(known, key=median), min(known, key=median)
        return slowest[len(slowest) // 4] - fastest[-1 - len(fastest) // 4] > math.log(ratio)
