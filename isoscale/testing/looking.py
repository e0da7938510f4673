"""Files and processes as a test looks at them, whatever happens to them meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

__all__ = ["forks_of", "handles", "read_json", "write_atomic"]


def write_atomic(path: Path, text: str) -> None:
    """Whoever looks meanwhile sees the old text or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    temporary.write_text(text)
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else {}
    return {}


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; without one it would die of it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def forks_of(pid: int) -> list[int]:
    """Children that run what their parent runs; others are helpers of libraries."""
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return [child for child in children if Path(f"/proc/{child}/cmdline").read_bytes() == command]
    return []
