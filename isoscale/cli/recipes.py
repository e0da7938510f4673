"""`isoscale recipes`: the training scripts that come with isoscale, as a table or as JSON."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoscale.recipes.catalogue import PREFIX, RECIPES, Recipe, missing_packages

__all__ = ["recipes"]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with everything known about each.")]

_ARROWS = {"higher": "↑", "lower": "↓"}


def recipes(json: AsJson = False) -> None:
    """List the training scripts that come with isoscale; `isoscale run recipe:NAME` runs one."""
    if json:
        print(json_module.dumps({"format": 1, "recipes": [_as_json(recipe) for recipe in RECIPES]}, indent=1))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(_table(RECIPES))
    console.print(f"\nfor example: {_command(RECIPES[0])}; a recipe's own options come after --", markup=False)
    if (message := _missing(RECIPES)) is not None:
        console.print(Text(message, style="yellow"))


def _table(listed: Sequence[Recipe]) -> Table:
    """Two lines a recipe: what it trains, and by what it is judged."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("isoscale run", no_wrap=True)
    table.add_column("what it trains; metric, against what baseline")
    for recipe in listed:
        missing = bool(missing_packages(recipe))
        about = Text(f"{recipe.family}: {recipe.summary}\n")
        about.append(f"{recipe.metric} {_ARROWS[recipe.better]}, against {recipe.baseline}", style="dim")
        table.add_row(Text(f"{PREFIX}{recipe.name}", style="dim" if missing else "bold"), about)
    return table


def _missing(listed: Sequence[Recipe]) -> str | None:
    """What is not installed, and which recipes need it."""
    wanting = {recipe.name: missing_packages(recipe) for recipe in listed}
    packages = sorted({package for missing in wanting.values() for package in missing})
    if not packages:
        return None
    names = ", ".join(name for name, missing in wanting.items() if missing)
    return f"not installed: {', '.join(packages)}, needed by {names}; pip install 'isoscale[recipes]'"


def _as_json(recipe: Recipe) -> dict[str, object]:
    return {**asdict(recipe), "command": _command(recipe), "missing": missing_packages(recipe)}


def _command(recipe: Recipe) -> str:
    return f"isoscale run {PREFIX}{recipe.name} --workers 4 --executors 2"
