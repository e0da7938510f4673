"""Which directories hold the code of a run: the script's own, and others that its imports look in.

    script             the directory of SCRIPT
    working directory  where the command was given: with -m, or if it is on the import path, or holds a project in which
                       the script lies
    import path        PYTHONPATH entries below the working directory
    editable           packages that are installed as a link to their sources

Libraries are none of them, isoscale's own sources neither. Looks at directories and installed metadata; reads no code.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from urllib.parse import unquote, urlsplit

from isoscale.runtime.code.libraries import OWN_PACKAGE, inside, is_library, library_directories
from isoscale.runtime.code.manifest import Root
from isoscale.runtime.code.reading import read_regular

__all__ = ["editable_packages", "find_roots", "linked_directories"]

_PROJECT_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")


def find_roots(
    script: str,
    *,
    module: bool,
    cwd: str,
    import_path: Sequence[str],
    python_path: Iterable[str],
    links: Collection[str],
    editable: Mapping[str, str],
) -> tuple[Root, ...]:
    """The script's first. `import_path` is sys.path of a process that is started like the script's, without the entry
    for the script itself; `python_path` are those of it that PYTHONPATH names, `links` those of .pth files.
    """
    home = os.path.dirname(script)
    found = [Root(path=home, why="script", script_only=is_library(home))]
    given = {os.path.abspath(os.path.join(cwd, entry)) for entry in python_path}
    entries = [os.path.abspath(os.path.join(cwd, entry)) for entry in import_path]
    if module or cwd in given or (cwd in entries and not _holds_own(cwd)):
        found.append(Root(path=cwd, why="working directory"))
    elif inside(home, cwd) and any(os.path.exists(os.path.join(cwd, mark)) for mark in _PROJECT_MARKS):
        found.append(Root(path=cwd, why="working directory", optional=True))
    found += [Root(path=entry, why="import path") for entry in entries if entry in given and inside(entry, cwd)]
    linked = [entry for entry in entries if entry in links and not _holds_own(entry)]
    found += [Root(path=path, why="editable") for path in (*linked, *map(_directory, editable.values()))]
    known = [root.path for root in found]
    for project in _editable_projects():
        if not any(inside(path, project) for path in known) and not _holds_own(project):
            found.append(Root(path=project, why="editable", optional=True))
    kept = [root for root in found[1:] if os.path.isdir(root.path) and not is_library(root.path)]
    unique = {root.path: root for root in reversed([found[0], *kept])}
    return tuple(unique[path] for path in dict.fromkeys(root.path for root in [found[0], *kept]))


def linked_directories() -> set[str]:
    """Directories that .pth files of installed packages put on the import path."""
    found: set[str] = set()
    for directory in library_directories():
        try:
            names = [name for name in os.listdir(directory) if name.endswith(".pth")]
        except OSError:
            continue
        for name in names:
            try:
                text = read_regular(os.path.join(directory, name), 2**20).decode("utf-8", "surrogateescape")
            except OSError:
                continue
            lines = [line.rstrip() for line in text.splitlines() if not line.startswith(("#", "import ", "import\t"))]
            found |= {os.path.abspath(os.path.join(directory, line)) for line in lines if line}
    return found


def editable_packages(modules: Mapping[str, ModuleType] | None = None) -> dict[str, str]:
    """Package by name and place, of those that an import finder of setuptools maps to their sources."""
    packages: dict[str, str] = {}
    for name, module in list((sys.modules if modules is None else modules).items()):
        mapping = getattr(module, "MAPPING", None) if name.startswith("__editable__") else None
        for package, path in mapping.items() if isinstance(mapping, dict) else ():
            if not inside(os.path.realpath(path), OWN_PACKAGE):
                packages[str(package)] = os.path.abspath(path)
    return packages


def _directory(path: str) -> str:
    """Of a package, itself; of a single module, where it lies."""
    return path if os.path.isdir(path) else os.path.dirname(path)


def _holds_own(path: str) -> bool:
    return os.path.realpath(path) == os.path.dirname(OWN_PACKAGE)


def _editable_projects() -> Iterator[str]:
    """Directories from which packages were installed as links, as pip has noted."""
    for directory in library_directories():
        try:
            names = [name for name in os.listdir(directory) if name.endswith(".dist-info")]
        except OSError:
            continue
        for name in names:
            try:
                with open(os.path.join(directory, name, "direct_url.json"), encoding="utf-8") as file:
                    origin = json.load(file)
                if origin.get("dir_info", {}).get("editable"):
                    yield os.path.abspath(unquote(urlsplit(origin["url"]).path))
            except (OSError, ValueError, KeyError, AttributeError):
                continue
