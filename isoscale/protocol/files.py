"""Files that another process reads while they change: whole or not at all, and on the disk before anybody is told.

Small texts and JSON only. Does not lock: of two writers the last one wins.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

__all__ = ["sync_directory", "write_json_atomic", "write_text_atomic", "write_text_synced"]


def write_json_atomic(path: Path, value: Any, *, mode: int = 0o644) -> None:
    """As `write_text_atomic`. Raises ValueError for NaN and infinity, which other readers of JSON refuse."""
    write_text_atomic(path, json.dumps(value, indent=2, allow_nan=False) + "\n", mode=mode)


def write_text_atomic(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Readers see the old contents or `text`, also after a loss of power. Raises OSError; then nothing has changed.

    `mode` holds from the first byte on, less what the process's umask takes away.
    """
    # Unique, so that two writers do not write into one file; hidden, so that a pattern for `path` does not find it.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        write_text_synced(temporary, text, mode=mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def write_text_synced(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Contents that survive a loss of power, in a file that nobody reads yet; an old one is overwritten."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Names that were created, renamed or removed in it survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
