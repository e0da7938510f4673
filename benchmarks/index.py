"""Writes benchmarks/README.md: every benchmark with its command and one line, from the modules themselves.

    python -m benchmarks.index            # rewrite the page
    python -m benchmarks.index --check    # exit 1 if it is not what the modules say

A folder is introduced by the docstring of its package. A module is a benchmark if its docstring shows a command that
starts it and it lies in a folder; of any other, the first line of the docstring is shown. A benchmark names its result
and says how many minutes it takes (`RESULT`, `MINUTES`). Nothing is imported.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lib.processes import ROOT

HERE = ROOT / "benchmarks"
PAGE = HERE / "README.md"
#: started by hand too, but they make pages from results, or what others read
_PAGES = (
    "benchmarks.batches.figures",
    "benchmarks.cluster.figures",
    "benchmarks.cluster.workload",
    "benchmarks.recipes.page",
    "benchmarks.scale.figures",
    "benchmarks.scale.page",
    "benchmarks.simulate.page",
)
_COMMAND = re.compile(r"^    (python -m (benchmarks[\w.]*)[^#(\n]*)", re.MULTILINE)

_INTRODUCTION = """# Benchmarks

Made by `python -m benchmarks.index` from the docstrings of the modules.

Every figure of isoscale's pages is made by one of these commands, typed in the project's root, and kept in
`results/*.json` with its command, the machine, and hashes of the code that it is about.
[docs/claims.md](../docs/claims.md) holds them against targets. Figures are worth something only from a machine that
does nothing else meanwhile.

All at once: `python -m benchmarks --list` shows every benchmark with its state and how long it takes;
`python -m benchmarks` measures what is stale, one after another, and writes docs/claims.md. Broken off, the same
command goes on where it stopped. `--under CMD` puts a command before each measurement, such as one that waits for an
idle machine. `python -m benchmarks --smoke` starts every benchmark for a moment; the tests do that.

Each has the same command line (`lib/options.py`):

| option | |
|---|---|
| `--smoke` | seconds: the whole way with tiny sizes. Does it run? Keeps nothing |
| `--quick` | a minute or two; prints about what would come out, keeps nothing |
| neither | everything at full length; the result is kept in `results/` |
| `--out FILE` | the result goes there, at any length, and nowhere else |

A benchmark says `RESULT, MINUTES = "name of the JSON file", how long`, takes its options from `lib.options`, and hands
its rows to `lib.result`: `save` at the end, or `Rows`, which keeps each row as it comes and takes them up again after a
break. What it starts in other processes it names in `STARTS`, so that `lib.sources` can tell when the result is stale.

A folder has one subject. Modules without a command are parts of the others; `lib` has what several folders share,
`peers` what other systems need to run beside isoscale.
"""


def modules() -> list[str]:
    """Names of all modules of the package, packages left out."""
    return sorted(_name(path) for path in HERE.rglob("*.py") if path.name != "__init__.py")


def command_of(module: str) -> str | None:
    """The first command in the docstring that starts this module; None if it is not started by hand."""
    for command, named in _COMMAND.findall(_docstring(_path(module))):
        if named == module.removesuffix(".__main__"):
            return str(command.strip())
    return None


@dataclass(frozen=True)
class Benchmark:
    """One module that measures."""

    module: str
    #: what follows it in its command; some words stand for what a user has to give
    arguments: tuple[str, ...]
    result: str
    minutes: float

    @property
    def name(self) -> str:
        return self.module.removeprefix("benchmarks.")


def benchmarks() -> list[Benchmark]:
    """All that measure, by name."""
    return [_benchmark(one) for one in modules() if one.count(".") > 1 and one not in _PAGES and command_of(one)]


def _benchmark(module: str) -> Benchmark:
    command = re.sub(r"\[[^]]*\]", "", command_of(module) or "")
    found = _constants(_path(module))
    result, minutes = str(found.get("RESULT", module.rpartition(".")[2])), float(found.get("MINUTES", 0))
    return Benchmark(module, tuple(command.split()[3:]), result, minutes)


def _constants(path: Path) -> dict[str, str | int | float]:
    """`RESULT, MINUTES = ..., ...` of a module."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            names = [one.id for one in node.targets[0].elts if isinstance(one, ast.Name)]
            if names == ["RESULT", "MINUTES"]:
                return dict(zip(names, ast.literal_eval(node.value), strict=True))
    return {}


def page() -> str:
    folders: dict[str, list[str]] = {}
    for module in modules():
        folders.setdefault(module.rpartition(".")[0], []).append(module)
    return "\n".join([_INTRODUCTION, *("\n".join(_section(package, folders[package])) for package in sorted(folders))])


def _section(package: str, found: list[str]) -> Iterator[str]:
    folder = HERE.joinpath(*package.split(".")[1:])
    if folder == HERE:
        yield "## Pages\n"
    else:
        yield f"## {folder.relative_to(HERE).as_posix()}\n"
        yield _docstring(folder / "__init__.py").rstrip("\n") + "\n"
    commands = {module: command for module in found if (command := command_of(module))}
    if commands:
        yield "| command | |"
        yield "|---|---|"
        for module, command in commands.items():
            yield f"| `{command}` | {_first_line(module)} |"
        yield ""
    others = [module for module in found if module not in commands]
    for module in others:
        yield f"- [{module.rpartition('.')[2]}]({_path(module).relative_to(HERE).as_posix()}): {_first_line(module)}"
    if others:
        yield ""


def _first_line(module: str) -> str:
    return _docstring(_path(module)).partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _docstring(path: Path) -> str:
    # As it is written: commands are told by their indentation.
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or ""


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _path(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
