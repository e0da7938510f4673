"""Programs of tests that need torch, forked from the warm parent that all tests share: importing it takes seconds.

Where there is none for the environment (the keeper has room for a few), the program starts from nothing, as runs do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

from isoscale.backends.local import training_environment
from isoscale.backends.seam import Launch
from isoscale.backends.warm import UnavailableError
from isoscale.backends.warm_sharing import Lender, sharing_directory
from isoscale.kinds import profile_named

__all__ = ["Forked"]

ROOT = Path(__file__).resolve().parents[1]
#: A script's DDP goes when its function returns. If it is the last to hold the process group, this process then waits,
#: with the interpreter's lock, for a thread of gloo's that may want the lock to let go of the last barrier: some runs
#: in ten hung so beside others. So every DDP is kept until the process ends.
_KEEP_DDP = """from torch.nn.parallel import DistributedDataParallel
kept, begin = [], DistributedDataParallel.__init__
DistributedDataParallel.__init__ = lambda self, *a, **k: (kept.append(self), begin(self, *a, **k))[1]
"""
_RUN = """import os, runpy, sys
{}sys.argv, sys.path[:0] = {}, {}
os.environ |= {}
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)  # to take down what a fork has of torch would copy it, for a third of a second"""


class Forked:
    """`python PROGRAM ARGUMENT...` with one thread; what tests need of `subprocess.Popen`. Its output goes to `log`.

    Without `keep_ddp` the program sees to it that every DDP goes before its process group.
    """

    def __init__(
        self,
        program: Path,
        *arguments: str,
        log: Path,
        cwd: Path | None = None,
        environment: dict[str, str] | None = None,
        keep_ddp: bool = True,
    ) -> None:
        command = [str(program), *arguments]
        path = [str(program.parent), str(ROOT)]
        environment = environment or dict(os.environ)
        # Nobody reads these at import, and with them it would need a warm parent of its own.
        later = {name: value for name, value in environment.items() if name.startswith("TORCHELASTIC_")}
        text = _RUN.format(_KEEP_DDP if keep_ddp else "", command, path, later)
        launch = Launch(
            command=(sys.executable, *command),
            entry="isoscale.testing.conformance:run_text",
            arguments=(text,),
            environment=training_environment(
                {name: value for name, value in environment.items() if name not in later}, profile_named("native"), 1
            ),
            cwd=cwd or Path.cwd(),
            log=log,
        )
        self._log = log
        self._keeper = Lender(sharing_directory())
        self._code: int | None = None
        self._spawned: subprocess.Popen[bytes] | None = None
        with log.open("ab") as output:
            try:
                parent = self._keeper.borrow(launch.environment)
            except UnavailableError:
                self._spawned = _spawn(text, launch, output)
                self.pid = self._spawned.pid
            else:
                self.pid = asyncio.run(parent.fork(launch, output))
                parent.close()
            self._handle = os.pidfd_open(self.pid)

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def poll(self) -> int | None:
        """The exit code, or minus a signal's number; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float) -> int:
        """Raises TimeoutError."""
        code = self._look(timeout)
        if code is None:
            raise TimeoutError(f"process {self.pid} runs on after {timeout:.0f} s: {self.output}")
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """Returns when it is gone."""
        self.send_signal(signal.SIGKILL)
        self.wait(60)

    def _look(self, timeout: float) -> int | None:
        if self._code is None and select.select([self._handle], [], [], timeout)[0]:
            os.close(self._handle)
            self._code = self._ended()
        return self._code

    def _ended(self) -> int:
        """Its parent is the keeper, which may take a moment to hear of it, or this process."""
        if self._spawned is not None:
            return self._spawned.wait()
        deadline = time.monotonic() + 20
        while (code := self._keeper.how_ended(self.pid)) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert code is not None, f"nobody knows how process {self.pid} ended: {self.output}"
        return code


def _spawn(text: str, launch: Launch, output: BinaryIO) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=launch.cwd,
        env=launch.environment,
    )
