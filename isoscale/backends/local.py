"""Executor processes on this machine: start, adopt, watch, end.

A process gets its own session, so a Ctrl-C in the terminal reaches only the coordinator, which then ends it.
Its output goes straight into a log file: it must not depend on the coordinator, which may die first. A process
that an earlier coordinator started is adopted by its pid and its time of birth.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from isoscale import env
from isoscale.backends.leftovers import Lineage, end_leftovers, marks_at, marks_of, now_ticks
from isoscale.backends.lines import Cut, Excerpt, clean

__all__ = [
    "ALLOCATOR",
    "AdoptedProcess",
    "LocalProcess",
    "NewLines",
    "born",
    "can_lower_priority",
    "is_executor",
    "is_stopped",
    "lives",
    "restore_priority",
    "start_process",
]

#: glibc's malloc, for processes that train: memory stays with the process. Every turn frees its gradients and the
#: next one asks for them again; handing pages back to the system in between cost 1 ms a turn for a 6.5 MB model.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20)}

_TAIL_LINES = 30
_TAIL_BYTES = 2**16
_PIECE_BYTES = 2**20
#: of a process that prepares to join, beside others that train
_NEWCOMER_NICE = 5


class LocalProcess:
    def __init__(self, process: asyncio.subprocess.Process, log: Path, marks: frozenset[bytes] = frozenset()) -> None:
        """`marks`: what its environment says of it, by which its children are known."""
        self._process = process
        self._marks = marks
        self._died: int | None = None
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> str:
        """Why it ended: "exit code 3" or "killed by SIGKILL"."""
        code = await self._process.wait()
        self._died = self._died or now_ticks()
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def kill(self) -> None:
        """At once, with its loader processes: whatever it held is held by others, or in a checkpoint."""
        if self._process.returncode is None:
            _kill_group(self.pid)

    async def end(self) -> None:
        self.kill()
        await self.wait()
        await self.sweep()

    async def sweep(self) -> None:
        """It has ended: so has everything that it started, when this returns."""
        lineage = Lineage(leader=self.pid, marks=self._marks, died=self._died or now_ticks())
        await asyncio.to_thread(end_leftovers, lineage)

    def tail(self) -> str:
        return _tail(self.log)


class AdoptedProcess:
    """One that somebody else started."""

    def __init__(self, pid: int, log: Path) -> None:
        """Raises ProcessLookupError if there is none."""
        self.pid = pid
        self.log = log
        self._handle = os.pidfd_open(pid)
        self._marks = marks_at(pid)
        self._leads = _leads_session(pid)
        self._died: int | None = None

    async def wait(self) -> str:
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._handle, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(self._handle)
        self._died = self._died or now_ticks()
        return "ended"

    async def end(self) -> None:
        self.kill()
        await self.wait()
        await self.sweep()

    async def sweep(self) -> None:
        """As of a process of one's own."""
        died = self._died or now_ticks()
        lineage = Lineage(leader=self.pid, marks=self._marks, died=died, leads=self._leads)
        await asyncio.to_thread(end_leftovers, lineage)

    def kill(self) -> None:
        if not select.select([self._handle], [], [], 0)[0]:  # otherwise the number may be somebody else's by now
            _kill_group(self.pid)

    def tail(self) -> str:
        return _tail(self.log)


async def start_process(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, newcomer: bool = False
) -> LocalProcess:
    """`newcomer`: it prepares beside a job that trains, at a lower priority, which it gives up when it joins."""
    if newcomer and can_lower_priority():
        command = ["nice", "-n", str(_NEWCOMER_NICE), *command]
    with _log_file(log) as file:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    return LocalProcess(process, log, marks_of(environment))


def _log_file(log: Path) -> BinaryIO:
    """What the process writes is lost if the directory of logs is gone: that is no reason to do without the process."""
    try:
        return log.open("ab")
    except (FileNotFoundError, NotADirectoryError):
        return open(os.devnull, "ab")


class NewLines:
    """What a process has written into its log since the last look, as far as it is worth showing."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._at = 0
        self._excerpt = Excerpt()

    def read(self) -> list[str]:
        """A bounded piece at a time."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._at)
                data = file.read(_PIECE_BYTES)
        except OSError:
            return []
        self._at += len(data)
        shown = self._excerpt.add(data, time.monotonic())
        return [f"... {one.lines:,} lines are in {self._log}" if isinstance(one, Cut) else one for one in shown]


def restore_priority() -> None:
    """A newcomer has joined: it is as good as the others from now on."""
    for thread in Path("/proc/self/task").iterdir() if Path("/proc/self/task").is_dir() else ():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)


def can_lower_priority() -> bool:
    """Whether a process that lowers its priority may raise it again."""
    return os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20


def born(pid: int) -> int:
    """When a process was born, in clock ticks since the system was; 0 if there is none. Tells it from a successor."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def is_executor(pid: int, executor: int) -> bool:
    """Whether the process was started as this executor. A number that somebody sends could be any process's."""
    if not sys.platform.startswith("linux"):
        return True
    with contextlib.suppress(OSError):
        return f"{env.EXECUTOR}={executor}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def is_stopped(pid: int) -> bool:
    """Stopped by a signal: it will not say so itself."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in ("T", "t")


def lives(pid: int, birth: int) -> bool:
    """Whether the process born then still runs; one that ended and that nobody has asked about does not."""
    fields = _stat(pid)
    return bool(fields) and int(fields[19]) == birth and fields[0] not in ("Z", "X")


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from the state on; the name before it may contain anything."""
    if not sys.platform.startswith("linux"):
        return []
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _leads_session(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.getsid(pid) == pid
    return False


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _tail(log: Path) -> str:
    """The last lines of its output."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return "\n".join(map(clean, file.read().splitlines()[-_TAIL_LINES:]))
    return ""
