"""No rename breaks a benchmark unseen: all import, all that they import later is there, and commands name modules."""

from __future__ import annotations

import ast
import importlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import index
from benchmarks.lib import processes
from benchmarks.lib.measure import RESULTS
from benchmarks.lib.processes import ROOT

MODULES = index.modules()
#: imports what only the peer's own environment has
TORCHFT = "benchmarks.peers.torchft_train"
#: by folder: the other folders that it may know
SHARED: dict[str, set[str]] = {"lib": set(), "peers": {"lib"}, "elastic": {"lib", "peers"}}
#: the comparison of `elastic` again, on another backend and with another peer
SHARED["ray"] = {"lib", "elastic"}


def source(module: str) -> str:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")


def imports(module: str, *, of: str) -> Iterator[tuple[str, str]]:
    """What it imports of a package, also inside functions: module and name."""
    for node in ast.walk(ast.parse(source(module))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == of:
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("module", MODULES)
def test_it_imports_and_so_does_what_it_imports_later(module: str) -> None:
    if module != TORCHFT:
        importlib.import_module(module)
    for wanted, name in [*imports(module, of="benchmarks"), *imports(module, of="isoscale")]:
        if not hasattr(importlib.import_module(wanted), name):
            importlib.import_module(f"{wanted}.{name}")


@pytest.mark.parametrize("module", [module for module in MODULES if module.count(".") > 1])
def test_a_folder_knows_only_itself_and_what_is_shared(module: str) -> None:
    folder = module.split(".")[1]
    wanted = {f"{package}.{name}".split(".")[1] for package, name in imports(module, of="benchmarks")}
    assert wanted <= {folder} | SHARED.get(folder, {"lib"})


@pytest.mark.parametrize("module", [module for module in MODULES if '__name__ == "__main__"' in source(module)])
def test_what_can_be_started_says_how_or_is_started_by_others(module: str) -> None:
    shown = [line.split() for line in (ast.get_docstring(ast.parse(source(module))) or "").splitlines()]
    assert {words[2] for words in shown if words[:2] == ["python", "-m"]} <= {module.removesuffix(".__main__")}
    name = module.rpartition(".")[2]
    others = "".join(source(other) for other in MODULES if other != module)
    is_part = any(word in others for word in (f'"{name}.py"', f'"{module}"', f"{name}.__name__"))
    starts_itself = f'run_module("{module}")' in source(module)
    assert index.command_of(module) or is_part or starts_itself


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_kept_result_names_a_command_that_exists(path: Path) -> None:
    python, option, module, *_ = shlex.split(json.loads(path.read_text())["command"])
    assert (python, option) == ("python", "-m")
    assert index.command_of(module) if module.startswith("benchmarks.") else '"__main__"' in source(module)


def test_a_new_result_is_kept_with_the_command_that_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(ROOT / "benchmarks" / "elastic" / "gaps.py"), "--scenarios", "scale out"])
    assert processes.command() == "python -m benchmarks.elastic.gaps --scenarios 'scale out'"


def test_the_readme_is_generated_from_the_modules() -> None:
    assert index.PAGE.read_text(encoding="utf-8") == index.page(), "run: python -m benchmarks.index"
