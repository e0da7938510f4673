"""Curves as pictures: one line with its spread, and a small figure for each name that a script logged, over steps."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from isoscale.analysis.palette import FAINT, FEW, INK, PALE, SOFT
from isoscale.timelines.values import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LOSS", "draw_line", "draw_series"]

LOSS = "#33557f"
_HUGE = 1e30
#: so few points are drawn as points, too
_FEW_POINTS = 40


def draw_series(name: str, curve: Curve, number: int = 0) -> Figure:
    """One name over committed steps. `number` chooses the colour. Narrow enough for a telephone."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    figure = Figure(figsize=(4.4, 1.9), facecolor="white")
    axes = figure.add_axes((0.13, 0.2, 0.84, 0.64))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=SOFT, labelsize=8, length=0)
    axes.grid(axis="y", color=PALE, linewidth=1)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    draw_line(axes, curve, LOSS if name == "loss" else FEW[number % len(FEW)])
    axes.set_xlim(left=0)
    axes.set_title(name[:48], loc="left", fontsize=9.5, color=INK, pad=5, parse_math=False)
    axes.set_xlabel("steps", fontsize=8, color=SOFT, labelpad=1)
    return figure


def draw_line(axes: Axes, curve: Curve, colour: str) -> None:
    """Means with their spread; nothing is drawn over a break. An explosion makes the axis logarithmic."""
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    # matplotlib adds margins, which must not overflow.
    low, mean, high = ([min(max(v, -_HUGE), _HUGE) for v in part] for part in (curve.low, curve.value, curve.high))
    if mean and min(low) > 0 and max(high) > 100 * sorted(mean)[len(mean) // 2]:
        axes.set_yscale("log")  # it exploded: the rest would be a flat line
    edges = [0, *curve.breaks, len(curve.t)]
    for first, last in pairwise(edges):
        part = slice(first, last)
        if low[part] != high[part]:
            axes.fill_between(curve.t[part], low[part], high[part], color=colour, alpha=0.18, linewidth=0)
        few = len(mean) <= _FEW_POINTS or last - first == 1
        axes.plot(curve.t[part], mean[part], color=colour, linewidth=1.1, marker="." if few else "", markersize=3.5)
