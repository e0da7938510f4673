"""Where a command takes a training script: a path, or `recipe:NAME`. Everything behind it sees a path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

from isoscale.errors import UserError
from isoscale.recipes import catalogue

__all__ = ["existing", "own_help", "resolved", "script_here"]


def resolved(script: str | None) -> str | None:
    """The path that `script` stands for; raises UserError for a recipe that is unknown or cannot run here."""
    if script is None or not script.startswith(catalogue.PREFIX):
        return script
    recipe = catalogue.find(script.removeprefix(catalogue.PREFIX))
    catalogue.check_installed(recipe)
    return str(catalogue.path_of(recipe))


def own_help(context: typer.Context, arguments: list[str] | None) -> list[str] | None:
    """A script that is asked for its help prints it by itself: no executors, no directory, its own exit code."""
    if arguments and ("--help" in arguments or arguments == ["-h"]):
        script = existing(context.params["script"])
        raise typer.Exit(subprocess.run([sys.executable, str(script), *arguments]).returncode)
    return arguments


def existing(script: str) -> Path:
    """The absolute path of a script that is there."""
    path = Path(script)
    if path.is_file():
        return path.resolve()
    named = any(recipe.name == script for recipe in catalogue.RECIPES)
    raise UserError(
        field="SCRIPT",
        value=script,
        problem="no such file",
        remedy=f"did you mean {catalogue.PREFIX}{script}?" if named else "give the path of a Python training script",
    )


def script_here(path: str) -> Path:
    """Where the script of a job lies on this machine: recipes came with isoscale, wherever that is installed."""
    recipe = catalogue.recipe_at(path)
    if recipe is None or Path(path).is_file():
        return Path(path)
    catalogue.check_installed(recipe)
    return catalogue.path_of(recipe)
