"""Executor processes on this machine: start, watch, end.

A process gets its own session, so a Ctrl-C in the terminal reaches only the coordinator, which then
ends it. Output goes to a log file; lines of one chosen process are also handed to a callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["ALLOCATOR", "LocalProcess", "start_process"]

#: glibc's malloc, for processes that train: memory stays with the process. Every turn frees its gradients and the
#: next one asks for them again; handing pages back to the system in between cost 1 ms a turn for a 6.5 MB model.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20)}

_GRACE_S = 3.0
_TAIL_LINES = 30
_MAX_LINE_BYTES = 2**20


class LocalProcess:
    def __init__(self, process: asyncio.subprocess.Process, log: Path, on_line: Callable[[str], None] | None) -> None:
        self._process = process
        self._log = log
        self._copy = asyncio.create_task(self._copy_output(on_line))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> str:
        """Why it ended: "exit code 3" or "killed by SIGKILL"."""
        code = await self._process.wait()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._copy, _GRACE_S)
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    async def end(self) -> None:
        """SIGTERM to the whole session (loader processes included), SIGKILL to what is left after a moment."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, sign)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._process.wait(), _GRACE_S)
                if sign is signal.SIGKILL:
                    return
        await self._process.wait()

    def tail(self) -> str:
        """The last lines of its output."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    async def _copy_output(self, on_line: Callable[[str], None] | None) -> None:
        assert self._process.stdout is not None
        with self._log.open("ab", buffering=0) as log:
            while True:
                try:
                    line = await self._process.stdout.readline()
                except ValueError:  # a line longer than the limit: take it in pieces
                    line = await self._process.stdout.read(_MAX_LINE_BYTES)
                if not line:
                    return
                log.write(line)
                if on_line is not None:
                    on_line(line.decode(errors="replace").rstrip("\n"))


async def start_process(
    command: Sequence[str], environment: Mapping[str, str], log: Path, on_line: Callable[[str], None] | None
) -> LocalProcess:
    process = await asyncio.create_subprocess_exec(
        *command,
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        limit=_MAX_LINE_BYTES,
    )
    return LocalProcess(process, log, on_line)
