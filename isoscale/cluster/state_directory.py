"""STATE: where a service keeps everything, and the lock by which one service has it.

    cluster.sqlite   what must not be forgotten (`store`)
    address, token   how clients find and convince the service
    jobs/ID/         a run's directory each, with submission.json and, at the end, ended.json
    code/ID/         code that was uploaded, by the hash of its manifest
    service.log      prose

The lock is an flock: it goes with the process, whatever ends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO

from isoscale.errors import UserError
from isoscale.protocol.files import read_small, write_text_atomic

__all__ = ["StateDirectory", "job_directory"]


class StateDirectory:
    """Made if need be, and held until `close`."""

    def __init__(self, path: Path) -> None:
        """Raises UserError if another service has it, or it cannot be written."""
        self.path = path
        self._url = ""
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name in ("jobs", "code"):
                (path / name).mkdir(exist_ok=True, mode=0o700)
            self._lock: IO[str] = (path / "lock").open("a+")
        except OSError as error:
            problem = "is a file" if path.is_file() else f"cannot be written ({error.strerror})"
            raise UserError(field="--state", value=path, problem=problem, remedy="give a directory") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = self._holder()
            self._lock.close()
            raise UserError(
                field="--state",
                value=path,
                problem=f"another service has it{holder}",
                remedy="use that one, or give another directory",
            ) from None
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()

    @property
    def database(self) -> Path:
        return self.path / "cluster.sqlite"

    def announce(self, url: str) -> None:
        """Where clients find the service."""
        self._url = f"{url}\n"
        write_text_atomic(self.path / "address", self._url)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if read_small(self.path / "address", 1_000).decode("utf-8", "replace") == self._url:
                (self.path / "address").unlink(missing_ok=True)
        self._lock.close()

    def _holder(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._lock.seek(0)
            return f" (process {int(self._lock.read(20))})"
        return ""


def job_directory(state: Path, job: str) -> Path:
    return state / "jobs" / job
