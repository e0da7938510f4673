"""Is a machine quiet enough for step times to mean anything? Pure: figures in, a sentence out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Spread", "doubt", "spread_of"]

#: the middle half of the steps may differ by this share of their median
_STEADY = 0.35
#: processors' worth of work that others may do, of those that there are
_OTHERS = 0.5


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of steps: the median, and the quarter below and above which a quarter of them lie."""

    low_s: float
    median_s: float
    high_s: float

    @property
    def is_steady(self) -> bool:
        return self.high_s - self.low_s <= _STEADY * self.median_s

    def __str__(self) -> str:
        """In milliseconds.

        >>> str(Spread(0.0021, 0.003, 0.1402))
        '2.1 to 140'
        """
        low, high = (f"{1e3 * one:.1f}" if one < 0.1 else f"{1e3 * one:.0f}" for one in (self.low_s, self.high_s))
        return f"{low} to {high}"


def spread_of(seconds: Sequence[float]) -> Spread:
    """
    >>> spread_of([5.0, 1.0, 2.0, 3.0, 4.0])
    Spread(low_s=2.0, median_s=3.0, high_s=4.0)
    """
    ordered = sorted(seconds)
    return Spread(*(_quantile(ordered, share) for share in (0.25, 0.5, 0.75)))


def doubt(spreads: Mapping[str, Spread], load: float, processors: int) -> str:
    """Why these figures tell little, in a sentence; "" if they look sound. `load` is how many processes of others
    wanted to run when the measurement began.

    >>> doubt({"cpu*1": Spread(1.0, 1.1, 1.2)}, load=0.2, processors=4)
    ''
    >>> print(doubt({"cpu*2": Spread(0.002, 0.003, 0.006), "cpu*1": Spread(0.004, 0.004, 0.004)}, 3.1, 2))
    too busy to tell: others kept 3.1 of 2 processors busy when this began, and half of the steps of cpu*2 lie as far apart as 2.0 to 6.0 ms; measure again when the machine is quiet, or with more --steps
    """  # noqa: E501
    reasons = []
    if load > _OTHERS * processors:
        reasons.append(f"others kept {load:.1f} of {processors} processors busy when this began")
    unsteady = [(name, spread) for name, spread in spreads.items() if not spread.is_steady]
    if unsteady:
        name, spread = max(unsteady, key=lambda one: one[1].high_s / one[1].low_s if one[1].low_s else 0.0)
        reasons.append(f"half of the steps of {name} lie as far apart as {spread} ms")
    remedy = "measure again when the machine is quiet, or with more --steps"
    return f"too busy to tell: {', and '.join(reasons)}; {remedy}" if reasons else ""


def _quantile(ordered: Sequence[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])
