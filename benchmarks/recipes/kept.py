"""Results of the benchmarks over all recipes, kept as they come, so that a run that was broken off goes on.

A row belongs to a recipe and a part of the benchmark. It counts as long as the recipe's code and what was asked stay
the same: every row carries a hash of the script, of the modules of `isoscale.recipes` that it imports, and of its
arguments. Rows of recipes that the catalogue no longer has are dropped.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.measure import RESULTS
from isoscale.recipes.catalogue import RECIPES, Recipe, find, missing_packages, path_of

Row = dict[str, Any]
#: what is proven of a recipe, and of each of its variants
PARTS = ("elastic", "heterogeneous", "chaos")
#: by name of the result
_MADE_BY = {
    "recipes_proof": "benchmarks.recipes.proof",
    "recipes_quality": "benchmarks.recipes.quality",
    "recipes_table": "benchmarks.recipes.step_cost",
    "recipes_balanced": "benchmarks.recipes.balanced.speed",
    "recipes_balanced_accuracy": "benchmarks.recipes.balanced.accuracy",
    "recipes_mcmisp": "benchmarks.recipes.mcmisp.study",
}
_IMPORT = re.compile(r"^\s*(?:from|import) isoscale\.recipes(?:\.([\w.]+))?(?: import ([\w, ]+))?", re.MULTILINE)


class Kept:
    """The rows of one JSON file."""

    def __init__(self, name: str, path: Path | None = None, **facts: Any) -> None:
        self.path = path or RESULTS / f"{name}.json"
        self._name, self._facts = name, facts
        self._rows = self._read()

    def _read(self) -> dict[tuple[str, str], Row]:
        if not self.path.exists():
            return {}
        known = {recipe.name for recipe in RECIPES}
        rows = json.loads(self.path.read_text())["rows"]
        return {(row["recipe"], row["part"]): row for row in rows if row["recipe"] in known}

    def find(self, recipe: str, part: str, code: str | None = None) -> Row | None:
        """The row, if it is of this code."""
        row = self._rows.get((recipe, part))
        return row if row is not None and code in (None, row["code"]) else None

    def put(self, row: Row) -> None:
        """Written at once, since the next one may not come, and beside rows of other processes."""
        facts = {**_versions(), **self._facts}
        with locked(self.path.parent):
            self._rows = self._read() | {(row["recipe"], row["part"]): row}
            content = {
                "benchmark": self._name,
                "command": command_of(self._name),
                "date": time.strftime("%Y-%m-%d"),
                **facts,
                "rows": self.rows(),
            }
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text(json.dumps(content, indent=1) + "\n")
            temporary.replace(self.path)

    def rows(self) -> list[Row]:
        """In the catalogue's order."""
        order = [recipe.name for recipe in RECIPES]
        return sorted(self._rows.values(), key=lambda row: order.index(row["recipe"]))


def command_of(result: str) -> str:
    return f"python -m {_MADE_BY[result]}"


def parts_of(variant: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of the parts of a proof; a variant's have its options after them."""
    return tuple(" ".join((part, *variant)) for part in PARTS)


def code_of(recipe: Recipe, asked: Sequence[str] = ()) -> str:
    """A short hash of everything in the recipes' package that the script imports, and of what is asked of it."""
    total = hashlib.sha256("\0".join(asked).encode())
    for path in sorted(_sources(path_of(recipe))):
        total.update(path.read_bytes())
    return total.hexdigest()[:12]


def _sources(path: Path, found: set[Path] | None = None) -> set[Path]:
    found = set() if found is None else found
    if path.is_file() and path not in found:
        found.add(path)
        root = Path(sys.modules[find.__module__].__file__ or "").parent
        for package, names in _IMPORT.findall(path.read_text()):
            module = root.joinpath(*package.split("."))
            for one in [module, *(module / name.strip() for name in names.split(","))]:
                _sources(one.with_suffix(".py"), found)
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", action="append", metavar="NAME", help="this recipe (may be given again)")
    parser.add_argument("--again", action="store_true", help="also what is known already")
    parser.add_argument("--json", type=Path, help="keep results here instead")


def chosen(only: Iterable[str] | None) -> list[Recipe]:
    """The recipes that are asked for, all by default; says which cannot run here."""
    found = []
    for recipe in [find(name) for name in only] if only else RECIPES:
        missing = missing_packages(recipe)
        if missing:
            print(f"{recipe.name}: left out, needs {', '.join(missing)} (pip install 'isoscale[recipes]')")
        else:
            found.append(recipe)
    return found


def processor_s() -> float:
    """Of all processes that were started from here and have ended; other load on the machine does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _versions() -> Row:
    import platform

    import torch

    cpu = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "python": platform.python_version(), "cpu": cpu}
