"""A service in a process of its own, that a test may kill and start again; jobs run alone, to compare with."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isoscale import env
from isoscale.backends.system import lives
from isoscale.cluster.client import Client
from isoscale.cluster.process import live_executors
from isoscale.cluster.values import ENDED, JobShown
from isoscale.protocol.events import read_events
from isoscale.protocol.files import read_small_json
from isoscale.testing import short_job_path, start

SERVE = "from isoscale.cli import main; main()"


class Cluster:
    """`isoscale serve` on one STATE, again and again."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.process: subprocess.Popen[bytes] | None = None

    def serve(self, *options: str, fault: str = "", devices: str | None = "cpu*2", ready: bool = True) -> None:
        variables = {env.SERVICE_FAULT: fault} if fault else {}
        command = [sys.executable, "-c", SERVE, "serve", "--state", str(self.state), *options]
        command += ["--devices", devices] if devices is not None else []
        if self.process is not None:
            self.process.wait(120)  # one that was killed, or killed itself
        with (self.state.parent / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables})
        if ready:
            self.until(lambda: self.answers() or self.process.poll() is not None)

    def answers(self) -> bool:
        with contextlib.suppress(Exception), self.client(patience_s=0.0) as client:
            return bool(client.info())
        return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(120)

    def client(self, **options: Any) -> Client:
        return Client(self.state, **options)

    def directory(self, job: str) -> Path:
        return self.state / "jobs" / job

    def submit(self, epochs: int = 2, workers: int = 2, *more: str, **options: Any) -> str:
        """A short job; with "wait" among `more` it is not done before `hurry`."""
        arguments = (str(epochs), "0.01", "0", *more)
        with self.client(patience_s=60) as client:
            return client.submit(short_job_path(), workers=workers, script_args=arguments, **options).id

    def hurry(self, *jobs: str) -> None:
        for job in jobs:
            (self.directory(job) / "hurry").touch()

    def job(self, job: str) -> JobShown:
        with self.client(patience_s=60) as client:
            return client.job(job)

    def until(self, done: Callable[[], Any], seconds: float = 200.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := done()):
            if time.monotonic() > deadline:
                raise AssertionError(f"it did not happen; {self.story()}")
            time.sleep(0.05)
        return found

    def until_state(self, job: str, *states: str) -> JobShown:
        def look() -> JobShown | None:
            found = self.job(job)
            if found.state in ENDED and found.state not in states:
                raise AssertionError(f"{job} is {found.state}: {found.error}; {self.story()}")
            return found if found.state in states else None

        return self.until(look)

    def until_step(self, job: str, step: int) -> None:
        self.until(lambda: self.job(job).step >= step)

    def coordinator(self, job: str) -> tuple[int, int]:
        found = read_small_json(self.directory(job) / "control" / "coordinator.json")
        return int(found["pid"]), int(found["born"])

    def kill_coordinator(self, job: str) -> None:
        pid, born = self.coordinator(job)
        assert lives(pid, born)
        os.kill(pid, signal.SIGKILL)

    def kill_executors(self, job: str) -> None:
        for one in live_executors(self.directory(job)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)

    def results(self, job: str) -> list[str]:
        """Digests of every time that the job said it finished."""
        events = read_events(self.directory(job) / "events.jsonl")
        return [event["digest"] for event in events if event["event"] == "finished"]

    def story(self) -> str:
        parts = []
        for path in (self.state.parent / "serve.log", self.state / "service.log"):
            if path.exists():
                parts.append(path.read_text()[-3000:])
        return "\n".join(parts)

    def end(self) -> None:
        """Everything that was started, jobs included."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        jobs = self.state / "jobs"
        for directory in jobs.iterdir() if jobs.is_dir() else ():
            with contextlib.suppress(OSError, ValueError, KeyError):
                pid, born = self.coordinator(directory.name)
                if lives(pid, born):
                    os.kill(pid, signal.SIGKILL)
            for one in live_executors(directory):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "state")
    yield made
    made.end()


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], str]:
    """The digest of a short job that nobody disturbs, by epochs and logical workers."""
    known: dict[tuple[int, int], str] = {}

    def digest(epochs: int, workers: int) -> str:
        if (epochs, workers) not in known:
            out = tmp_path_factory.mktemp("alone") / "run"
            with start(short_job_path(), out=out, workers=workers, executors=1, script_args=[str(epochs)]) as job:
                job.wait()
                known[epochs, workers] = job.digest()
        return known[epochs, workers]

    return digest
