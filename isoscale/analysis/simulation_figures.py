"""Policies compared in pictures: completion times as a CDF, devices in use over time, a Gantt chart of jobs.

Draws what `PolicyRun` holds; computes nothing. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from isoscale.analysis.palette import FAINT, FEW, INK, PALE, SOFT
from isoscale.analysis.simulation_values import PolicyRun
from isoscale.analysis.time_axis import set_time_ticks
from isoscale.analysis.words import duration, scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_cdf", "draw_gantt", "draw_overview", "draw_utilisation"]

_WIDTH, _LEFT, _RIGHT = 11.0, 1.35, 0.35
_TOP, _BOTTOM, _BETWEEN = 0.95, 0.6, 0.32
_CDF_HEIGHT, _BARS_WIDTH = 2.7, 3.6
_USE_HEIGHT, _GANTT_HEIGHT = 0.85, 2.4
_STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), "-.")
#: devices of a job -> colour, from few to many
_SIZES = ("#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b")
_BUSY, _HELD = "#2f7d5b", "#b9dfca"


def draw_overview(runs: Sequence[PolicyRun], title: str, subtitle: str) -> Figure:
    """Everything on one sheet: CDF and means above, then each policy's use of devices, then its jobs."""
    from matplotlib.figure import Figure

    columns = 1 if len(runs) < 3 else 2
    lines = -(-len(runs) // columns)
    height = _TOP + _CDF_HEIGHT + 0.75 + len(runs) * (_USE_HEIGHT + _BETWEEN) + 0.55
    height += lines * (_GANTT_HEIGHT + _BETWEEN) + _BOTTOM
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")

    def panel(top: float, tall: float, left: float = _LEFT, right: float = _RIGHT) -> Axes:
        return _clean(
            figure.add_axes((left / _WIDTH, 1 - (top + tall) / height, 1 - (left + right) / _WIDTH, tall / height))
        )

    figure.text(0.3 / _WIDTH, 1 - 0.36 / height, title, fontsize=13, weight="bold", color=INK, parse_math=False)
    figure.text(0.3 / _WIDTH, 1 - 0.61 / height, subtitle, fontsize=9, color=SOFT, parse_math=False)
    # The bars beside it are its legend.
    _cdf(panel(_TOP, _CDF_HEIGHT, _LEFT, _BARS_WIDTH + 1.1), runs)
    _means(panel(_TOP, _CDF_HEIGHT, _WIDTH - _BARS_WIDTH + 0.55, _RIGHT + 0.5), runs)
    at = _TOP + _CDF_HEIGHT + 0.75
    longest = max(run.edges[-1] for run in runs)
    for number, run in enumerate(runs):
        axes = panel(at, _USE_HEIGHT)
        _utilisation(axes, run, longest, name=run.policy, labels=number == len(runs) - 1, legend=number == 0)
        at += _USE_HEIGHT + _BETWEEN
    at += 0.55
    left, gap = (_LEFT if columns == 1 else 0.3), 0.35
    wide = (_WIDTH - left - _RIGHT - (columns - 1) * gap) / columns
    for number, run in enumerate(runs):
        line, column = divmod(number, columns)
        begin = left + column * (wide + gap)
        axes = panel(at + line * (_GANTT_HEIGHT + _BETWEEN), _GANTT_HEIGHT, begin, _WIDTH - begin - wide)
        last = number + columns >= len(runs)
        _gantt(axes, run, longest, labels=last, names=columns == 1)
        if number == columns - 1:
            _size_legend(axes, runs, above=1.07)
    return figure


def draw_cdf(runs: Sequence[PolicyRun]) -> Figure:
    figure, axes = _one(3.4)
    _cdf(axes, runs)
    box = axes.get_position()
    axes.set_position((box.x0, box.y0, 0.66, box.height))
    axes.legend(
        loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, frameon=False, labelcolor=INK, handlelength=2.2
    )
    return figure


def draw_utilisation(runs: Sequence[PolicyRun]) -> Figure:
    from matplotlib.figure import Figure

    height = 0.4 + len(runs) * (_USE_HEIGHT + _BETWEEN) + 0.35
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    longest = max(run.edges[-1] for run in runs)
    for number, run in enumerate(runs):
        top = 0.4 + number * (_USE_HEIGHT + _BETWEEN)
        box = (_LEFT / _WIDTH, 1 - (top + _USE_HEIGHT) / height, 1 - (_LEFT + _RIGHT) / _WIDTH, _USE_HEIGHT / height)
        axes = _clean(figure.add_axes(box))
        _utilisation(axes, run, longest, name=run.policy, labels=number == len(runs) - 1, legend=number == 0)
    return figure


def draw_gantt(run: PolicyRun, longest: float) -> Figure:
    figure, axes = _one(max(1.6, min(7.5, 0.9 + 0.045 * len(run.rows))), top=0.42)
    _gantt(axes, run, longest, labels=True)
    _size_legend(axes, [run])
    return figure


def _one(tall: float, top: float = 0.3) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    height = top + tall + _BOTTOM
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    box = (_LEFT / _WIDTH, _BOTTOM / height, 1 - (_LEFT + _RIGHT) / _WIDTH, tall / height)
    return figure, _clean(figure.add_axes(box))


def _clean(axes: Axes) -> Axes:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=SOFT, labelsize=8, length=0)
    axes.grid(color=PALE, linewidth=1)
    axes.set_axisbelow(True)
    return axes


