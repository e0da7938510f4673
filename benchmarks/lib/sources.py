"""Which code a result depends on, and its hashes: what tells a fresh result from a stale one.

A benchmark depends on every module of `benchmarks` and `isoscale` that it imports, also indirectly and inside
functions, and on what such a module names in `STARTS`: modules, packages or scripts that run in processes of their own.
Modules that only show or keep results do not count. A module's hash is that of its syntax tree without docstrings:
comments, prose and layout make nothing stale. Trees differ between versions of Python, which results record. Files
beside modules that are no Python (kernels, tables) count with their bytes. Nothing is imported.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from benchmarks.lib.processes import ROOT

_TREES = ("benchmarks", "isoscale")
#: how results are kept and shown
_NOT_MEASURED = {
    *(f"benchmarks.lib.{name}" for name in ("options", "result", "sources", "claims", "processes")),
    "benchmarks.recipes.page",
    "benchmarks.recipes.balanced.tables",
    "benchmarks.recipes.mcmisp.table",
}
#: names everything that a user may import, and is not what a benchmark measures
_FRONT = "isoscale"


def digests(module: str) -> dict[str, str]:
    """By package (`isoscale.core`, `benchmarks.elastic`), a short hash of what the benchmark depends on in it."""
    groups: dict[str, list[Path]] = {}
    for one in sorted(closure(module)):
        path = path_of(one)
        assert path is not None
        groups.setdefault(".".join(one.split(".")[:2]), []).append(path)
    return {package: _hash(paths) for package, paths in groups.items()}


def closure(module: str) -> set[str]:
    """Names of all modules that the module depends on, itself included."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        one = waiting.pop()
        if one in found or one in _NOT_MEASURED or path_of(one) is None:
            continue
        found.add(one)
        waiting += [] if one == _FRONT else _wants(one)
        waiting += [one.rpartition(".")[0]] if "." in one else []
    return found - {"benchmarks"}


def path_of(module: str) -> Path | None:
    """Its file, if it is one of ours."""
    if module.split(".")[0] not in _TREES:
        return None
    base = ROOT.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


@cache
def _wants(module: str) -> list[str]:
    path = path_of(module)
    assert path is not None
    found: list[str] = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # `from package import name`: the name may be a module.
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found + [one for named in _starts(_tree(path)) for one in _all_of(named)]


def _starts(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "STARTS" for t in node.targets):
            yield from ast.literal_eval(node.value)


def _all_of(name: str) -> Iterator[str]:
    """A module, or a package with everything in it."""
    folder = ROOT.joinpath(*name.split("."))
    yield name
    for path in sorted(folder.rglob("*.py")):
        yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _code(path: Path) -> str:
    """The syntax tree without docstrings, as text."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return ast.dump(tree)


def _hash(paths: list[Path]) -> str:
    total = hashlib.sha256()
    for path in paths:
        total.update(f"{path.relative_to(ROOT)}\0{_code(path)}\0".encode())
    for folder in sorted({path.parent for path in paths}):
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.suffix not in (".py", ".pyc", ".md", ".json", ".typed"):
                total.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return total.hexdigest()[:12]
