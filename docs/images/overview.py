"""Draws overview.svg: four logical workers over 1, 2 and 4 executors, one digest. Run it with python from anywhere."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

PLACEMENTS = [(4,), (2, 2), (1, 1, 1, 1)]
COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44"]
RESULT = "SHA-256 of parameters, buffers and optimizer: the same, bit for bit, as stock DDP with 4 processes"
INK, SOFT, PALE = "#222222", "#8a8f98", "#f3f4f6"

# The same bytes for the same drawing: no date, no random ids. Text as paths: it looks the same everywhere.
matplotlib.rcParams |= {"svg.hashsalt": "isoscale", "font.family": "sans-serif"}


def box(axes, x, y, width, height, *, face, edge="none", radius=0.1):
    style = f"round,pad=0,rounding_size={radius}"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=face, edgecolor=edge, linewidth=1.2))


def draw(axes):
    axes.text(0.1, 5.3, "one job, four logical workers", fontsize=13, color=INK, weight="bold")
    for column, shares in enumerate(PLACEMENTS):
        left, rank = 0.1 + column * 4.1, 0
        plural = "s" if len(shares) > 1 else ""
        axes.text(left, 4.72, f"{len(shares)} executor{plural}", fontsize=11, color=INK)
        gap, width = 0.12, 3.6
        unit = (width - gap * (len(shares) - 1)) / sum(shares)
        x = left
        for share in shares:
            box(axes, x, 2.75, unit * share, 1.7, face=PALE, edge=SOFT)
            for turn in range(share):
                centre = x + unit * (turn + 0.5)
                box(axes, centre - 0.31, 3.25, 0.62, 0.7, face=COLOURS[rank], radius=0.12)
                axes.text(centre, 3.6, str(rank), ha="center", va="center", fontsize=13, color="white", weight="bold")
                rank += 1
            label = "turns, one after another" if share == 4 else "turns" if share > 1 else ""
            axes.text(x + unit * share / 2, 2.97, label, ha="center", va="center", fontsize=8.5, color=SOFT)
            x += unit * share + gap
        arrow = FancyArrowPatch(
            (left + width / 2, 2.6),
            (left + width / 2, 1.6),
            arrowstyle="-|>",
            mutation_scale=14,
            color=SOFT,
            linewidth=1.4,
        )
        axes.add_patch(arrow)
    axes.text(2.15, 2.05, "gradients summed in one fixed order", fontsize=9, color=SOFT, va="center")
    box(axes, 0.1, 0.75, 11.8, 0.75, face="#e8f1ea", edge="#228833")
    axes.text(6.0, 1.125, RESULT, ha="center", va="center", fontsize=10.5, color=INK)


def main() -> None:
    figure, axes = pyplot.subplots(figsize=(10, 4.2))
    axes.set(xlim=(0, 12), ylim=(0.6, 5.65))
    axes.axis("off")
    draw(axes)
    figure.subplots_adjust(0, 0, 1, 1)
    figure.savefig(Path(__file__).with_suffix(".svg"), facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
