"""How benchmarks measure: ratios from interleaved runs, beside a control.

Machines are noisy, so A and B run in random order in one process (or one set of processes), a second
A serves as the control, and a ratio is that of 10th percentiles. The control's half-width is how far
A against itself strays from 1; a target is met when the ratio less that half-width meets it.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.lib import processes
from benchmarks.lib.result import RESULTS, save
from isoscale.backends.local import ALLOCATOR

__all__ = ["RESULTS", "Ratio", "as_executor", "interleave", "percentile", "ratio_of", "rounded", "save"]

Make = Callable[[], Callable[[], None]]


@dataclass(frozen=True)
class Ratio:
    """B over A, and A over itself."""

    ratio: float
    control: float
    half_width: float
    a_ms: float
    b_ms: float
    pairs: int

    def meets(self, limit: float) -> bool:
        """For limits from above (step times)."""
        return self.ratio - self.half_width <= limit


def interleave(make_a: Make, make_b: Make, *, blocks: int, pairs: int, seed: int = 0) -> Ratio:
    """Time A, B and another A as control, in random order within every round.

    Every block builds all three anew: where a model happens to lie in memory can cost a tenth of its speed,
    and is nobody's merit. What has a method `close` is closed at the end of its block.
    """
    order = random.Random(seed)
    times: dict[str, list[list[float]]] = {"a": [], "b": [], "control": []}
    for _ in range(blocks):
        makers = {"a": make_a, "b": make_b, "control": make_a}
        work = {name: makers[name]() for name in order.sample(list(makers), len(makers))}
        for warm in work.values():
            warm()
            warm()
        block: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(pairs):
            for name in order.sample(list(work), len(work)):
                start = time.perf_counter()
                work[name]()
                block[name].append(time.perf_counter() - start)
        for name, one in work.items():
            times[name].append(block[name])
            getattr(one, "close", lambda: None)()
    return ratio_of(times)


def ratio_of(times: Mapping[str, list[list[float]]]) -> Ratio:
    flat = {name: [t for block in blocks for t in block] for name, blocks in times.items()}
    low = {name: percentile(values, 10) for name, values in flat.items()}
    per_block = [percentile(c, 10) / percentile(a, 10) for c, a in zip(times["control"], times["a"], strict=True)]
    half = max(abs(low["control"] / low["a"] - 1.0), statistics.pstdev(per_block) / max(1, len(per_block)) ** 0.5)
    return Ratio(
        round(low["b"] / low["a"], 4),
        round(low["control"] / low["a"], 4),
        round(half, 4),
        round(low["a"] * 1e3, 3),
        round(low["b"] * 1e3, 3),
        len(flat["a"]),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def rounded(value: float | None) -> float | int | None:
    """Five significant digits are more than any of these figures is worth; counts stay whole."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.5g}")


def as_executor() -> None:
    """Start this process again with the memory settings that executors get, for all sides alike."""
    if not set(ALLOCATOR) <= set(os.environ):
        processes.start_again(ALLOCATOR)
