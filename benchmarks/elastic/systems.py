"""isoscale, torchrun elastic and torchft behind one face: start, grow, shrink, kill, end.

Each run has a folder of its own; workers write what they commit into `commits/` there. How torchrun and torchft had to
be set up to work at all is in `peers/README.md`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.elastic.commits import Commit, commits_of, read_lines
from benchmarks.elastic.job import ENVIRONMENT, IsoscaleJob, NotReachedError, parent_of, wait_for
from benchmarks.lib.processes import ROOT
from isoscale.backends.local import ALLOCATOR

STARTS = ("benchmarks.peers",)
PEERS = ROOT / "benchmarks" / "peers"
WORKERS = 2


class Run(ABC):
    """One training run of one system."""

    name: str
    #: what can be done to it
    scenarios: tuple[str, ...]

    def __init__(self, folder: Path, workload: int, steps: int) -> None:
        self.folder = folder
        self.steps = steps
        self.launched_t = 0.0
        self._arguments = ["--workload", str(workload), "--steps", str(steps), "--commits", str(self.commits_folder)]
        self._processes: list[subprocess.Popen[bytes]] = []
        #: those of them that train or start what trains
        self._trainers: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True)

    @property
    def commits_folder(self) -> Path:
        return self.folder / "commits"

    @abstractmethod
    def start(self, size: int, *, constant: bool) -> None:
        """With `constant` the size never changes, which some systems can be told."""

    @abstractmethod
    def act(self, scenario: str) -> None:
        """Do to the run what the scenario is about."""

    def commits(self) -> list[Commit]:
        return commits_of(read_lines(self.commits_folder)) if self.commits_folder.exists() else []

    def wait_step(self, step: int, size: int, limit_s: float) -> None:
        """Until so many steps are committed, the last one by so many workers."""

        def reached() -> bool:
            found = self.commits()
            return bool(found) and found[-1].step >= step and found[-1].size == size

        wait_for(reached, limit_s, f"step {step} with {size} workers", poll_s=0.05)

    def wait_end(self, limit_s: float) -> Path:
        """The file with the final parameters."""
        final = self.commits_folder / "final.pt"

        def there() -> bool:
            gone = all(process.poll() is not None for process in self._trainers)
            if gone and not final.exists():
                raise NotReachedError(f"all gave up, exit codes {[process.returncode for process in self._trainers]}")
            return final.exists()

        wait_for(there, limit_s, f"step {self.steps}", poll_s=0.05)
        return final

    def facts(self) -> dict[str, Any]:
        """More about the run, by what the system itself says."""
        return {}

    def end(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # Workers may have sessions of their own.
        for pid in self._worker_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _worker_pids(self) -> list[int]:
        """Of workers of this run that still live; its folder in the command line tells them from anybody else's."""
        found = []
        for path in self.commits_folder.glob("commits-*.txt"):
            pid = int(path.stem.removeprefix("commits-"))
            with contextlib.suppress(OSError):
                if str(self.folder) in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"):
                    found.append(pid)
        return found

    def _spawn(self, command: Sequence[object], log: str, more: Mapping[str, str] | None = None) -> Any:
        self.launched_t = self.launched_t or time.time()
        with (self.folder / log).open("wb") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                env={**os.environ, **ALLOCATOR, **ENVIRONMENT, **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process


class IsoscaleRun(Run):
    name = "isoscale"
    scenarios = ("scale out", "scale in", "notice", "migrate", "kill", "kill first")
    #: more options of `isoscale run`
    options: tuple[str, ...] = ()

    def start(self, size: int, *, constant: bool) -> None:
        self.job = IsoscaleJob(
            PEERS / "isoscale_train.py",
            self.folder / "run",
            workers=WORKERS,
            executors=size,
            options=self.options,
            script_args=self._arguments,
        )
        self.launched_t = self.job.started_t

    def act(self, scenario: str) -> None:
        members, pids = self.job.members(), self.job.pids()
        if scenario == "scale out":
            self.job.command("scale", WORKERS)
        elif scenario == "scale in":
            self.job.command("scale", 1)
        elif scenario == "migrate":
            self.job.migrate(members[-1])
        elif scenario in ("notice", "kill", "kill first"):
            victim = pids[members[0 if scenario == "kill first" else -1]]
            os.kill(victim, signal.SIGTERM if scenario == "notice" else signal.SIGKILL)
        else:
            raise ValueError(scenario)

    def wait_end(self, limit_s: float) -> Path:
        self.job.wait_end(limit_s)
        return self.job.out / "final.pt"

    def facts(self) -> dict[str, Any]:
        finished = self.job.events.of("finished")
        return {
            "job_digest": finished[-1]["digest"] if finished else None,
            "rescales": [
                {key: event.get(key) for key in ("from", "to", "step", "pause_s", "wait_s", "reason")}
                for event in self.job.events.of("rescale")
            ],
        }

    def end(self) -> None:
        self.job.end()
        super().end()


class TorchrunRun(Run):
    """Two agents with one worker each. SIGTERM and SIGKILL go to the second: the first one hosts the store."""

    name = "torchrun"
    scenarios = ("scale out", "scale in", "kill", "kill node")

    def start(self, size: int, *, constant: bool) -> None:
        self._port = free_port()
        self._least = size if constant else 1
        for _ in range(size):
            self._trainers.append(self._agent())
            # Whichever agent comes first hosts the store, and its end is everybody's.
            wait_for(lambda: listens(self._port), 60.0, "the store of the first agent")

    def act(self, scenario: str) -> None:
        if scenario == "scale out":
            self._trainers.append(self._agent())
        elif scenario == "scale in":
            self._trainers[-1].send_signal(signal.SIGTERM)
        elif scenario in ("kill", "kill node"):
            agent = self._trainers[-1].pid
            workers = [pid for pid in self._worker_pids() if parent_of(pid) == agent]
            # The agent first: otherwise it might see its worker die and start another.
            for pid in [agent, *workers] if scenario == "kill node" else workers:
                os.kill(pid, signal.SIGKILL)
        else:
            raise ValueError(scenario)

    def _agent(self) -> Any:
        return self._spawn(
            [
                Path(sys.executable).parent / "torchrun",
                f"--nnodes={self._least}:{WORKERS}",
                "--nproc-per-node=1",
                "--max-restarts=3",
                "--rdzv-backend=c10d",
                "--rdzv-id=benchmark",
                f"--rdzv-endpoint=127.0.0.1:{self._port}",
                "--local-addr=127.0.0.1",
                "--rdzv-conf=last_call_timeout=1",
                "--module",
                "benchmarks.peers.torchrun_train",
                *self._arguments,
            ],
            f"agent-{len(self._processes)}.log",
            {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        )


class TorchftRun(Run):
    """A lighthouse and two replicas of one process."""

    name = "torchft"
    scenarios = ("scale out", "scale in", "kill")
    environment: Path
    heartbeat_ms = 5000
    #: without the repair of the DDP hook: the survivor of a kill dies too
    as_shipped = False

    def start(self, size: int, *, constant: bool) -> None:
        self._port = free_port()
        self._spawn(
            [
                self.environment / "torchft_lighthouse",
                "--min_replicas",
                size if constant else 1,
                "--bind",
                f"127.0.0.1:{self._port}",
                "--heartbeat_timeout_ms",
                self.heartbeat_ms,
            ],
            "lighthouse.log",
        )
        self._trainers = [self._replica(index) for index in range(size)]

    def act(self, scenario: str) -> None:
        if scenario == "scale out":
            self._trainers.append(self._replica(len(self._trainers)))
        elif scenario == "scale in":
            self._trainers[-1].send_signal(signal.SIGTERM)
        elif scenario == "kill":
            self._trainers[-1].send_signal(signal.SIGKILL)
        else:
            raise ValueError(scenario)

    def _replica(self, index: int) -> Any:
        return self._spawn(
            [
                self.environment / "python",
                "-m",
                "benchmarks.peers.torchft_train",
                *self._arguments,
                *(["--as-shipped"] if self.as_shipped else []),
            ],
            f"replica-{index}.log",
            {"REPLICA_GROUP_ID": str(index), "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self._port}"},
        )


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def systems(environment: Path | None) -> list[type[Run]]:
    """`environment`: torchft's `bin`; None leaves torchft out."""
    found: list[type[Run]] = [IsoscaleRun, TorchrunRun]
    if environment is not None:
        shared = {"environment": environment}
        found.append(type("Torchft", (TorchftRun,), shared))
        # The default heartbeat time-out decides its gaps, so a peer that somebody has tuned belongs beside it.
        tuned = {**shared, "name": "torchft, heartbeat time-out 1 s", "heartbeat_ms": 1000}
        tuned |= {"scenarios": ("scale in", "kill")}
        found.append(type("TunedTorchft", (TorchftRun,), tuned))
        shipped = {**shared, "name": "torchft as shipped", "as_shipped": True, "scenarios": ("kill",)}
        found.append(type("ShippedTorchft", (TorchftRun,), shipped))
    return found
