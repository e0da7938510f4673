"""Sides that ran in the same rounds, compared round by round: a ratio, and how far the control strays from 1."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Sample(NamedTuple):
    """One step: seconds by the clock, and of processor time over all threads of all processes."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Figure:
    """B over A, and a second A over the first, as medians over rounds."""

    ratio: float
    control: float
    #: of the control: how far it is from 1, or how far medians stray by chance (two standard errors), if that is more
    half_width: float
    a_ms: float
    b_ms: float


@dataclass(frozen=True)
class Compared:
    cpu: Figure
    wall: Figure
    rounds: int

    def meets(self, limit: float) -> bool:
        """Both kinds of time are at most `limit` times A's, as far as the control can tell."""
        return all(figure.ratio - figure.half_width <= limit for figure in (self.cpu, self.wall))

    def __str__(self) -> str:
        return (
            f"{self.cpu.a_ms:7.1f} -> {self.cpu.b_ms:7.1f} ms of processor time, {self.cpu.ratio:.4f}x, control "
            f"{self.cpu.control:.4f} +- {self.cpu.half_width:.4f}; by the clock {self.wall.a_ms:.1f} ms, "
            f"{self.wall.ratio:.4f}x, control {self.wall.control:.4f} +- {self.wall.half_width:.4f}"
        )

    def as_row(self) -> dict[str, Any]:
        rounded = {
            f"{kind}_{name}": round(value, 4)
            for kind, figure in (("cpu", self.cpu), ("wall", self.wall))
            for name, value in vars(figure).items()
        }
        return {**rounded, "rounds": self.rounds}


def in_rounds(
    makers: Mapping[str, Callable[[], Callable[[], None]]], *, blocks: int, rounds: int, seed: int = 0
) -> list[dict[str, list[Sample]]]:
    """Steps of all sides in random order within every round, by block. Every block builds all sides anew."""
    chance, found = random.Random(seed), []
    for _ in range(blocks):
        sides = {name: makers[name]() for name in chance.sample(list(makers), len(makers))}
        for side in sides.values():
            side()
            side()
        samples: dict[str, list[Sample]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name in chance.sample(list(sides), len(sides)):
                samples[name].append(_timed(sides[name]))
        found.append(samples)
    return found


def _timed(step: Callable[[], None]) -> Sample:
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return Sample(time.perf_counter() - wall, time.process_time() - cpu)


def compare(blocks: Sequence[Mapping[str, Sequence[Sample]]], a: str, b: str, control: str) -> Compared:
    """Sides by name; within a block, samples at the same place are of the same round."""
    rounds = sum(len(block[a]) for block in blocks)
    wall, cpu = (
        _figure(
            [{name: [getattr(s, kind) for s in samples] for name, samples in block.items()} for block in blocks],
            a,
            b,
            control,
        )
        for kind in ("wall_s", "cpu_s")
    )
    return Compared(cpu, wall, rounds)


def _figure(blocks: Sequence[Mapping[str, Sequence[float]]], a: str, b: str, control: str) -> Figure:
    over = [y / x for block in blocks for x, y in zip(block[a], block[b], strict=True)]
    same = [y / x for block in blocks for x, y in zip(block[a], block[control], strict=True)]
    at = statistics.median(same)
    # The median's standard error, with the spread of the middle half in place of a deviation that outliers rule.
    low, _, high = statistics.quantiles(same, n=4) if len(same) > 1 else (at, at, at)
    chance = 2 * 1.2533 * (high - low) / 1.349 / len(same) ** 0.5
    a_ms, b_ms = (statistics.median(t for block in blocks for t in block[name]) * 1e3 for name in (a, b))
    return Figure(statistics.median(over), at, max(abs(at - 1.0), chance), a_ms, b_ms)
