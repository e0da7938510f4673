"""Writes the tables of docs/recipes.md from benchmarks/results.

    python -m benchmarks.recipes.page            # rewrite them
    python -m benchmarks.recipes.page --check    # exit 1 if they are not what the results say

Everything else on that page is written by hand. A table stands between `<!-- generated: NAME -->` and `<!-- end -->`
and has the recipes that have results.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.lib.measure import RESULTS
from benchmarks.lib.processes import ROOT
from benchmarks.recipes.balanced import tables as balanced
from benchmarks.recipes.kept import command_of, parts_of
from benchmarks.recipes.mcmisp.table import mcmisp
from isoscale.recipes.catalogue import RECIPES, Recipe

PAGE = ROOT / "docs" / "recipes.md"
_PLAN = re.compile(r"--plan '?([^ ']+)")
_SPOT = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
Rows = dict[str, dict[str, dict[str, Any]]]

LIMIT, FROM_MS = 1.02, 50.0


def table(header: str, lines: Iterator[str]) -> str:
    return "\n".join([f"| {header} |", "|" + "---|" * (header.count("|") + 1), *(f"| {line} |" for line in lines)])


def quality(rows: Rows) -> str:
    def lines() -> Iterator[str]:
        for recipe in RECIPES:
            row = rows.get(recipe.name, {}).get("default run")
            if row is None:
                continue
            better = "" if recipe.better == "higher" else ", lower is better"
            yield (
                f"{recipe.name} | {recipe.metric}{better} | {len(row['runs'])} | "
                f"{_number(row['mean'])} +- {_number(row['spread'])} | "
                f"{_number(row['baseline'])} ({recipe.baseline}) | {_number(row['margin'])}"
                + ("" if row["learns"] else ", **does not learn**")
            )

    return table("recipe | metric | seeds | mean and standard deviation | baseline | margin", lines())


def proofs(rows: Rows) -> str:
    def lines() -> Iterator[str]:
        for recipe in RECIPES:
            mine = rows.get(recipe.name, {})
            for variant in ((), *recipe.variants) if mine else ():
                found = [mine.get(part) for part in parts_of(variant)]
                first = found[0] or {}
                name = f"{recipe.name}{f', `{shlex.join(variant)}`' if variant else ''}"
                cells = [name, str(first.get("steps", "")), _changes(first), *map(_proven, found)]
                yield " | ".join(cells)

    return table("recipe | steps | executors change after | 1, 3, 2, 4 executors | on mixed kinds | kill -9", lines())


def _changes(row: dict[str, Any]) -> str:
    """By the plan that was run."""
    plan = _PLAN.search(row.get("command", ""))
    return ", ".join(re.findall(r"(?<=,)\d+(?=:)", plan[1])) if plan else ""


def _proven(row: dict[str, Any] | None) -> str:
    return "not tried yet" if row is None else "equal" if row["equal"] else "**not proven**"


def speed(rows: Rows) -> str:
    def lines() -> Iterator[str]:
        for recipe in RECIPES:
            mine = rows.get(recipe.name, {})
            if {"switch", "levels"} <= set(mine):
                yield _speed_line(recipe, mine["switch"], mine["levels"])

    return table(
        "recipe | ms a turn | switch: 1 | 2 | 4 | 8 logical workers | GPU: 8 | `elastic` | GPU | "
        "`heterogeneous`: with cpu-avx2 | with cpu-sse | GPU",
        lines(),
    )


def _speed_line(recipe: Recipe, switch: dict[str, Any], levels: dict[str, Any]) -> str:
    ours = {row["k"]: row for row in switch["switch"]}
    gpu = recipe.paper_gpu
    cells = [f"{ours[1]['a_ms']:.0f}"]
    cells += [_switch_cell(row, is_due=ours[1]["a_ms"] >= FROM_MS) for row in ours.values()]
    cells += [f"{gpu.switch:.3f}" if gpu else ""]
    cells += [f"{levels['elastic']['ratio']:.2f}", _range(gpu.elastic) if gpu else ""]
    highest = max(gpu.heterogeneous) if gpu else None
    half = levels["half_width"]
    for name in ("avx2", "sse"):
        ratio = levels[name]["ratio"]
        is_over = highest is not None and ratio - half > highest
        cells.append(f"{ratio:.2f}" + (" (above)" if is_over else ""))
    cells += [_range(gpu.heterogeneous) if gpu else ""]
    return f"{recipe.name} | " + " | ".join(cells)


def _switch_cell(row: dict[str, Any], *, is_due: bool) -> str:
    """With the control's half-width; marked if the family's step is long enough for the bound and does not keep it."""
    text = f"{row['ratio']:.3f} +- {row['half_width']:.3f}"
    is_over = is_due and row["ratio"] - row["half_width"] > LIMIT
    return f"**{text}**" if is_over else text


def _range(values: tuple[float, ...]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


_TABLES: dict[str, tuple[str, Callable[[Rows], str]]] = {
    "quality": ("recipes_quality", quality),
    "proofs": ("recipes_proof", proofs),
    "speed": ("recipes_table", speed),
}
#: tables that are not of all recipes: the benchmark, which of its lists, and the table
_OTHERS: dict[str, tuple[str, str, Callable[[list[dict[str, Any]]], str]]] = {
    "balanced_accuracy": ("recipes_balanced_accuracy", "rows", balanced.accuracy),
    "balanced_speed": ("recipes_balanced", "rows", balanced.speed),
    "balanced_batches": ("recipes_balanced", "batches", balanced.batches),
    "balanced_models": ("recipes_balanced", "models", balanced.models),
    "mcmisp": ("recipes_mcmisp", "rows", mcmisp),
}


def generated(name: str) -> str:
    if name in _OTHERS:
        return _other(*_OTHERS[name])
    file, make = _TABLES[name]
    path = RESULTS / f"{file}.json"
    result = json.loads(path.read_text()) if path.exists() else None
    rows: Rows = {}
    for row in result["rows"] if result else ():
        rows.setdefault(row["recipe"], {})[row["part"]] = row
    when = f"{result['date']}, torch {result['torch']}, {result['cpu']}" if result else "not run yet"
    return f"`{command_of(file)}`, {when}.\n\n{make(rows)}\n"


def _other(file: str, part: str, make: Callable[[list[dict[str, Any]]], str]) -> str:
    path = RESULTS / f"{file}.json"
    if not path.exists():
        return f"`{command_of(file)}`, not run yet.\n"
    result = json.loads(path.read_text())
    if part not in result:
        return f"`{result['command']}`, not run yet.\n"
    when = f"{result['date']}, torch {result['torch']}, {result['cpu']}"
    return f"`{result['command']}`, {when}.\n\n{make(result[part])}\n"


def page(text: str) -> str:
    return _SPOT.sub(lambda spot: f"{spot[1]}{generated(spot[2])}{spot[4]}", text)


def write() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print("written docs/recipes.md")


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        text = PAGE.read_text(encoding="utf-8")
        missing = set(_TABLES) - {name for _, name, _, _ in _SPOT.findall(text)}
        sys.exit(f"docs/recipes.md has no table {', '.join(missing)}" if missing else int(page(text) != text))
    write()


if __name__ == "__main__":
    main()
