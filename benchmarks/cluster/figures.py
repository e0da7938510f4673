"""Draws docs/images/simulated_against_real.png and serving.png from the kept results.

python -m benchmarks.cluster.figures
"""

from __future__ import annotations

import json
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from benchmarks.lib.measure import RESULTS
from benchmarks.lib.processes import ROOT
from isoscale.analysis.palette import FAINT, FEW, SOFT

BLUE, RED, GREEN, YELLOW, CYAN, PURPLE = FEW[:6]
_IMAGES = ROOT / "docs" / "images"
_COLOURS = {"alone": SOFT, "split": RED, "lending": BLUE}
_WORDS = {"alone": "serving alone", "split": "static split", "lending": "lending"}

matplotlib.rcParams |= {"font.family": "sans-serif", "font.size": 9, "figure.dpi": 130}


def main() -> None:
    for name, draw in (("simulated_against_real", _simulated_against_real), ("serving", _serving)):
        path = RESULTS / f"{name}.json"
        if path.exists():
            draw(json.loads(path.read_text())).savefig(_IMAGES / f"{name}.png", bbox_inches="tight")
            print(f"written docs/images/{name}.png")


def _simulated_against_real(result: dict[str, Any]) -> Any:
    """Left: means by policy; right: every job, live against simulated."""
    summary = result["summary"]
    names = list(summary["policies"])
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2), width_ratios=(1, 1))
    for number, name in enumerate(names):
        one = summary["policies"][name]
        error = [[one["live_s"] - one["live_least_s"]], [one["live_most_s"] - one["live_s"]]]
        left.bar(number - 0.19, one["live_s"], 0.36, color=BLUE, label="" if number else "live")
        left.errorbar(number - 0.19, one["live_s"], yerr=error, color=SOFT, capsize=3, linewidth=1)
        left.bar(number + 0.19, one["simulated_s"], 0.36, color=YELLOW, label="" if number else "simulated")
        left.annotate(
            f"{100 * one['error']:+.0f} %", (number + 0.19, one["simulated_s"]), ha="center", va="bottom", color=SOFT
        )
    left.set_xticks(range(len(names)), [name.partition("(")[0] for name in names])
    left.set_ylabel("mean completion time (s)")
    left.legend(frameon=False)
    most = 0.0
    for name, colour in zip(names, (SOFT, GREEN, PURPLE, RED), strict=True):
        one = summary["policies"][name]
        right.scatter(one["live_by_job_s"], one["simulated_by_job_s"], s=16, color=colour, label=name.partition("(")[0])
        most = max(most, *one["live_by_job_s"], *one["simulated_by_job_s"])
    right.plot([0, most], [0, most], color=FAINT, linewidth=1, zorder=0)
    right.set_xlabel("completion time of a job, live (s)")
    right.set_ylabel("simulated (s)")
    right.legend(frameon=False)
    for axes in (left, right):
        _plain(axes)
    figure.tight_layout()
    return figure


def _serving(result: dict[str, Any]) -> Any:
    """Top: the load; below: p99 latency of every second, by run; when serving had both devices is shaded."""
    lending = [row for row in result["rows"] if row["run"] == "lending"][-1]
    figure, (top, below) = pyplot.subplots(2, 1, figsize=(9, 5), sharex=True, height_ratios=(1, 2))
    series = result["seconds_of"]
    top.step([at for at, *_ in series["alone"]], [due for _, due, *_ in series["alone"]], where="post", color=SOFT)
    top.axhline(result["saturation"] / 2, color=FAINT, linewidth=1)
    top.annotate("one device's saturation", (0, result["saturation"] / 2), va="bottom", color=SOFT)
    top.set_ylabel("requests/s")
    for run, colour in _COLOURS.items():
        at, p99 = zip(*((at, 1e3 * p99) for at, _, _, p99 in series[run]), strict=True)
        below.plot(at, p99, color=colour, label=_WORDS[run], linewidth=1.4)
    below.set_yscale("log")
    below.set_ylabel("p99 latency of each second (ms)")
    below.set_xlabel("seconds")
    below.legend(frameon=False, loc="upper left")
    for axes in (top, below):
        for begin, end in lending["windows"]:
            axes.axvspan(begin, end, color=BLUE, alpha=0.08, linewidth=0)
        _plain(axes)
    figure.tight_layout()
    return figure


def _plain(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=SOFT, which="both")
    axes.grid(True, which="major", axis="y", color="#eceef1", linewidth=0.8)
    axes.set_axisbelow(True)


if __name__ == "__main__":
    main()
