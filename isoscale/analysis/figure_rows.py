"""The upper panel of a timeline's figure: executors as rows, or their number where the log knows no more; marks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoscale.analysis.palette import CHECKPOINT, FAINT, FEW, INK, SIGNS, SOFT, worker_colours
from isoscale.timelines.fields import ExecutorId
from isoscale.timelines.values import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_batches", "draw_marks", "draw_rows", "draw_sizes", "panel_name"]

#: rectangles beyond which nobody could tell one from another
_MAX_STRIPES = 30_000


def draw_rows(axes: Axes, shown: Timeline, rows: list[ExecutorId], tall: float, view: tuple[float, float]) -> None:
    """The lives of executors as rows; `tall` is the height of the panel in inches, `view` the time that it shows."""
    from matplotlib.collections import PolyCollection

    place = {executor: row for row, executor in enumerate(rows)}
    colours = worker_colours(shown.num_logical_workers or 1)
    thick = 0.78 if tall / len(rows) > 0.16 else 0.9
    stays = [(place[life.executor], stay) for life in shown.lives for stay in life.stays]
    stripes = sum(1 if s.first is None or s.last is None else s.last - s.first + 1 for _, s in stays)
    shortest = (view[1] - view[0]) / 2000 if stripes > _MAX_STRIPES else 0.0
    corners, faces = [], []
    for row, stay in stays:
        if stay.end - stay.start < shortest:
            continue
        known = stay.first is not None and stay.last is not None
        ranks = range(stay.first or 0, (stay.last or 0) + 1) if known else range(1)
        for index, rank in enumerate(ranks):
            low = row - thick / 2 + thick * index / len(ranks)
            high = low + thick / len(ranks)
            corners.append([(stay.start, low), (stay.end, low), (stay.end, high), (stay.start, high)])
            faces.append(colours[rank] if known else FAINT)
    for life in shown.lives:
        row = place[life.executor]
        axes.plot([life.started, life.ended], [row, row], color=FAINT, linewidth=1.2, solid_capstyle="butt", zorder=1)
    stripes_drawn = PolyCollection(corners, facecolors=faces, linewidths=0, antialiaseds=False, zorder=2)
    stripes_drawn.set_rasterized(len(corners) > 4000)
    axes.add_collection(stripes_drawn)
    if tall / len(rows) >= 0.2:
        _name_blocks(axes, shown, place, (view[1] - view[0]) * 0.045)
    every = max(1, round(0.15 * len(rows) / tall + 0.49))
    kinds = {life.executor: life.kind for life in shown.lives}
    several = len(set(kinds.values())) > 1
    names = [f"executor {executor}, {kinds[executor]}" if several else f"executor {executor}" for executor in rows]
    axes.set_yticks(range(0, len(rows), every), [name[:24] for name in names[::every]], parse_math=False)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    if every == 1:
        _idle_column(axes, shown, place)


def draw_sizes(axes: Axes, shown: Timeline) -> None:
    """How many executors, where the log knows no single one."""
    from matplotlib.ticker import MaxNLocator

    if shown.sizes:
        times = [t for t, _ in shown.sizes] + [shown.seconds]
        sizes = [size for _, size in shown.sizes] + [shown.sizes[-1][1]]
        axes.fill_between(times, sizes, step="post", color=FEW[0], alpha=0.25, linewidth=0)
        axes.plot(times, sizes, drawstyle="steps-post", color=FEW[0], linewidth=1.5)
    axes.set_ylim(0, max((size for _, size in shown.sizes), default=1) * 1.15)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    panel_name(axes, "executors")


def draw_marks(axes: Axes, loss: Axes, shown: Timeline, rows: list[ExecutorId], view: tuple[float, float]) -> None:
    """Marks of an executor in its row, others on the line below `axes` or `loss`; those before `view` at its edge."""
    place = {executor: row for row, executor in enumerate(rows)}
    size = 46 if len(rows) <= 16 else 30
    style: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.8, "zorder": 6, "clip_on": False}
    under: dict[str, Any] = {"linewidths": 1.2, "zorder": 5, "clip_on": False}
    for kind, sign in SIGNS.items():
        here = [mark for mark in shown.marks if mark.kind == kind]
        rowed = [(max(mark.t, view[0]), place[mark.executor]) for mark in here if mark.executor in place]
        if rowed:
            axes.scatter(
                [t for t, _ in rowed], [row for _, row in rowed], s=size, marker=sign.marker, color=sign.colour, **style
            )
        others = [max(mark.t, view[0]) for mark in here if mark.executor not in place]
        if others:
            # Warnings below the loss: a new coordinator often comes with one, in the same instant.
            panel = loss if kind == "warning" else axes
            at, below = panel.get_xaxis_transform(), [0.0] * len(others)
            panel.scatter(others, below, s=34, marker=sign.marker, color=sign.colour, transform=at, **style)
    times: list[float] = []
    for checkpoint in shown.checkpoints:
        # Closer than this they would run together into a bar.
        if checkpoint.t >= view[0] and (not times or checkpoint.t - times[-1] > (view[1] - view[0]) / 200):
            times.append(checkpoint.t)
    at = axes.get_xaxis_transform()
    axes.scatter(times, [0.0] * len(times), s=36, marker="|", color=CHECKPOINT.colour, transform=at, **under)


def draw_batches(axes: Axes, shown: Timeline, view: tuple[float, float]) -> None:
    """The batch size of a logical worker over time, and the learning rate that each change gave."""
    from matplotlib.ticker import MaxNLocator

    known = [(max(one.t, view[0]), one) for one in shown.batches if one.after is not None]
    if known:
        times = [view[0], *(t for t, _ in known), shown.seconds]
        sizes = [known[0][1].before or 0, *(one.after or 0 for _, one in known)]
        axes.plot(times, [*sizes, sizes[-1]], drawstyle="steps-post", color=FEW[0], linewidth=1.5)
        axes.set_ylim(0, 1.3 * max(sizes))
    for t, one in known[:20]:
        if one.learning_rates:
            text = f"lr {one.learning_rates[0]:.3g}"
            axes.annotate(text, (t, one.after or 0), (3, 2), textcoords="offset points", fontsize=7, color=SOFT)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    panel_name(axes, "batch size of a logical worker")


def panel_name(axes: Axes, name: str) -> None:
    """Above the panel, so that no curve runs through it."""
    axes.annotate(name, (0, 1), (2, 3), xycoords="axes fraction", textcoords="offset points", fontsize=8.5, color=SOFT)


def _name_blocks(axes: Axes, shown: Timeline, place: dict[ExecutorId, int], shortest: float) -> None:
    for life in shown.lives:
        for stay in life.stays:
            if stay.first is None or stay.end - stay.start < shortest:
                continue
            ranks = f"{stay.first}" if stay.first == stay.last else f"{stay.first}-{stay.last}"
            axes.text(
                (stay.start + stay.end) / 2,
                place[life.executor],
                ranks,
                fontsize=7,
                color=INK,
                ha="center",
                va="center",
                zorder=4,
                bbox={"boxstyle": "round,pad=0.18,rounding_size=0.4", "facecolor": "#ffffffd8", "linewidth": 0},
            )


def _idle_column(axes: Axes, shown: Timeline, place: dict[ExecutorId, int]) -> None:
    measured = {life.executor: life.idle for life in shown.lives if life.idle is not None}
    beside = axes.get_yaxis_transform()
    for executor, idle in measured.items():
        where = (1.012, place[executor])
        axes.text(*where, f"{idle:.0%} idle", transform=beside, fontsize=7.5, color=SOFT, va="center")