def _cdf(axes: Axes, runs: Sequence[PolicyRun]) -> None:
    for number, run in enumerate(runs):
        if not len(run.jcts):
            continue
        # Enough points for a smooth line, the first and the last among them.
        at = np.unique(np.linspace(0, len(run.jcts) - 1, 600).round().astype(int))
        axes.plot(
            np.maximum(run.jcts[at], 1e-3),
            (at + 1) / len(run.jcts),
            color=FEW[number % len(FEW)],
            linestyle=_STYLES[number // len(FEW) % len(_STYLES)],
            linewidth=1.6,
            label=_name(run),
            drawstyle="steps-post" if len(at) < 40 else "default",
        )
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25 %", "50 %", "75 %", "all"])
    set_time_ticks(axes)
    axes.set_title("jobs done within a time of their submission", loc="left", fontsize=9, color=INK)


def _means(axes: Axes, runs: Sequence[PolicyRun]) -> None:
    """Mean completion time as bars, with the numbers beside them."""
    values = [run.summary.mean_jct_s for run in runs]
    places = np.arange(len(runs))[::-1]
    axes.barh(places, np.nan_to_num(values), height=0.62, color=[FEW[i % len(FEW)] for i in range(len(runs))])
    most = max([value for value in values if value == value], default=1.0)
    for place, value in zip(places, values, strict=True):
        axes.text(value + 0.02 * most, place, duration(value), va="center", fontsize=7.5, color=INK)
    axes.set_yticks(places, [_name(run) for run in runs])
    axes.set_xlim(0, most * 1.32)
    # A few bars stay thin, at the top.
    axes.set_ylim(min(-0.6, len(runs) - 6.5), len(runs) - 0.4)
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.set_title("mean completion time", loc="left", fontsize=9, color=INK)


def _utilisation(axes: Axes, run: PolicyRun, longest: float, *, name: str, labels: bool, legend: bool) -> None:
    unit, seconds = scale(longest)
    at = np.repeat(run.edges / seconds, 2)[1:-1]
    held, busy, there = (np.repeat(values, 2) for values in (run.allocated, run.busy, run.capacity))
    axes.fill_between(at, there, color=PALE, linewidth=0, label="there")
    axes.fill_between(at, held, color=_HELD, linewidth=0, label="held by jobs")
    axes.fill_between(at, busy, color=_BUSY, linewidth=0, alpha=0.85, label="computing")
    axes.set_xlim(0, longest / seconds)
    axes.set_ylim(0, 1.0)
    axes.set_yticks([0, 0.5, 1.0], ["0", "50 %", "100 %"])
    axes.set_title(name, loc="left", fontsize=8.5, color=INK, pad=3)
    shares = f"held {run.summary.allocated_utilisation:.0%}, computing {run.summary.busy_utilisation:.0%}"
    axes.set_title(shares, loc="right", fontsize=7.5, color=SOFT, pad=3)
    axes.grid(visible=False)
    _time_labels(axes, unit, labels)
    if legend:
        axes.legend(
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=3,
            fontsize=7.5,
            frameon=False,
            labelcolor=INK,
            handlelength=1.2,
            borderaxespad=0.2,
        )


def _gantt(axes: Axes, run: PolicyRun, longest: float, *, labels: bool, names: bool = True) -> None:
    from matplotlib.collections import LineCollection, PolyCollection

    unit, seconds = scale(longest)
    waits, boxes, faces = [], [], []
    # A bar of no width on paper would not be seen at all.
    least = longest / 1500
    for place, row in enumerate(run.rows):
        waits.append([(row.submitted / seconds, place), (row.ended / seconds, place)])
        for bar in row.bars:
            begin, end = bar.begin / seconds, max(bar.end, bar.begin + least) / seconds
            low, high = place - 0.42, place + 0.42
            boxes.append([(begin, low), (end, low), (end, high), (begin, high)])
            faces.append(_size_colour(bar.devices))
    axes.add_collection(LineCollection(waits, colors=FAINT, linewidths=0.7, zorder=1))
    axes.add_collection(PolyCollection(boxes, facecolors=faces, linewidths=0, zorder=2))
    axes.set_xlim(0, longest / seconds)
    axes.set_ylim(len(run.rows) - 0.4, -0.6)
    few = names and len(run.rows) <= 24
    axes.set_yticks(range(len(run.rows)) if few else [], [row.name[:20] for row in run.rows] if few else [])
    axes.grid(visible=few, axis="x")
    every = len(run.rows) == run.num_jobs
    shown = f"{run.num_jobs} jobs" if every else f"the {len(run.rows)} largest of {run.num_jobs:,} jobs"
    axes.set_title(f"{run.policy}: {shown}", loc="left", fontsize=8.5, color=INK, pad=3)
    _time_labels(axes, unit, labels)


def _size_legend(axes: Axes, runs: Sequence[PolicyRun], above: float = 1.0) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    most = max((bar.devices for run in runs for row in run.rows for bar in row.bars), default=1)
    sizes = [2**power for power in range(len(_SIZES)) if 2**power <= most]
    waits = Line2D([], [], color=FAINT, linewidth=1.4, label="none: waits")
    found = axes.legend(
        handles=[waits, *(Patch(color=_size_colour(size), label=str(size)) for size in sizes)],
        title="devices",
        ncols=len(sizes) + 1,
        loc="lower right",
        bbox_to_anchor=(1.0, above),
        fontsize=7.5,
        title_fontsize=7.5,
        frameon=False,
        labelcolor=INK,
        handlelength=0.9,
        handleheight=0.9,
        columnspacing=0.8,
        borderaxespad=0.1,
        alignment="right",
    )
    found.get_title().set_color(SOFT)


def _size_colour(devices: int) -> str:
    return _SIZES[min(len(_SIZES) - 1, max(1, devices).bit_length() - 1)]


def _time_labels(axes: Axes, unit: str, labels: bool) -> None:
    if labels:
        axes.set_xlabel(f"{unit} since the first submission", fontsize=8, color=SOFT)
    else:
        axes.set_xticklabels([])


def _name(run: PolicyRun) -> str:
    return f"{run.policy} (oracle)" if run.oracle else run.policy
