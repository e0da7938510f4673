"""Results of the benchmarks over all recipes, kept as they come, so that a run that was broken off goes on.

A row belongs to a recipe and a part of the benchmark. It counts as long as the recipe's code, isoscale's and what was
asked stay the same: every row carries a hash of the script, of the modules of `isoscale.recipes` that it imports, of
the packages of isoscale that a job runs, and of its arguments. Rows of recipes that the catalogue no longer has are
dropped. The file says which code it is about once all its rows are of the present one.
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
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.lib import processes, sources
from benchmarks.lib.options import Options, parser
from benchmarks.lib.result import destination, machine
from isoscale.recipes.catalogue import RECIPES, Recipe, find, missing_packages, path_of

Row = dict[str, Any]
#: what runs in the processes of a job
STARTS = ("isoscale.runtime.coordinator", "isoscale.runtime.executor", "isoscale.backends", "isoscale.runtime.launch")
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

    def __init__(self, name: str, path: Path, **facts: Any) -> None:
        self.path = path
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
        with locked(self.path.parent):
            self._rows = self._read() | {(row["recipe"], row["part"]): row}
            self._write({})

    def finish(self, codes: Mapping[tuple[str, str], str]) -> None:
        """Says which code the result is about, if every row that belongs to it is there and of its present code."""
        with locked(self.path.parent):
            self._rows = self._read()
            found = {key: row["code"] for key, row in self._rows.items()}
            if found == dict(codes):
                self._write({"sources": sources.digests(processes.module())})

    def _write(self, facts: Row) -> None:
        content = {
            "benchmark": self._name,
            "command": command_of(self._name),
            "length": "full",
            "date": time.strftime("%Y-%m-%d"),
            **machine(),
            **facts,
            **self._facts,
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
    total = hashlib.sha256("\0".join([*asked, *_measured()]).encode())
    for path in sorted(_sources(path_of(recipe))):
        total.update(path.read_bytes())
    return total.hexdigest()[:12]


@lru_cache(maxsize=1)
def _measured() -> tuple[str, ...]:
    """Hashes of what a job runs of isoscale, but for the recipes."""
    found = sources.digests(__name__)
    return tuple(
        found[package] for package in sorted(found) if package.startswith("isoscale.") and package != "isoscale.recipes"
    )


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


def recipes_parser(description: str | None) -> argparse.ArgumentParser:
    made = parser(description)
    made.add_argument("--only", action="append", metavar="NAME", help="this recipe (may be given again)")
    made.add_argument("--again", action="store_true", help="also what is known already")
    return made


@contextlib.contextmanager
def kept_rows(name: str, options: Options, **facts: Any) -> Iterator[Kept]:
    """Where rows of this length go: what is not to be kept goes to a file that goes with the run."""
    path = destination(name, options)
    with tempfile.TemporaryDirectory() as directory:
        yield Kept(name, path or Path(directory) / f"{name}.json", **facts)


#: imports least and trains fastest: what a smoke run takes
SMALLEST = "neumf"


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
