"""Things that users bring: found by `module:Name`, or by the name under which an installed package declares them.

A package declares in its pyproject.toml, and its things are then known like our own:

    [project.entry-points."isoscale.policies"]
    mine = "my_package.policies:Mine"

`module:Name` is imported from where Python finds modules, and from the present directory. Nothing is imported that was
not named: what is installed but not asked for does not run.
"""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from isoscale.errors import UserError

__all__ = ["declared", "is_path", "load"]


def is_path(name: str) -> bool:
    """Whether a name says where to find the thing."""
    return ":" in name


def declared(group: str) -> dict[str, str]:
    """What installed packages declare in a group: name -> `module:Name`, sorted."""
    return {entry.name: entry.value for entry in sorted(metadata.entry_points(group=group), key=lambda one: one.name)}


def load(path: str, *, field: str) -> Any:
    """The thing at `module:Name`. Raises UserError that says what is missing, or what its module raised."""
    module_name, _, name = path.partition(":")
    if not module_name or not name or not all(part.isidentifier() for part in [*module_name.split("."), name]):
        raise UserError(field=field, value=path, problem="is not MODULE:NAME", remedy="give, for example, mine:Mine")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a module of somebody else's raises while it is imported
        problem = f"cannot be imported ({type(error).__name__}: {error})"
        remedy = "run it where the module lies, or install it"
        raise UserError(field=field, value=path, problem=problem, remedy=remedy) from error
    finally:
        sys.path.remove(here)
    if not hasattr(module, name):
        own = [one for one, value in vars(module).items() if getattr(value, "__module__", "") == module_name]
        remedy = f"give one of {', '.join(own)}" if own else "name what is in it"
        raise UserError(field=field, value=path, problem=f"{module_name} has no {name}", remedy=remedy)
    return getattr(module, name)
