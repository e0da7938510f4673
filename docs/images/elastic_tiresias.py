"""Draws elastic_tiresias.svg from benchmarks/results/simulate_tiresias.json. Run it with python from anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "simulate_tiresias.json"
INK, SOFT, LINE = "#222222", "#71767f", "#e3e5e9"
COLOURS = {"EDL's": "#4477aa", "Pollux's": "#ee6677"}
THRESHOLDS = {"EDL's": "demoted after 1 device-hour", "Pollux's": "demoted after 16 device-hours"}

# The same bytes for the same drawing: no date, no random ids. Text as paths: it looks the same everywhere.
matplotlib.rcParams |= {"svg.hashsalt": "isoscale", "font.family": "sans-serif", "font.size": 9}


def curves(rows, costs):
    for settings in dict.fromkeys(row["settings"] for row in rows):
        points = [row for row in rows if (row["settings"], row["costs"]) == (settings, costs)]
        if points:
            yield settings, [row["load"] for row in points], points


def draw_gain(axes, rows):
    axes.set_title("mean completion time, shorter than under Tiresias", loc="left", color=INK, fontsize=10)
    for costs, style in (("stop-free", "-"), ("stop-resume", ":")):
        for settings, loads, points in curves(rows, costs):
            label = f"{THRESHOLDS[settings]}, {costs}"
            gains = [100 * row["shorter"] for row in points]
            axes.plot(loads, gains, style, color=COLOURS[settings], marker="o", markersize=3, label=label)
            if costs == "stop-free":
                alone = [100 * row["shorter_by_expansion_alone"] for row in points]
                axes.plot(loads, alone, "--", color=COLOURS[settings], linewidth=1, label=f"{label}, expansion alone")
    axes.axhline(89.5, color=SOFT, linewidth=0.8)
    axes.text(0.1, 90.5, "EDL: 89.5 %, at a load it does not state", color=SOFT, fontsize=8)
    axes.axhline(0, color=SOFT, linewidth=0.8)
    axes.set_ylim(None, 100)
    axes.set_ylabel("%")


def draw_times(axes, rows):
    axes.set_title("mean completion time, stop-free", loc="left", color=INK, fontsize=10)
    for settings, loads, points in curves(rows, "stop-free"):
        for name, style in (("tiresias", "-"), ("elastic_tiresias", "--")):
            hours = [row[name]["mean_jct_s"] / 3600 for row in points]
            label = f"{name.replace('_', '-')}, {THRESHOLDS[settings]}"
            axes.plot(loads, hours, style, color=COLOURS[settings], marker="o", markersize=3, label=label)
    axes.set_yscale("log")
    axes.set_yticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
    axes.set_ylabel("hours")


def main():
    rows = json.loads(RESULT.read_text())["rows"]
    figure, both = pyplot.subplots(1, 2, figsize=(10.5, 5.0), layout="constrained")
    for axes, draw in zip(both, (draw_gain, draw_times), strict=True):
        draw(axes, rows)
        axes.set_xscale("log")
        axes.set_xticks([row["load"] for row in rows[:9]], [f"{row['load']:g}" for row in rows[:9]])
        axes.minorticks_off()
        axes.set_xlabel("load: devices asked for over devices there")
        axes.axvline(1, color=LINE, zorder=0)
        axes.grid(axis="y", color=LINE)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    figure.savefig(Path(__file__).with_suffix(".svg"), facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
