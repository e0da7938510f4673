"""Where a command takes a training script: a path, or `recipe:NAME`. Everything behind it sees a path."""

from __future__ import annotations

import ast
import difflib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import typer

from isoscale.cli.unported import own_training
from isoscale.errors import UserError
from isoscale.recipes import catalogue
from isoscale.runtime.code.roots import editable_packages

__all__ = ["existing", "module_file", "own_help", "resolved", "script_here"]


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
        script = context.params["script"]
        if context.params.get("module"):
            what = ["-m", script] if module_file(script) else []
        else:
            what = [str(existing(script))]
        raise typer.Exit(subprocess.run([sys.executable, *what, *arguments]).returncode)
    return arguments


def existing(script: str) -> Path:
    """The absolute path of a script that is there and that Python can read."""
    path = Path(script)
    if not path.is_file():
        problem = "is a directory" if path.is_dir() else "no such file"
        raise _refused(script, problem, _meant(path) or "give the path of a Python training script")
    try:
        with warnings.catch_warnings(action="ignore"):  # they are the script's, and shown when it runs
            tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise _refused(script, f"cannot be read ({error.strerror})", "give a file that you may read") from None
    except SyntaxError as error:
        text = (error.text or "").strip()
        line = f"line {error.lineno}: " if error.lineno else ""
        problem = f"{line}{error.msg}" + (f": {text}" if text.isprintable() and text else "")
        raise _refused(script, problem, f"mend it; `python {script}` shows the place") from None
    except ValueError as error:
        raise _refused(script, f"is no Python source ({error})", "give a Python training script") from None
    if training := own_training(path, tree):
        remedy = "put training into a function train(job) and end with isoscale.run(train), as docs/porting.md shows"
        raise _refused(script, f"{training}, and nothing calls isoscale.run", remedy)
    return path.resolve()


def module_file(name: str) -> str:
    """The file of a module that `python -m NAME` would run here. Imports nothing. Raises UserError if there is none."""
    parts = name.split(".")
    if all(part.isidentifier() for part in parts):
        for directory in [os.getcwd(), *sys.path[1:], *map(os.path.dirname, editable_packages().values())]:
            for tail in (f"{parts[-1]}.py", os.path.join(parts[-1], "__main__.py")):
                path = os.path.join(directory, *parts[:-1], tail)
                if os.path.isfile(path):
                    return path
    remedy = f"give its name, as after python -m, in the directory from which {parts[0]} is imported"
    raise _refused(name, "no such module here", remedy)


def _refused(script: str, problem: str, remedy: str) -> UserError:
    return UserError(field="SCRIPT", value=script, problem=problem, remedy=remedy)


def _meant(path: Path) -> str:
    """A bare name that is nearly a recipe's was meant as one."""
    if len(path.parts) != 1 or path.suffix not in ("", ".py"):
        return ""
    near = difflib.get_close_matches(path.stem.lower(), [recipe.name for recipe in catalogue.RECIPES], n=1)
    return f"did you mean {catalogue.PREFIX}{near[0]}?" if near else ""


def script_here(path: str) -> Path:
    """Where the script of a job lies on this machine: recipes came with isoscale, wherever that is installed."""
    recipe = catalogue.recipe_at(path)
    if recipe is None or Path(path).is_file():
        return Path(path)
    catalogue.check_installed(recipe)
    return catalogue.path_of(recipe)
