"""Writes benchmarks/README.md: every benchmark with its command and one line, from the modules themselves.

    python -m benchmarks.index            # rewrite the page
    python -m benchmarks.index --check    # exit 1 if it is not what the modules say

A folder is introduced by the docstring of its package. A module is a benchmark if its docstring shows a command that
starts it; of any other, the first line of the docstring is shown.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.lib.processes import ROOT

HERE = ROOT / "benchmarks"
PAGE = HERE / "README.md"
_COMMAND = re.compile(r"^    (python -m (benchmarks[\w.]+)[^#(\n]*)", re.MULTILINE)

_INTRODUCTION = """# Benchmarks

Made by `python -m benchmarks.index` from the docstrings of the modules.

Every figure of isoscale's pages is made by one of these commands, typed in the project's root, and kept in
`results/*.json` with its command. [docs/claims.md](../docs/claims.md) holds them against targets. Most have `--quick`,
which prints and keeps nothing; `--help` tells more. Figures are worth something only from a machine that does nothing
else meanwhile.

A folder has one subject. Modules without a command are parts of the others; `lib` has what several folders share,
`peers` what other systems need to run beside isoscale.
"""


def modules() -> list[str]:
    """Names of all modules of the package, packages left out."""
    return sorted(_name(path) for path in HERE.rglob("*.py") if path.name != "__init__.py")


def command_of(module: str) -> str | None:
    """The first command in the docstring that starts this module; None if it is not started by hand."""
    for command, named in _COMMAND.findall(_docstring(_path(module))):
        if named == module:
            return str(command.strip())
    return None


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
