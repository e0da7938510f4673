"""Files that another process reads while they change: whole or not at all, and on the disk before anybody is told.

Small texts and JSON only. Does not lock: of two writers the last one wins. Reading never waits: what has the name of a
file and is a FIFO, a device, a directory or a file of gigabytes is an error like any other.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

__all__ = [
    "MAX_SMALL_BYTES",
    "open_regular",
    "read_small",
    "read_small_json",
    "sync_directory",
    "write_json_atomic",
    "write_text_atomic",
    "write_text_synced",
]

#: of files that are read in one piece: the largest, a job with a plan of thousands of steps, has less than one
MAX_SMALL_BYTES = 16 * 2**20


def open_regular(path: Path) -> BufferedReader:
    """A file for reading. Raises OSError, also for what is there and is no file; waits for nothing.

    Links are followed: secrets that a cluster mounts are links, and so may be a directory's files.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, f"{_sort(mode)}, not a file", str(path))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_small(path: Path, most: int = MAX_SMALL_BYTES) -> bytes:
    """The whole of a file of at most so many bytes. Raises OSError."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"more than {most:,} bytes", str(path))
    return data


def read_small_json(path: Path) -> Any:
    """Raises OSError, or ValueError for what is no JSON."""
    try:
        return json.loads(read_small(path))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _sort(mode: int) -> str:
    sorts = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for is_one, name in sorts if is_one(mode)), "a device")


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
