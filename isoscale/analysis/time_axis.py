"""Ticks of a logarithmic axis of time, at times that people say. matplotlib is imported when something is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["round_times", "set_time_ticks"]

_TIMES = {
    0.1: "0.1 s",
    1: "1 s",
    10: "10 s",
    60: "1 min",
    600: "10 min",
    3600: "1 h",
    36_000: "10 h",
    345_600: "4 days",
    2_592_000: "30 days",
}


def round_times(low: float, high: float) -> dict[float, str]:
    """Seconds and their words, of the round times within these bounds."""
    return {at: text for at, text in _TIMES.items() if low <= at <= high}


def set_time_ticks(axes: Axes) -> None:
    """On the x axis, whose limits stay; its own ticks stay if no round time is within them."""
    from matplotlib.ticker import NullFormatter, NullLocator

    low, high = axes.get_xlim()
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    if kept := round_times(low, high):
        axes.set_xticks(list(kept), list(kept.values()))
    axes.set_xlim(low, high)
