"""`isoscale serve` in a process of its own, for stories and measurements: up when entered, gone with its jobs after.

with Served(tmp_path / "state", policy="flow") as served, served.client() as client:
    job = client.submit("train.py", workers=4)
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from isoscale.backends.system import lives
from isoscale.cluster.client import Client
from isoscale.cluster.process import live_executors
from isoscale.errors import IsoscaleError
from isoscale.protocol.files import read_small_json

__all__ = ["Served"]

_SERVE = "from isoscale.cli import main; main()"
_UP_S, _DOWN_S = 120.0, 30.0
_POLL_S = 0.05


class Served:
    def __init__(self, state: Path, *, devices: str = "cpu*2", policy: str = "easyscale", options: Any = ()) -> None:
        """`options`: more of `isoscale serve`'s. What it prints goes to `serve.log` beside its state."""
        self.state = state
        self.log = state.with_name("serve.log")
        self._command = [sys.executable, "-c", _SERVE, "serve", "--state", str(state), "--devices", devices]
        self._command += ["--policy", policy, *options]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Served:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + _UP_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise RuntimeError(f"isoscale serve does not come up: {self.log.read_text()[-2000:]}")
            time.sleep(_POLL_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def client(self, **options: Any) -> Client:
        return Client(self.state, **options)

    def directory(self, job: str) -> Path:
        return self.state / "jobs" / job

    def end(self) -> None:
        """The service, then every process of its jobs: those outlive it."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(_DOWN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        jobs = self.state / "jobs"
        for directory in jobs.iterdir() if jobs.is_dir() else ():
            with contextlib.suppress(OSError, ValueError, KeyError, IsoscaleError):
                found = read_small_json(directory / "control" / "coordinator.json")
                _end(int(found["pid"]), int(found["born"]))
            for one in live_executors(directory):
                _end(one.pid, one.born)

    def _answers(self) -> bool:
        with contextlib.suppress(Exception), self.client(patience_s=0.0) as client:
            return bool(client.info())
        return False


def _end(pid: int, born: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if lives(pid, born):
            os.kill(pid, signal.SIGKILL)
