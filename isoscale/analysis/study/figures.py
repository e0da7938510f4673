"""Pictures of the study, one per subject, from the figures of analysis.json. Draws; computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from isoscale.analysis.palette import FAINT, FEW, INK, PALE, SOFT
from isoscale.analysis.time_axis import round_times, set_time_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "draw"]

Document = Mapping[str, Any]

_WIDTH, _HEIGHT = 8.2, 3.1
_STYLES = ("-", "--", ":", "-.")
_STATUS_COLOURS = {"passed": "#2f7d5b", "killed": "#ccbb44", "failed": "#cc3311", "unfinished": "#888888"}


def draw(name: str, documents: Mapping[str, Document]) -> Figure | None:
    """The picture of a subject, a panel for every trace; None if none of them has its figures."""
    return FIGURES[name][1]({_label(trace): document for trace, document in documents.items()})


def _panels(
    documents: Mapping[str, Document], key: Callable[[Document], Any], height: float = _HEIGHT
) -> tuple[Figure, list[tuple[Axes, Any]]] | None:
    """(figure, [(axes, what the key gives)]) of the traces that have something; None if none has."""
    from matplotlib.figure import Figure

    shown = [(name, key(document)) for name, document in documents.items()]
    shown = [(name, found) for name, found in shown if found]
    if not shown:
        return None
    figure = Figure(figsize=(_WIDTH, height * len(shown)), facecolor="white", layout="constrained")
    panels = []
    for number, (name, found) in enumerate(shown, 1):
        axes = figure.add_subplot(len(shown), 1, number)
        _clean(axes)
        if len(documents) > 1:
            axes.set_title(name, loc="left", fontsize=9, color=INK)
        panels.append((axes, found))
    return figure, panels


def _cdf(documents: Mapping[str, Document], key: str, words: str) -> Figure | None:
    """Shares of jobs by time, a line for every size."""
    made = _panels(documents, lambda document: _any(document.get(key)))
    if made is None:
        return None
    figure, panels = made
    for axes, curves in panels:
        for number, (size, points) in enumerate((size, points) for size, points in curves.items() if points):
            x, y = np.array([[points[0][0], 0.0], *points]).T
            steps = "steps-post" if len(x) < 40 else "default"
            axes.plot(np.maximum(x, 1.0), y, color=FEW[number % len(FEW)], linewidth=1.7, label=size, drawstyle=steps)
        axes.set_xscale("log")
        axes.set_ylim(0, 1.02)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25 %", "50 %", "75 %", "all"])
        axes.set_xlabel(words, fontsize=8, color=SOFT)
        set_time_ticks(axes)
        _legend(axes, "devices")
    return figure


def _run_time(documents: Mapping[str, Document]) -> Figure | None:
    return _cdf(documents, "run_cdf", "run time; share of jobs that run no longer")


def _queueing(documents: Mapping[str, Document]) -> Figure | None:
    return _cdf(documents, "queue_cdf", "wait before the first start (1 s and less at the left); share of jobs")


def _status(documents: Mapping[str, Document]) -> Figure | None:
    made = _panels(
        documents, lambda document: _any(document.get("status", {}).get("share_by_jobs")) and document["status"], 1.5
    )
    if made is None:
        return None
    figure, panels = made
    for axes, found in panels:
        for place, (key, words) in enumerate(
            (("share_by_device_time", "of device time"), ("share_by_jobs", "of jobs"))
        ):
            left = 0.0
            for name, share in found[key].items():
                share = share or 0.0
                colour = _STATUS_COLOURS.get(name, FAINT)
                axes.barh(place, share, left=left, height=0.6, color=colour, label=name if place else None)
                if share > 0.06:
                    axes.text(
                        left + share / 2,
                        place,
                        f"{share:.0%}",
                        ha="center",
                        va="center",
                        fontsize=8,
                        color=INK if name == "killed" else "white",
                    )
                left += share
            axes.text(-0.01, place, words, ha="right", va="center", fontsize=8, color=SOFT)
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        axes.legend(loc="lower left", bbox_to_anchor=(0, -0.45), ncols=5, **_LEGEND)
    return figure


def _utilisation(documents: Mapping[str, Document]) -> Figure | None:
    from matplotlib.figure import Figure

    shown = {name: document["utilisation"] for name, document in documents.items() if document.get("utilisation")}
    if not shown:
        return None
    figure = Figure(figsize=(_WIDTH, _HEIGHT * len(shown)), facecolor="white", layout="constrained")
    for row, (name, found) in enumerate(shown.items()):
        for column, (key, words) in enumerate((("cdf_by_status", "by status"), ("cdf_by_size", "by devices"))):
            axes = figure.add_subplot(len(shown), 2, 2 * row + column + 1)
            _clean(axes)
            for number, (label, points) in enumerate((label, points) for label, points in found[key].items() if points):
                x, y = np.array(points).T
                colour = _STATUS_COLOURS.get(label, FEW[number % len(FEW)])
                axes.plot(x, y, color=colour, linewidth=1.7, label=label)
            axes.set_xlim(0, 100)
            axes.set_ylim(0, 1.02)
            axes.set_yticks([0, 0.5, 1.0], ["0", "50 %", "all"])
            axes.set_xlabel(f"use of a held device in percent, {words}", fontsize=8, color=SOFT)
            title = f"{name}: {words}" if len(documents) > 1 else words
            axes.set_title(title, loc="left", fontsize=9, color=INK)
            _legend(axes, "")
    return figure


def _host(documents: Mapping[str, Document]) -> Figure | None:
    made = _panels(documents, lambda document: _any(document.get("host")))
    if made is None:
        return None
    figure, panels = made
    for axes, found in panels:
        for number, (label, one) in enumerate(found.items()):
            x, y = np.array(one["cdf"]).T
            axes.plot(x, y, color=FEW[number], linewidth=1.7, label=label)
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 1.02)
        axes.set_yticks([0, 0.5, 1.0], ["0", "50 %", "all"])
        axes.set_xlabel("use in percent; share of samples", fontsize=8, color=SOFT)
        _legend(axes, "")
    return figure


def _failures(documents: Mapping[str, Document]) -> Figure | None:
    most = max((len(document.get("failures", {}).get("classes", {})) for document in documents.values()), default=0)
    made = _panels(
        documents, lambda document: _any(document.get("failures", {}).get("classes")), 0.6 + 0.22 * min(12, most)
    )
    if made is None:
        return None
    figure, panels = made
    for axes, classes in panels:
        rows = sorted(classes.items(), key=lambda item: -(item[1]["device_s"] or 0))[:12]
        values = [one["device_s"] / 3600 for _, one in rows]
        places = np.arange(len(rows))[::-1]
        axes.barh(places, values, height=0.66, color="#cc3311")
        for place, value, (_, one) in zip(places, values, rows, strict=True):
            axes.text(value, place, f"  {value:,.1f}, {one['trials']:,} trials", va="center", fontsize=7.5, color=INK)
        axes.set_yticks(places, [_label(name) for name, _ in rows], fontsize=8)
        axes.set_xlim(0, max([*values, 1e-9]) * 1.3)
        axes.set_xticks([])
        axes.grid(visible=False)
        axes.set_xlabel("device-hours in failed attempts", fontsize=8, color=SOFT)
    return figure


def _load(documents: Mapping[str, Document]) -> Figure | None:
    from matplotlib.figure import Figure

    shown = {name: document["load"] for name, document in documents.items() if document.get("load")}
    if not shown:
        return None
    figure = Figure(figsize=(_WIDTH, 2.6 * len(shown)), facecolor="white", layout="constrained")
    for row, (name, found) in enumerate(shown.items()):
        in_use = found.get("in_use")
        if in_use:
            axes = figure.add_subplot(len(shown), 2, 2 * row + 1)
            _clean(axes)
            days = (found["end_s"] - found["begin_s"]) / 86_400
            unit, length = ("days", days) if days > 2 else ("hours", days * 24)
            edges = np.linspace(0, length, len(in_use) + 1)
            axes.fill_between(np.repeat(edges, 2)[1:-1], np.repeat(in_use, 2), color="#8fb3d9", linewidth=0)
            if found.get("asked"):
                asked = np.repeat(found["asked"], 2)
                axes.plot(np.repeat(edges, 2)[1:-1], asked, color="#d9820f", linewidth=1, label="asked for")
                axes.legend(loc="upper right", **_LEGEND)
            if found.get("capacity"):
                axes.axhline(found["capacity"], color=SOFT, linewidth=1, linestyle="--")
                axes.text(length, found["capacity"], "there ", ha="right", va="bottom", fontsize=7.5, color=SOFT)
            axes.set_xlim(0, length)
            axes.set_ylim(0)
            axes.set_xlabel(f"{unit} since the first start", fontsize=8, color=SOFT)
            axes.set_title(
                "devices in use" + (f", {name}" if len(documents) > 1 else ""), loc="left", fontsize=9, color=INK
            )
        hours = found.get("submissions_by_hour")
        if hours:
            axes = figure.add_subplot(len(shown), 2, 2 * row + 2)
            _clean(axes)
            axes.bar(np.arange(24) + 0.5, hours, width=0.82, color="#33557f")
            axes.set_xticks([0, 6, 12, 18, 24])
            axes.set_xlim(0, 24)
            axes.grid(visible=False, axis="x")
            axes.set_title("submissions by hour of the day", loc="left", fontsize=9, color=INK)
    return figure


def _sizes(documents: Mapping[str, Document]) -> Figure | None:
    made = _panels(documents, lambda document: _any(document.get("sizes", {}).get("classes")), 2.0)
    if made is None:
        return None
    figure, panels = made
    for axes, classes in panels:
        totals = {key: sum(one[key] for one in classes.values()) or 1 for key in ("jobs", "device_s")}
        for number, (key, words) in enumerate((("jobs", "of jobs"), ("device_s", "of device time"))):
            values = [one[key] / totals[key] for one in classes.values()]
            at = np.arange(len(values)) + 0.4 * number
            axes.bar(at, values, width=0.38, color=("#33557f", "#d9820f")[number], label=words)
            for x, value in zip(at, values, strict=True):
                axes.text(x, value, f"{value:.0%}", ha="center", va="bottom", fontsize=7.5, color=INK)
        axes.set_xticks(np.arange(len(classes)) + 0.2, list(classes))
        axes.set_yticks([])
        axes.set_ylim(0, 1.12 * max(one[key] / totals[key] for one in classes.values() for key in totals))
        axes.grid(visible=False)
        axes.set_xlabel("devices asked for", fontsize=8, color=SOFT)
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, **_LEGEND)
    return figure


def _locality(documents: Mapping[str, Document]) -> Figure | None:
    made = _panels(documents, lambda document: _any(document.get("locality", {}).get("queue_s_by_machines")), 2.4)
    if made is None:
        return None
    figure, panels = made
    for axes, found in panels:
        rows = [(name, one) for name, one in found.items() if one["count"]]
        at = np.arange(len(rows))
        for level, colour, words in (("p90", "#d9820f", "p90"), ("p50", "#33557f", "median")):
            values = [max(1.0, one[level]) for _, one in rows]
            axes.plot(at, values, color=colour, marker="o", linewidth=1.5, markersize=5, label=words)
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        shown = round_times(low, high)
        axes.set_yticks(list(shown), list(shown.values()))
        axes.minorticks_off()
        axes.set_xticks(at, [f"{name}\n{one['count']:,}" for name, one in rows])
        axes.set_xlabel("machines (below: jobs of 5 devices or more)", fontsize=8, color=SOFT)
        axes.set_ylabel("wait", fontsize=8, color=SOFT)
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, **_LEGEND)
    return figure


def _what_if(documents: Mapping[str, Document]) -> Figure | None:
    made = _panels(
        documents,
        lambda document: (
            _any(document.get("advice", {}).get("elasticity", {}).get("ours")) and document["advice"]["elasticity"]
        ),
        1.5,
    )
    if made is None:
        return None
    figure, panels = made
    for axes, found in panels:
        rows = [found["ours"], found["present"]]
        values = [one["mean_jct_s"] / 3600 for one in rows]
        axes.barh([0, 1], values, height=0.6, color=["#2f7d5b", "#888888"])
        for place, (value, one) in enumerate(zip(values, rows, strict=True)):
            words = f"  {value:,.2f} h, {one['device_hours']:,.0f} device-hours"
            axes.text(value, place, words, va="center", fontsize=8, color=INK)
        axes.set_yticks([0, 1], [one["policy"] for one in rows], fontsize=8)
        axes.set_xlim(0, max(values) * 1.4)
        axes.set_xticks([])
        axes.grid(visible=False)
        axes.set_xlabel("mean completion time in the simulator", fontsize=8, color=SOFT)
    return figure


#: name of the file -> what it shows, and how it is drawn
FIGURES: Mapping[str, tuple[str, Callable[[Mapping[str, Document]], Figure | None]]] = {
    "status": ("shares of jobs and of device time by final status", _status),
    "run_time": ("share of jobs within a run time, by devices asked for", _run_time),
    "queueing": ("share of jobs within a wait, by devices asked for", _queueing),
    "locality": ("waits by number of machines", _locality),
    "utilisation": ("share of samples within a use, by status and by devices", _utilisation),
    "host": ("share of samples within a use of processors and memory", _host),
    "failures": ("device-hours in failed attempts by class", _failures),
    "load": ("devices in use over time, and submissions by hour", _load),
    "sizes": ("shares of jobs and of device time by devices asked for", _sizes),
    "elasticity": ("mean completion time under the present policy and under ours", _what_if),
}

_LEGEND: Mapping[str, Any] = {"fontsize": 7.5, "frameon": False, "labelcolor": INK, "handlelength": 1.4}


def _label(text: str) -> str:
    """A name as it stands: a dollar would begin a formula, a control character a warning."""
    return "".join(letter if letter.isprintable() else "?" for letter in text).replace("$", r"\$")[:60]


def _legend(axes: Axes, title: str) -> None:
    found = axes.legend(loc="lower right", title=title or None, title_fontsize=7.5, **_LEGEND)
    found.get_title().set_color(SOFT)


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=SOFT, labelsize=8, length=0)
    axes.grid(color=PALE, linewidth=1)
    axes.set_axisbelow(True)


def _any(found: Any) -> Any:
    """What was found, if there is anything in it."""
    if isinstance(found, Mapping):
        return found if any(found.values()) else None
    return found or None
