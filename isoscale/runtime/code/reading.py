"""Reads files of code as they are at one instant: regular files only, no longer than allowed, not while they change."""

from __future__ import annotations

import os
import stat

__all__ = ["TooLargeError", "read_regular"]

_ATTEMPTS = 5


class TooLargeError(OSError):
    """More bytes than were asked for."""


def read_regular(path: str, limit: int) -> bytes:
    """The contents of a file. Raises OSError: for what is no file (a pipe would block), and above `limit` bytes.

    A file that is written while it is read is read again, a few times.
    """
    for _ in range(_ATTEMPTS):
        # Not to wait for the other end of a pipe.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                raise OSError(f"{path} is no regular file")
            if before.st_size > limit:
                raise TooLargeError(f"{path} has {before.st_size} bytes")
            data = file.readall()
            after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns) and len(data) == after.st_size:
            break
    return data
