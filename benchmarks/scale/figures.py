"""Draws docs/images/scale_costs.png and scale_goodput.png from the kept results.

Left: one flat group, and isoscale as people ask for it; right: two levels, and what is lost.

    python -m benchmarks.scale.figures
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from benchmarks.lib.processes import ROOT
from benchmarks.scale import options
from isoscale.analysis.palette import FAINT, FEW, INK, SOFT

BLUE, RED, GREEN, YELLOW, CYAN, PURPLE = FEW[:6]
#: field, label, colour, and where the label stands beside the last point
FLAT = [
    ("form_s", "forming a group", RED),
    ("recover_s", "recovery after kill -9", PURPLE),
    ("change_coordinator_s", "coordinator, per change", YELLOW),
    ("ring_s 26 MB", "gradients 26 MB, ring", BLUE),
    ("seal_s", "seal", GREEN),
    ("contexts_s", "contexts", CYAN),
]
GROUPED = [
    ("recover_two_level_s", "recovery after kill -9", PURPLE),
    ("form_two_level_s", "forming groups", RED),
    ("two_level_s 26 MB", "gradients 26 MB", BLUE),
    ("seal_two_level_s", "seal", GREEN),
]
SYSTEMS = {
    "isoscale, two levels": (BLUE, "-", "isoscale, two levels, spares (not built)"),
    "isoscale, flat": (BLUE, "--", "isoscale as built, flat, spares"),
    "shrinks, N = 16 E": (GREEN, "-", "no spares, N = 16 E"),
    "shrinks, N = 4 E": (GREEN, "--", "no spares, N = 4 E"),
    "shrinks, N = E": (GREEN, ":", "no spares, N = E"),
    "restart, as torchrun here": (RED, "-", "checkpoint, restart 15 s"),
    "restart, as reported": (RED, "--", "checkpoint, restart 11 min"),
}

_MANY = 100

matplotlib.rcParams |= {"font.family": "sans-serif", "font.size": 9, "figure.dpi": 130}


def plain(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=SOFT, which="both")
    axes.grid(True, which="major", color="#eceef1", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("executors", color=SOFT)


def draw_costs(rows: list[dict[str, Any]], path: Path) -> None:
    figure, both = pyplot.subplots(1, 2, figsize=(10, 4.4), sharey=True)
    for axes, curves, title in zip(
        both, (FLAT, GROUPED), ("one flat group, as built", "two levels of about √E, not built"), strict=True
    ):
        for name, label, colour in curves:
            values = [row[name] for row in rows]
            axes.plot([row["executors"] for row in rows], values, "-o", color=colour, markersize=3.5, label=label)
        axes.axhline(1.0, color=SOFT, linewidth=1, linestyle=(0, (4, 3)))
        axes.text(10, 1.25, "a second", color=SOFT, fontsize=8)
        axes.set(xscale="log", yscale="log", ylim=(5e-4, 3e4))
        axes.set_title(title, loc="left", color=INK, fontsize=10)
        axes.legend(frameon=False, loc="upper left", fontsize=8, labelcolor=INK, ncols=1 if curves is GROUPED else 2)
        plain(axes)
    both[0].set_ylabel("seconds (model)", color=SOFT)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)


def draw_goodput(result: dict[str, Any], path: Path) -> None:
    """Once as people ask for it, once as what is lost, where small differences are seen; at one rate of failures."""
    source, hours = next(iter(result["mtbf_hours"].items()))
    figure, (useful, lost) = pyplot.subplots(1, 2, figsize=(10, 4.6))
    for system, (colour, style, label) in SYSTEMS.items():
        rows = [row for row in result["rows"] if (row["failures"], row["system"]) == (source, system)]
        sizes = [row["executors"] for row in rows]
        useful.plot(sizes, [row["goodput"] for row in rows], style, color=colour, label=label, linewidth=1.6)
        least, most = [row["least"] for row in rows], [row["most"] for row in rows]
        useful.fill_between(sizes, least, most, color=colour, alpha=0.10, linewidth=0)
        # Fewer than a hundred hardly fail in a month, and what is nothing has no logarithm.
        many = [row for row in rows if row["executors"] >= _MANY and row["goodput"] < 1]
        lost.plot([row["executors"] for row in many], [1 - row["goodput"] for row in many], style, color=colour)
    useful.set(xscale="log", ylim=(0.55, 1.01))
    useful.set_title(f"a device fails every {hours:,} hours ({source})", loc="left", color=INK, fontsize=10)
    useful.set_ylabel("useful training time over all time (simulated)", color=SOFT)
    useful.legend(frameon=False, loc="lower left", fontsize=8, labelcolor=INK)
    lost.set(xscale="log", yscale="log")
    lost.set_title("what is lost of it", loc="left", color=INK, fontsize=10)
    for axes in (useful, lost):
        plain(axes)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FOLDER", default=ROOT / "docs" / "images")
    folder = parser.parse_args().out
    draw_costs(options.kept("scale_costs")["rows"], folder / "scale_costs.png")
    draw_goodput(options.kept("scale_goodput"), folder / "scale_goodput.png")
    print(f"written {folder}/scale_costs.png and scale_goodput.png")


if __name__ == "__main__":
    main()
