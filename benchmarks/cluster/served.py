"""A service in a process of its own, for as long as a measurement lasts; jobs of it are ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from isoscale.cluster.client import Client
from isoscale.cluster.process import live_executors
from isoscale.protocol.files import read_small_json
from isoscale.testing import short_job_path

__all__ = ["Served", "serve", "until"]

T = TypeVar("T")
_SERVE = "from isoscale.cli import main; main()"
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Served:
    state: Path
    pid: int
    client: Client

    def submit(self, *arguments: str, workers: int = 2, **options: object) -> str:
        """The short job: EPOCHS, SECONDS PER TURN, LOADER PROCESSES, then words."""
        return self.client.submit(short_job_path(), workers=workers, script_args=arguments, **options).id

    def until_training(self, job: str, devices: int, step: int = 1) -> None:
        def look() -> bool:
            shown = self.client.job(job)
            assert shown.state not in ("finished", "failed", "cancelled"), f"{job} is {shown.state}: {shown.error}"
            return shown.state == "running" and len(shown.devices) == devices and shown.step >= step

        until(look)

    def processor_s(self) -> float:
        """That the service has taken so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serve(*options: str, devices: str = "cpu*2", state: Path | None = None) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="cluster-") as directory:
        place = state or Path(directory) / "state"
        command = [sys.executable, "-c", _SERVE, "serve", "--state", str(place), "--devices", devices, *options]
        with open(Path(directory) / "serve.log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until(lambda: (place / "address").exists() or process.poll() is not None)
            assert process.poll() is None, (Path(directory) / "serve.log").read_text()
            with Client(place, patience_s=60.0) as client:
                client.info()
                yield Served(place, process.pid, client)
        finally:
            process.kill()
            process.wait()
            for job in (place / "jobs").iterdir() if (place / "jobs").is_dir() else ():
                with contextlib.suppress(OSError, ValueError, KeyError):
                    os.kill(int(read_small_json(job / "control" / "coordinator.json")["pid"]), signal.SIGKILL)
                for one in live_executors(job):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(one.pid, signal.SIGKILL)


def until(look: Callable[[], T], every_s: float = 0.02) -> T:
    deadline = time.monotonic() + _PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(every_s)
    return found
