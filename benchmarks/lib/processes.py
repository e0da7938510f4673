"""Modules of this package as processes: the command of this one, and those of others that it starts."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def command() -> str:
    """What was typed to start this process, for whoever wants its figures again."""
    return shlex.join(["python", "-m", module(), *sys.argv[1:]])


def module() -> str:
    """The module that was started."""
    return _module(Path(sys.argv[0]).resolve())


def run_module(module: str, *arguments: object) -> list[str]:
    """The command of another process. It finds the package where this one did: in the working directory."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def start_again(more: Mapping[str, str]) -> None:
    """This process once more from its beginning, with these environment variables; does not return."""
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**more, **os.environ})


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts) if path.is_relative_to(ROOT) else path.name
