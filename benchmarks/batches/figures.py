"""Draws docs/images/batch_study.png and prints the study's table, from the kept results.

The metric over samples, a line per seed; steps, samples and seconds to the metric in the table. Seconds are those of
training steps, by what `step_times` measured for each size on one and on two executors: the study itself may run on a
machine that has other things to do.

    python -m benchmarks.batches.figures
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from benchmarks.batches.does_it_train import ARMS
from benchmarks.batches.study_job import SIZES
from benchmarks.lib.processes import ROOT
from benchmarks.lib.result import RESULTS
from isoscale.analysis.palette import FAINT, FEW, INK, SOFT

TITLES = {"image": "image: accuracy", "text": "text: perplexity"}

matplotlib.rcParams |= {"font.family": "sans-serif", "font.size": 9, "figure.dpi": 130}


def seconds(row: Mapping[str, Any], step_ms: Mapping[str, float]) -> float:
    """Of the training steps until the metric was there."""
    changes = [[0, SIZES[0]], *row["sizes"], [row["steps"], 0]]
    total = 0.0
    for (begin, size), (end, _) in pairwise(changes):
        total += step_ms.get(str(size), 0.0) * max(0, min(end, row["steps"]) - begin)
    return total / 1e3


def table(rows: list[dict[str, Any]], times: Mapping[tuple[str, int], Mapping[str, float]]) -> Iterator[str]:
    yield "| task | batch | seeds that came to it | steps | samples | seconds, 1 executor | 2 executors | best |"
    yield "|---|---|---|---|---|---|---|---|"
    for task in TITLES:
        for arm in ARMS:
            mine = [row for row in rows if (row["task"], row["arm"]) == (task, arm)]
            there = [row for row in mine if row["steps"] is not None]
            shown = [_range([row["steps"] for row in there], "{:.0f}"), _range([r["samples"] for r in there], "{:.0f}")]
            shown += [_range([seconds(row, times[task, count]) for row in there], "{:.1f}") for count in (1, 2)]
            best = median(row["best"] for row in mine)
            yield f"| {task} | {arm} | {len(there)} of {len(mine)} | {' | '.join(shown)} | {best:.4g} |"


def _range(values: list[float], form: str) -> str:
    """The median, and the extremes where there are several."""
    if not values:
        return "never"
    ends = f" ({form.format(min(values))} .. {form.format(max(values))})" if len(values) > 1 else ""
    return form.format(median(values)) + ends


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    figure, both = pyplot.subplots(1, 2, figsize=(10, 4.2))
    for axes, (task, title) in zip(both, TITLES.items(), strict=True):
        for arm, colour in zip(ARMS, FEW, strict=False):
            for row in (row for row in rows if (row["task"], row["arm"]) == (task, arm)):
                label = arm if row["seed"] == 0 else None
                points = [(samples, metric) for _, samples, metric in row["curve"]]
                axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.3, alpha=0.85, label=label)
        (target,) = {row["target"] for row in rows if row["task"] == task}
        axes.axhline(target, color=SOFT, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_title(f"{title}, to come to {target:g}", loc="left", color=INK, fontsize=10)
        axes.set_xlabel("samples", color=SOFT)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(FAINT)
        axes.tick_params(colors=SOFT)
        axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FOLDER", default=ROOT / "docs" / "images")
    folder = parser.parse_args().out
    study, times = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("batch_study", "batch_step_times"))
    by_place = {(row["task"], row["executors"]): row["step_ms"] for row in times["rows"]}
    print("\n".join(table(study["rows"], by_place)))
    draw(study["rows"], folder / "batch_study.png")
    print(f"written {folder}/batch_study.png")


if __name__ == "__main__":
    main()
