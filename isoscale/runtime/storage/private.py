"""Directories on one machine's own disk, for what it has of a run in a storage: code, token, files on their way.

Under the system's directory for temporary files, and nobody else's: made for this user only, and refused if they are
not. What a process that died has left there is removed by the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

from isoscale.backends.system import born

__all__ = ["run_directory", "scratch_directory"]

_SCRATCH = re.compile(r"scratch-([0-9]+)-([0-9]+)-([0-9]+)")


def run_directory(url: str) -> Path:
    """What processes of this machine share of the run. Raises OSError."""
    name = hashlib.sha256(url.encode(errors="surrogateescape")).hexdigest()[:24]
    path = Path(tempfile.gettempdir()) / f"isoscale-{os.geteuid()}"
    for one in (path, path / name):
        with contextlib.suppress(FileExistsError):
            one.mkdir(mode=0o700)
        found = one.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(0, "is not a directory of this user's own (mode 0700)", str(one))
    return path / name


def scratch_directory(url: str) -> Path:
    """For this process alone; what dead ones left is removed. Raises OSError."""
    parent = run_directory(url)
    space = os.stat("/proc/self/ns/pid").st_ino
    for other in parent.iterdir():
        match = _SCRATCH.fullmatch(other.name)
        # Of another container nobody here can tell who lives.
        if match is not None and int(match[1]) == space and born(int(match[2])) != int(match[3]):
            shutil.rmtree(other, ignore_errors=True)
    path = parent / f"scratch-{space}-{os.getpid()}-{born(os.getpid())}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path
