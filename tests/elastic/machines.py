"""Machines that share no disk, in a box: mount namespaces in which what others have is hidden."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isoscale.testing.running import RunningJob

__all__ = ["ISOSCALE", "PATIENCE_S", "Machines", "kill_executors", "why_no_machines"]

PATIENCE_S = 60.0
ISOSCALE = [sys.executable, "-c", "from isoscale.cli import main; main()"]


def why_no_machines() -> str:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "not root, or no program unshare"
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True)
    return tried.stderr.strip()


class Machines:
    """Everything that was started ends with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.log = folder / "log"

    def start(
        self, name: str, *arguments: object, sees: tuple[Path, ...] = (), apart: bool = True, **variables: str
    ) -> None:
        """`isoscale ARGUMENTS` on a machine that has of this test what it `sees`, and a disk of its own.

        Not `apart`: on this machine.
        """
        self.start_program(name, *ISOSCALE, *arguments, sees=sees, apart=apart, **variables)

    def start_program(
        self,
        name: str,
        *command: object,
        sees: tuple[Path, ...] = (),
        apart: bool = True,
        options: tuple[str, ...] = ("-m",),
        **variables: str,
    ) -> None:
        """Any program; `options` say what else than its disk is its own, as `unshare` takes them."""
        own = self.folder / "machines" / name
        own.mkdir(parents=True)
        words = [*map(str, command)]
        hidden = [path for path in (self.folder / "run", self.folder / "script") if path not in sees]
        mounts = "".join(f"mkdir -p {path} && mount -t tmpfs none {path} && " for path in (*hidden, Path("/dev/shm")))
        environment = {**os.environ, "TMPDIR": str(own), "OMP_NUM_THREADS": "1", "COLUMNS": "200", **variables}
        # The keeper of warm parents is elsewhere; and one with this TMPDIR would be of no use to any other test.
        environment.pop("ISOSCALE_WARM_DIRECTORY", None)
        if apart:
            words = ["unshare", *options, "sh", "-c", f"{mounts} exec {shlex.join(words)}"]
        with self.log.open("ab") as log:
            self.processes[name] = subprocess.Popen(
                words,
                cwd=own,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, *names: str) -> None:
        """kill -9, of all that a machine runs."""
        for name in names:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.processes[name].pid, signal.SIGKILL)
            self.processes[name].wait()

    def output(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def until(self, done: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := done()):
            assert time.monotonic() < deadline, f"{what} did not come:\n{self.output()}"
            time.sleep(0.05)
        return found


def kill_executors(out: Path) -> None:
    """Of a coordinator that is gone, in sessions of their own."""
    job = RunningJob(out)
    for pid in job.pids().values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
