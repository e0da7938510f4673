"""A timeline as a picture: executors and what they hosted, rescales and faults, loss and throughput below.

Every executor that ever hosted one is a row, striped in the colours of its logical workers. Draws what a timeline
holds; computes nothing. matplotlib is imported when something is drawn, and its global state is left alone.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from isoscale.analysis.curve_figures import LOSS, draw_line
from isoscale.analysis.figure_rows import draw_batches, draw_marks, draw_rows, draw_sizes, panel_name
from isoscale.analysis.palette import CHECKPOINT, FAINT, INK, PALE, RESCALE, SIGNS, SOFT
from isoscale.analysis.words import scale, subtitle, title
from isoscale.timelines.placements import in_order
from isoscale.timelines.values import Curve, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_timeline", "render"]

_SPEED = "#2f7d5b"

_WIDTH, _LEFT, _RIGHT = 11.0, 1.5, 0.85
_TOP, _BOTTOM, _BETWEEN = 1.0, 0.88, 0.34
_MARGIN = 0.3
_LOSS_HEIGHT, _SPEED_HEIGHT, _BATCH_HEIGHT, _EMPTY_HEIGHT = 1.35, 1.1, 0.8, 0.45


def render(figure: Figure, form: Literal["png", "svg"] = "png", dpi: int = 130) -> bytes:
    """The same bytes for the same figure: no date, no random names."""
    import matplotlib

    buffer = io.BytesIO()
    nothing = {"Software": None} if form == "png" else {"Date": None, "Creator": None}
    with matplotlib.rc_context({"svg.hashsalt": "isoscale", "svg.fonttype": "path"}), warnings.catch_warnings():
        # A job may be named in a script that the font does not have.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(buffer, format=form, dpi=dpi, metadata=nothing)
    return buffer.getvalue()


def draw_timeline(shown: Timeline, *, heading: bool = True) -> Figure:
    """The whole figure. Its height grows with the number of executors. A page has the heading in words of its own."""
    from matplotlib.figure import Figure

    shown = _without_idlers(shown)
    rows = sorted({life.executor for life in shown.lives}, key=in_order)
    rows_height = _rows_height(len(rows))
    top_height = _TOP if heading else _TOP - 0.62
    loss_height = _LOSS_HEIGHT if shown.loss.t else _EMPTY_HEIGHT
    speed_height = _SPEED_HEIGHT if shown.throughput.t else _EMPTY_HEIGHT
    batch_height = _BETWEEN + _BATCH_HEIGHT if shown.batches else 0.0
    height = top_height + rows_height + _BETWEEN + loss_height + _BETWEEN + speed_height + batch_height + _BOTTOM
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")

    def panel(top: float, tall: float) -> Axes:
        box = (_LEFT / _WIDTH, 1 - (top + tall) / height, 1 - (_LEFT + _RIGHT) / _WIDTH, tall / height)
        axes = figure.add_axes(box)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(FAINT)
        axes.tick_params(colors=SOFT, labelsize=8, length=0)
        return axes

    view = _view(shown)
    top = panel(top_height, rows_height)
    loss = panel(top_height + rows_height + _BETWEEN, loss_height)
    speed = panel(top_height + rows_height + _BETWEEN + loss_height + _BETWEEN, speed_height)
    if rows:
        draw_rows(top, shown, rows, rows_height, view)
    else:
        draw_sizes(top, shown)
    _draw_curve(loss, shown.loss, LOSS, "loss")
    _draw_curve(speed, shown.throughput, _SPEED, "steps per second")
    panels = [top, loss, speed]
    if shown.batches:
        panels.append(panel(height - _BOTTOM - _BATCH_HEIGHT, _BATCH_HEIGHT))
        draw_batches(panels[-1], shown, view)
    _draw_rescales(panels, shown, view)
    draw_marks(top, loss, shown, rows, view)
    _time_axis(panels, view)
    if heading:
        left = _MARGIN / _WIDTH
        figure.text(left, 1 - 0.36 / height, title(shown), fontsize=13, weight="bold", color=INK, parse_math=False)
        figure.text(left, 1 - 0.62 / height, subtitle(shown), fontsize=9, color=SOFT, parse_math=False)
    _legend(figure, shown, height)
    return figure


def _without_idlers(shown: Timeline) -> Timeline:
    """Spares and newcomers that never hosted a logical worker have no row, unless nobody ever did."""
    hosts = {life.executor for life in shown.lives if life.stays}
    return replace(shown, lives=tuple(life for life in shown.lives if life.executor in hosts)) if hosts else shown


def _view(shown: Timeline) -> tuple[float, float]:
    """The stretch of time to draw: all of it, less most of a start that took long beside the training."""
    first = min((stay.start for life in shown.lives for stay in life.stays), default=0.0)
    trained = shown.seconds - first
    return (first - 0.05 * trained if 0 < trained < 6 * first else 0.0), shown.seconds or 1.0


def _rows_height(rows: int) -> float:
    """Comfortable rows for a few executors, thin ones for many, 20 inches for any number."""
    return 1.3 if rows == 0 else min(max(0.34 * rows if rows <= 12 else 2.6 + 0.12 * rows, 0.7), 20.0)


def _draw_curve(axes: Axes, curve: Curve, colour: str, name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    panel_name(axes, name)
    axes.grid(axis="y", color=PALE, linewidth=1)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    if not curve.t:
        axes.set_yticks([])
        axes.text(
            0.5, 0.5, "nothing logged", transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=9
        )
        return
    if name == "loss":
        draw_line(axes, curve, colour)
    else:
        axes.fill_between(curve.t, curve.value, step="post", color=colour, alpha=0.16, linewidth=0)
        axes.plot(curve.t, curve.value, color=colour, linewidth=1.1, drawstyle="steps-post")
        axes.set_ylim(0, max(curve.value) * 1.12 or 1.0)


def _draw_rescales(panels: Sequence[Axes], shown: Timeline, view: tuple[float, float]) -> None:
    width = 0.8 if len(shown.rescales) <= 20 else 0.4
    times = [rescale.t for rescale in shown.rescales]
    for axes in panels:
        at = axes.get_xaxis_transform()
        axes.vlines(times, 0, 1, RESCALE, (0, (3, 2)), transform=at, linewidth=width, alpha=0.75, zorder=3)
    # Two lines of labels, for a loss and the replacement that follows it at once; what finds no place has none.
    taken_until = [-1.0, -1.0]
    for rescale in shown.rescales:
        moved = rescale.num_before == rescale.num_after
        label = "moved" if moved else f"{rescale.num_before}→{rescale.num_after}"
        half = (view[1] - view[0]) * (0.006 + 0.0039 * len(label))
        line = next((line for line, until in enumerate(taken_until) if rescale.t - half >= until), None)
        if rescale.num_before is None or rescale.num_after is None or line is None:
            continue
        panels[0].annotate(
            label,
            (rescale.t, 1.0),
            (0, 9 * line),
            xycoords=panels[0].get_xaxis_transform(),
            textcoords="offset points",
            fontsize=7.5,
            color=RESCALE,
            ha="center",
            va="bottom",
        )
        taken_until[line] = rescale.t + half


def _time_axis(panels: Sequence[Axes], view: tuple[float, float]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    begin, end = view
    unit, length = scale(end - begin)
    # Ticks at round numbers of the unit, not of seconds.
    ticks = [
        tick * length for tick in MaxNLocator(nbins=10, steps=[1, 2, 5, 10]).tick_values(begin / length, end / length)
    ]
    for axes in panels:
        axes.set_xlim(begin - 0.004 * (end - begin), end + 0.004 * (end - begin))
        axes.set_xticks([tick for tick in ticks if begin <= tick <= end])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{t / length:g}"))
        axes.tick_params(labelbottom=axes is panels[-1])
    panels[-1].set_xlabel(f"{unit} since the start", fontsize=8.5, color=SOFT)


def _legend(figure: Figure, shown: Timeline, height: float) -> None:
    from matplotlib.lines import Line2D

    kinds = {mark.kind for mark in shown.marks}
    signs = [sign for kind, sign in SIGNS.items() if kind in kinds] + ([CHECKPOINT] if shown.checkpoints else [])
    handles = [
        Line2D([], [], linestyle="", marker=s.marker, color=s.colour, label=s.label, markersize=6) for s in signs
    ]
    if shown.rescales:
        handles.insert(0, Line2D([], [], color=RESCALE, linewidth=0.8, dashes=(3, 2), label="rescale"))
    seen = 0.003 * shown.seconds
    if any(life.ended - life.started > seen + sum(s.end - s.start for s in life.stays) for life in shown.lives):
        handles.append(Line2D([], [], color=FAINT, linewidth=1.2, label="process that hosts nothing"))
    if handles:
        corner = (_MARGIN / _WIDTH - 0.012, 0.06 / height)
        figure.legend(
            handles=handles,
            ncols=len(handles),
            frameon=False,
            fontsize=8,
            labelcolor=SOFT,
            handletextpad=0.4,
            loc="lower left",
            bbox_to_anchor=corner,
        )
