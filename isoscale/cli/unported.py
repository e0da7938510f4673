"""Does a script train by itself, and never call `isoscale.run`? Told from its source, before anything runs.

Only what is certain is refused: the script, or a module that lies beside it, calls `backward()`, sets up
torch.distributed or makes a Trainer or Accelerator, and nothing of it runs a training function by isoscale.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = ["own_training"]

_CALLS = {
    "Accelerator": "makes an Accelerator",
    "DistributedDataParallel": "wraps a model in DistributedDataParallel",
    "Seq2SeqTrainer": "makes a Trainer",
    "Trainer": "makes a Trainer",
    "backward": "calls backward()",
    "init_process_group": "calls init_process_group()",
}
#: modules beside the script that are looked at
_MAX_MODULES = 200


def own_training(script: Path, tree: ast.Module) -> str:
    """Where the script trains by itself and what it does there ("line 12 calls backward()"), "" if it need not."""
    first = ""
    for path, module in _modules(script, tree):
        if _uses_isoscale(module):
            return ""
        for node in ast.walk(module):
            name = _called(node)
            if not first and name in _CALLS:
                where = f"line {node.lineno}" if path == script else f"{path.name}:{node.lineno}"  # type: ignore[attr-defined]
                first = f"{where} {_CALLS[name]}"
    return first


def _modules(script: Path, tree: ast.Module) -> Iterator[tuple[Path, ast.Module]]:
    """The script, and those beside it that it imports, and they in turn."""
    seen, waiting = {script}, [(script, tree)]
    while waiting and len(seen) < _MAX_MODULES:
        path, module = waiting.pop()
        yield path, module
        for found in _beside(script.parent, path.parent, module):
            if found not in seen:
                seen.add(found)
                try:
                    waiting.append((found, ast.parse(found.read_bytes(), str(found))))
                except (OSError, SyntaxError, ValueError):
                    continue


def _beside(root: Path, here: Path, module: ast.Module) -> Iterator[Path]:
    for node in ast.walk(module):
        names: list[str] = []
        directory = root
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            stem = node.module or ""
            names = [stem, *(f"{stem}.{alias.name}".lstrip(".") for alias in node.names)]
            directory = here if node.level else root
        for name in filter(None, names):
            base = directory.joinpath(*name.split("."))
            yield from (path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file())


def _uses_isoscale(module: ast.Module) -> bool:
    """Or anything by which it could without our knowing."""
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return bool(names & {"importlib", "isoscale", "runpy"})


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""
