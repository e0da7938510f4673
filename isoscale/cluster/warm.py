"""Keeps processes that have imported torch ready for all jobs of a service: `isoscale warm`, for as long as it lives.

It goes with the service, however that ends; executors that were forked from it stay. Without one every coordinator has
a warm parent of its own, and a job starts some seconds later.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from isoscale import env

__all__ = ["WarmKeeper"]

#: longest path of a Unix socket, less its name
_MAX_PATH = 90
# 1 is PR_SET_PDEATHSIG: the system tells it when the service is gone, however that ended.
_COMMAND = """
import ctypes, signal
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
from isoscale.cli import main
main()
"""


class WarmKeeper:
    def __init__(self, state: Path, log: Path) -> None:
        """Where somebody keeps warm processes already (ISOSCALE_WARM_DIRECTORY) those are used."""
        given = env.warm_directory()
        self.directory = given or state / "warm"
        self._process: subprocess.Popen[bytes] | None = None
        if given is None and len(str(self.directory)) <= _MAX_PATH:
            with contextlib.suppress(OSError), log.open("ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _COMMAND, "warm"],
                    env=env.child_environment({env.WARM_DIRECTORY: str(self.directory)}),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def variables(self) -> dict[str, str]:
        """For coordinators."""
        return {env.WARM_DIRECTORY: str(self.directory)}

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
