"""Tables of the benchmarks of Balanced Sparsity; benchmarks/recipes/page.py puts them into docs/recipes.md."""

from __future__ import annotations

import math
import statistics
from typing import Any

SPARSITIES = ("0.5", "0.7", "0.8", "0.9")
PATTERNS = ("dense", "balanced", "random", "block")
#: Student's t for 95 %, by degrees of freedom
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
Rows = list[dict[str, Any]]


def accuracy(rows: Rows) -> str:
    """Means over seeds, and balanced less random, paired by seed, with a 95 % interval."""
    lines = ["| | sparsity | dense | balanced | random | block | balanced - random |", "|---|---|---|---|---|---|---|"]
    for name, metric, unit in (("lstm", "accuracy", ", %"), ("lstm", "perplexity", ""), ("cnn", "accuracy", ", %")):
        for sparsity in SPARSITIES:
            found = {pattern: _values(rows, name, pattern, sparsity, metric) for pattern in PATTERNS}
            means = [f"{statistics.mean(values.values()):.2f}" if values else "" for values in found.values()]
            gap = interval(gaps(rows, name, sparsity, metric))
            lines.append(f"| {name}, {metric}{unit} | {sparsity} | {' | '.join(means)} | {gap} |")
    return "\n".join(lines)


def _values(rows: Rows, name: str, pattern: str, sparsity: str, metric: str) -> dict[int, float]:
    wanted = (name, pattern, "0" if pattern == "dense" else sparsity)
    return {r["seed"]: r[metric] for r in rows if (r["model"], r["pattern"], r["sparsity"]) == wanted}


def gaps(rows: Rows, name: str, sparsity: str, metric: str) -> list[float]:
    """Balanced less random, for every seed that has both."""
    balanced, random = (_values(rows, name, pattern, sparsity, metric) for pattern in ("balanced", "random"))
    return [value - random[seed] for seed, value in balanced.items() if seed in random]


def interval(values: list[float]) -> str:
    """Mean and half-width; nothing for a single value."""
    if len(values) < 2:
        return ""
    half = T_95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):+.2f} +- {half:.2f} ({len(values)} seeds)"


def speed(rows: Rows) -> str:
    lines = [
        "| matrix | sparsity | block | cache | dense, us | packed, us | x dense | x CSR | x int32 CSR | read, us |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [f"{row['matrix']}, {' x '.join(map(str, row['shape']))}", f"{row['sparsity']:.3g}"]
        cells += [str(row["block_width"]), row["cache"]]
        cells += [f"{row['us'][name]:.0f}" for name in ("dense", "kernel")]
        cells += [f"{row[name]:.2f}" for name in ("against_dense", "against_csr_int64", "against_csr_int32")]
        cells.append(" / ".join(f"{value:.0f}" for value in row["read_once_us"].values()))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def batches(rows: Rows) -> str:
    lines = [
        "| matrix | sparsity | block | dense, us | packed, us | x dense | x CSR | x int32 CSR |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        us, shape = row["us"], " x ".join(map(str, row["shape"]))
        cells = [shape if row["matrix"] == shape else f"{row['matrix']}, {shape}", f"{row['sparsity']:.3g}"]
        cells += [str(row["block_width"]), f"{min(us['dense'], us['dense_transposed']):.0f}", f"{us['packed']:.0f}"]
        cells += [f"{row[name]:.2f}" for name in ("against_dense", "against_csr_int64", "against_csr_int32")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def models(rows: Rows) -> str:
    lines = ["| model | sparsity | layers packed | dense, us | packed, us | x dense |", "|---|---|---|---|---|---|"]
    for row in rows:
        us = row["us"]
        cells = [row["model"], f"{row['sparsity']:.3g}", str(row.get("packed", "all"))]
        cells += [f"{us['dense']:.0f}", f"{us['packed']:.0f}", f"{row['against_dense']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
