"""One `isoscale run` as a benchmark drives it: by the command line and the event log, as anybody could.

Only processes of this run are ever signalled: the `isoscale run` started here, and executors by the process ids in its
event log.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.lib.processes import ROOT

#: what runs in the processes of a job
STARTS = ("isoscale.runtime.coordinator", "isoscale.runtime.executor", "isoscale.backends", "isoscale.runtime.launch")
#: gloo on loopback and one thread, for every system alike
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
POLL_S = 0.02


class NotReachedError(RuntimeError):
    """Something that a benchmark waited for did not happen in time."""


def wait_for(done: Callable[[], Any], limit_s: float, what: str, *, poll_s: float = POLL_S) -> Any:
    end = time.monotonic() + limit_s
    while not (found := done()):
        if time.monotonic() > end:
            raise NotReachedError(f"{what}: not in {limit_s:g} s")
        time.sleep(poll_s)
    return found


class Events:
    """Reads a growing event log piece by piece."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.all: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """Everything so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            self.all += [json.loads(line) for line in whole.splitlines() if line.strip()]
        return self.all

    def of(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.read() if event["event"] == name]


class IsoscaleJob:
    """A running job. `root` chooses another tree of isoscale, such as an older commit."""

    def __init__(
        self,
        script: Path,
        out: Path,
        *,
        workers: int,
        executors: int,
        options: Sequence[str] = (),
        script_args: Sequence[object] = (),
        root: Path = ROOT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.out = out
        self.events = Events(out / "events.jsonl")
        self._environment = {**os.environ, **variables(root), **(environment or {})}
        arguments = [str(script), "--workers", str(workers), "--executors", str(executors), "--out", str(out)]
        if root != ROOT:
            self._check_tree(root)
        self.log = out.with_name(f"{out.name}.log")
        out.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.started_t = time.time()
            self.process = subprocess.Popen(
                [*self._isoscale("run"), *arguments, *options, "--", *map(str, script_args)],
                env=self._environment,
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _check_tree(self, root: Path) -> None:
        """A path that is not found would fall back to the installed isoscale, and a tree be compared with itself."""
        question = [sys.executable, "-c", "import isoscale; print(isoscale.__file__)"]
        answer = subprocess.run(question, env=self._environment, cwd="/", check=True, capture_output=True, text=True)
        if not Path(answer.stdout.strip()).is_relative_to(root):
            raise RuntimeError(f"wanted isoscale of {root}, would get {answer.stdout.strip()}")

    def _isoscale(self, command: str) -> list[str]:
        return [str(Path(sys.executable).parent / "isoscale"), command]

    def command(self, name: str, *arguments: object) -> str:
        """Another command on this job, such as `scale`; its output."""
        done = subprocess.run(
            [*self._isoscale(name), str(self.out), *map(str, arguments)],
            env=self._environment,
            text=True,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise NotReachedError(f"isoscale {name} {arguments} gave {done.returncode}: {done.stderr.strip()[-400:]}")
        return done.stdout

    def migrate(self, executor: str) -> None:
        """To a new process, by the handle for schedulers: there is no command for it."""
        from isoscale.runtime.control.job_handle import JobHandle

        with JobHandle(self.out) as handle:
            handle.migrate(int(executor))

    def pids(self) -> dict[str, int]:
        """Executors that were started and have neither left nor been lost, oldest first."""
        alive: dict[str, int] = {}
        for event in self.events.read():
            if event["event"] == "executor_started":
                alive[str(event["executor"])] = event["pid"]
            elif event["event"] in ("executor_left", "executor_lost"):
                alive.pop(str(event["executor"]), None)
        return alive

    def members(self) -> list[str]:
        """Executors of the present generation, in the order of their logical workers."""
        generations = self.events.of("generation")
        return [str(member) for member in generations[-1]["members"]] if generations else []

    def step(self) -> int:
        steps = self.events.of("step")
        return int(steps[-1]["step"]) if steps else 0

    def wait_step(self, step: int, limit_s: float = 120.0) -> None:
        def reached() -> bool:
            self._check_alive(step)
            return self.step() >= step

        wait_for(reached, limit_s, f"step {step} of {self.out.name}")

    def wait_size(self, executors: int, limit_s: float = 60.0) -> None:
        """Until a step was committed by so many."""
        wait_for(
            lambda: (steps := self.events.of("step")) and steps[-1]["executors"] == executors,
            limit_s,
            f"{executors} executors of {self.out.name}",
        )

    def wait_end(self, limit_s: float = 300.0) -> dict[str, Any]:
        """The `finished` event."""
        wait_for(lambda: self.process.poll() is not None, limit_s, f"end of {self.out.name}")
        finished = self.events.of("finished")
        if self.process.returncode != 0 or not finished:
            raise NotReachedError(f"isoscale run gave {self.process.returncode}: {self.tail()}")
        return finished[-1]

    def tail(self, characters: int = 800) -> str:
        return self.log.read_text(errors="replace").strip()[-characters:]

    def end(self) -> None:
        """Ctrl-C first, so that it ends its executors; then by force what is left of this run."""
        if self.process.poll() is None:
            for sign in (signal.SIGINT, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    self.process.send_signal(sign)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(15)
                    break
        for event in self.events.of("executor_started"):
            # Its arguments name files of this run; a process id alone may be somebody else's by now.
            if runs(event["pid"], str(self.out.parent)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(event["pid"], signal.SIGKILL)

    def _check_alive(self, step: int) -> None:
        code = self.process.poll()
        if code is not None and self.step() < step:
            raise NotReachedError(f"isoscale run gave {code} at step {self.step()}, before step {step}: {self.tail()}")


def variables(root: Path = ROOT) -> dict[str, str]:
    """For isoscale of this tree. The script is ours in any case, and so is what it imports of the benchmarks."""
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(str, dict.fromkeys([root, ROOT])))}


@contextmanager
def job(script: Path, out: Path, **options: Any) -> Iterator[IsoscaleJob]:
    """Ended in any case."""
    one = IsoscaleJob(script, out, **options)
    try:
        yield one
    finally:
        one.end()


def runs(pid: int, word: str) -> bool:
    """Whether this process id is (still) a process whose command line has the word: ids are given again."""
    try:
        return word in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False


def parent_of(pid: int) -> int:
    """0 if the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0
