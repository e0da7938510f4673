"""Real runs for these tests: `isoscale run` as a person starts it, and the processes that belong to it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isoscale import env
from isoscale.protocol.events import read_events

ISOSCALE = Path(sys.executable).with_name("isoscale")
PACED = Path(__file__).with_name("scripts") / "paced.py"
WORKERS, STEPS = 4, 200
#: for a machine that is busy with other things; no test waits this long for anything that works
PATIENCE_S = 250.0


def environment() -> dict[str, str]:
    own = {name for name in os.environ if name.startswith("ISOSCALE_")} - {env.WARM_DIRECTORY}
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return {**kept, "COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}


def isoscale(
    *arguments: object, cwd: Path | None = None, prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """A command to its end; output and errors together."""
    return subprocess.run(
        [*prefix, str(ISOSCALE), *map(str, arguments)],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )


def delete(directory: Path) -> None:
    """`rm -rf` until it is gone: a run that trains goes on to make files in a directory that is being emptied."""
    deadline = time.monotonic() + PATIENCE_S
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)
        assert time.monotonic() < deadline, f"{directory} cannot be deleted: {os.listdir(directory)}"


def digest_alone(steps: int, directory: Path) -> str:
    """The first digits of the digest that the job has when nothing happens to it, from one process without sockets."""
    alone = subprocess.run(
        [sys.executable, str(PACED), str(steps)],
        env={**environment(), "ISOSCALE_WORKERS": str(WORKERS), "ISOSCALE_OUT": str(directory)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return alone.stderr.split("digest ")[1].split()[0]


@dataclass
class Running:
    process: subprocess.Popen[str]
    out: Path
    log: Path
    #: holds the step up to which it may train
    gate: Path
    joined: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return str(json.loads((self.out / "control" / "coordinator.json").read_text())["url"])

    @property
    def token(self) -> str:
        return (self.out / "control" / "token").read_text().strip()

    @property
    def printed(self) -> str:
        return self.log.read_text()

    def events(self, name: str = "") -> list[dict[str, Any]]:
        path = self.out / "events.jsonl"
        found = list(read_events(path)) if path.exists() else []
        return [event for event in found if not name or event["event"] == name]

    def step(self) -> int:
        return max((event["step"] for event in self.events("step")), default=0)

    def until(self, done: Callable[[], object], what: str, patience: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience
        while not done():
            assert self.process.poll() is None, f"the run ended before: {what}\n{self.printed}"
            assert time.monotonic() < deadline, (
                f"not within {PATIENCE_S} s: {what}\n{self.printed}\n{self.events()[-5:]}"
            )
            time.sleep(0.05)

    def train(self, steps: int = 3) -> None:
        """Go on for a few steps, and see that they are committed."""
        before = self.step()
        self.allow(before + steps)
        self.until(lambda: self.step() >= before + steps, f"step {before + steps}")

    def allow(self, step: int) -> None:
        # In one piece: the script reads while this writes.
        temporary = self.gate.with_name("gate.tmp")
        temporary.write_text(str(step))
        temporary.replace(self.gate)

    def pids(self) -> list[int]:
        """The coordinator, its executors, and what they have started."""
        roots = [self.process.pid, *(one.pid for one in self.joined)]
        roots += [event["pid"] for event in self.events("executor_started")]
        return [pid for pid in _with_descendants(roots) if Path(f"/proc/{pid}/fd").exists()]

    def join(self, *options: object, cwd: Path | None = None, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
        """`isoscale executor --join`; ends with the run."""
        token = self.out / "control" / "token"
        command = [
            *prefix,
            str(ISOSCALE),
            "executor",
            "--join",
            self.url,
            "--token-file",
            str(token),
            *map(str, options),
        ]
        log = self.log.with_name(f"joined-{len(self.joined)}.log")
        with log.open("w") as file:
            process = subprocess.Popen(
                command, cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, stdout=file, stderr=file, text=True
            )
        self.joined.append(process)
        return process

    def until_held(self, executor: int, prefix: Sequence[str] = ()) -> None:
        """A newcomer has come as far as it can without the job's state: it comes in between two steps."""

        def held() -> bool:
            shown = isoscale("status", self.out, "--json", prefix=prefix)
            states = {one["executor"]: one["state"] for one in json.loads(shown.stdout)["executors"]}
            return states.get(executor) in ("held", "member")

        self.until(held, f"executor {executor} waits to come in")

    def finish(self) -> dict[str, Any]:
        """Let it run to its end; the summary."""
        self.allow(10**6)
        code = self.process.wait(PATIENCE_S)
        assert code == 0, f"exit code {code}\n{self.printed}"
        return self.summary()

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.out / "summary.json").read_text()))


@contextlib.contextmanager
def running(
    directory: Path,
    *options: object,
    steps: int = STEPS,
    allowed: int = 1,
    out: Path | None = None,
    prefix: Sequence[str] = (),
    umask: int = 0o022,
    script_options: Sequence[str] = (),
    gate: Path | None = None,
) -> Iterator[Running]:
    """A run of `scripts/paced.py`; whatever is left of it is killed at the end."""
    log, out = directory / "printed.txt", out or directory / "out"
    command = [*prefix, str(ISOSCALE), "run", str(PACED), "--workers", str(WORKERS), "--out", str(out)]
    # What a script's waiting says of speeds is nothing to act on.
    command.append("--no-rebalance")
    if gate is None:
        gate = directory / "gate"
        gate.write_text(str(allowed))
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, *map(str, options), "--", str(steps), str(gate), *script_options],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            text=True,
            umask=umask,
        )
    run = Running(process, out, log, gate)
    try:
        yield run
    finally:
        for pid in run.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for one in [process, *run.joined]:
            one.wait()


def _with_descendants(roots: list[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.append(pid)
            todo += children.get(pid, [])
    return found
