"""The picture of a `profile.json`: throughput and step time over executors, a line per batch size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isoscale.analysis.palette import FAINT, FEW, INK, PALE, SOFT
from isoscale.errors import UserError
from isoscale.timelines.fields import Event, items, seconds, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ProfilePoint", "draw_profile", "profile_points"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """One measurement: so many devices, this split of the logical workers, this batch per logical worker."""

    devices: str
    num_executors: int
    split: tuple[int, ...]
    batch: int
    step_s: float
    exchange_s: float | None
    samples_per_s: float | None


def profile_points(profile: Mapping[str, Any]) -> list[ProfilePoint]:
    """The points that can be drawn, in order of executors. Refuses what is no profile."""
    found = [_point(point) for point in items(profile, "points") if isinstance(point, Mapping)]
    points = sorted((p for p in found if p), key=lambda p: (p.num_executors, p.devices, p.batch))
    if profile.get("format") != 1 or not points:
        raise UserError(
            field="profile.json",
            value=profile.get("format"),
            problem="not a profile of format 1 with measured points",
            remedy="write one with isoscale profile",
        )
    return points


def draw_profile(profile: Mapping[str, Any], name: str = "") -> Figure:
    """Lines join the best split of each number of executors; other splits and kinds are points beside them."""
    from matplotlib.figure import Figure

    points = profile_points(profile)
    figure = Figure(figsize=(11.0, 4.6), facecolor="white")
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.075, right=0.975, top=0.76, bottom=0.13, wspace=0.2)
    workers = whole(profile, "workers")
    heading = f"{name}: throughput over executors" if name else "Throughput over executors"
    figure.text(0.027, 0.925, heading, fontsize=13, weight="bold", color=INK, parse_math=False)
    if workers:
        figure.text(0.027, 0.865, f"{workers} logical workers", fontsize=9, color=SOFT)
    batches = sorted({point.batch for point in points})
    for colour, batch in zip(_batch_colours(len(batches)), batches, strict=True):
        of_batch = [point for point in points if point.batch == batch]
        label = f"batch {batch}" if batch else "measured"
        throughput = [(p.num_executors, p.samples_per_s, p) for p in of_batch if p.samples_per_s is not None]
        _series(left, throughput, colour, label, best=max)
        _series(right, [(p.num_executors, 1000 * p.step_s, p) for p in of_batch], colour, label, best=min)
    _ideal(left, points)
    _axes(left, "samples per second", points)
    _axes(right, "milliseconds a step", points)
    if len({(p.num_executors, p.batch) for p in points}) < len(points):
        left.scatter([], [], s=16, facecolors="white", edgecolors=SOFT, label="slower split or kinds")
    handles, labels = left.get_legend_handles_labels()
    if handles:
        style = {"frameon": False, "fontsize": 8, "labelcolor": SOFT, "ncols": min(6, len(handles))}
        figure.legend(handles, labels, loc="upper right", bbox_to_anchor=(0.985, 0.95), **style)
    return figure


def _point(point: Event) -> ProfilePoint | None:
    devices, step_s = point.get("devices"), seconds(point, "step_s")
    if not isinstance(devices, Mapping) or not step_s:
        return None
    counts = {str(kind): whole(devices, kind) or 0 for kind in devices}
    split = tuple(share for share in items(point, "split") if isinstance(share, int))
    return ProfilePoint(
        devices="+".join(f"{kind}*{number}" for kind, number in sorted(counts.items())),
        num_executors=sum(counts.values()) or len(split),
        split=split,
        batch=whole(point, "batch") or 0,
        step_s=step_s,
        exchange_s=seconds(point, "exchange_s"),
        samples_per_s=seconds(point, "samples_per_s"),
    )


def _series(axes: Axes, measured: list[tuple[int, float, ProfilePoint]], colour: Any, label: str, best: Any) -> None:
    by_size: dict[int, list[float]] = defaultdict(list)
    for size, value, _ in measured:
        by_size[size].append(value)
    if not by_size:
        return
    line = [(size, best(values)) for size, values in sorted(by_size.items())]
    axes.plot(
        [x for x, _ in line], [y for _, y in line], color=colour, linewidth=1.6, marker="o", markersize=4.5, label=label
    )
    others = [(size, value) for size, value, _ in measured if value != best(by_size[size])]
    axes.scatter(
        [x for x, _ in others], [y for _, y in others], s=16, facecolors="white", edgecolors=[colour], zorder=3
    )


def _ideal(axes: Axes, points: list[ProfilePoint]) -> None:
    """Linear growth from the best point of the smallest size: how far off perfect scaling is."""
    first, last = points[0].num_executors, points[-1].num_executors
    base = max((p.samples_per_s or 0.0 for p in points if p.num_executors == first), default=0.0)
    if base and last > first:
        ends = [base, base * last / first]
        axes.plot([first, last], ends, color=FAINT, linewidth=1, dashes=(4, 3), label="linear", zorder=1)


def _axes(axes: Axes, name: str, points: list[ProfilePoint]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=SOFT, labelsize=8, length=0)
    axes.grid(axis="y", color=PALE, linewidth=1)
    axes.set_axisbelow(True)
    axes.set_ylim(bottom=0)
    first, last = points[0].num_executors, points[-1].num_executors
    axes.set_xlim(first - 0.04 * (last - first or 10), last + 0.04 * (last - first or 10))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("executors", fontsize=8.5, color=SOFT)
    axes.annotate(name, (0, 1), (2, 4), xycoords="axes fraction", textcoords="offset points", fontsize=8.5, color=SOFT)


def _batch_colours(number: int) -> list[Any]:
    if number <= 4:
        return list(FEW[:number])
    import matplotlib

    scale = matplotlib.colormaps["viridis"]
    return [scale(0.9 * index / (number - 1)) for index in range(number)]
