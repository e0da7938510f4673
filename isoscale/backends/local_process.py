"""One process of this machine, in the three ways in which one comes by it: started afresh, forked, found.

They differ in how its end is learned; what else can be done with it is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from isoscale.backends.host_id import machine_id
from isoscale.backends.leftovers import Lineage, end_leftovers, marks_at, now_ticks
from isoscale.backends.lines import clean
from isoscale.backends.seam import Identity
from isoscale.backends.system import born, how_ended, is_stopped, leads_session

__all__ = ["ForkedProcess", "FoundProcess", "LocalProcess", "SpawnedProcess", "tail_of"]

_TAIL_LINES = 30
_TAIL_BYTES = 2**16


class LocalProcess(ABC):
    """What all have in common."""

    def __init__(self, identity: Identity, log: Path, marks: frozenset[bytes], *, leads: bool = True) -> None:
        """`marks`: what its environment says of it, by which its children are known. `leads`: a session."""
        self.identity = identity
        self.log = log
        self._marks = marks
        self._leads = leads
        self._died: int | None = None

    @property
    def pid(self) -> int:
        return self.identity.pid

    async def wait(self) -> str:
        """Why it ended: "exit code 3" or "killed by SIGKILL"; "ended" if that is not known."""
        reason = await self._ended()
        self._died = self._died or now_ticks()
        return reason

    @abstractmethod
    async def _ended(self) -> str: ...

    @abstractmethod
    def _is_gone(self) -> bool:
        """Its number may be somebody else's by now."""

    def is_stopped(self) -> bool:
        return is_stopped(self.pid)

    def signal(self, number: int) -> None:
        if not self._is_gone():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """At once, with its loader processes: whatever it held is held by others, or in a checkpoint."""
        if not self._is_gone():
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(self.pid, signal.SIGKILL)

    async def end(self) -> None:
        self.kill()
        await self.wait()
        await self.sweep()

    async def sweep(self) -> None:
        """It has ended: so has everything that it started, when this returns."""
        died = self._died or now_ticks()
        since = self.identity.born
        lineage = Lineage(leader=self.pid, marks=self._marks, died=died, leads=self._leads, since=since)
        await asyncio.to_thread(end_leftovers, lineage)

    def tail(self) -> str:
        """The last lines of its output."""
        return tail_of(self.log)


class SpawnedProcess(LocalProcess):
    """A child of this process, started afresh."""

    def __init__(self, process: asyncio.subprocess.Process, device: str, log: Path, marks: frozenset[bytes]) -> None:
        super().__init__(_identity(process.pid, device), log, marks)
        self._process = process

    async def _ended(self) -> str:
        return how_ended(await self._process.wait())

    def _is_gone(self) -> bool:
        return self._process.returncode is not None


class FoundProcess(LocalProcess):
    """One that somebody else started, and whose exit code goes elsewhere."""

    def __init__(self, identity: Identity, log: Path, marks: frozenset[bytes] | None = None) -> None:
        """Raises ProcessLookupError if there is none."""
        self._handle = os.pidfd_open(identity.pid)
        marks = marks_at(identity.pid) if marks is None else marks
        super().__init__(identity, log, marks, leads=leads_session(identity.pid))
        self._gone: asyncio.Future[str] | None = None

    async def _ended(self) -> str:
        if self._gone is None:
            loop = asyncio.get_running_loop()
            self._gone = loop.create_future()
            loop.add_reader(self._handle, self._on_end)
        return await asyncio.shield(self._gone)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(self._reason())

    def _reason(self) -> str:
        return "ended"

    def _is_gone(self) -> bool:
        return bool(select.select([self._handle], [], [], 0)[0])


class ForkedProcess(FoundProcess):
    """Forked by a warm parent, and a child of this process since then, or of the warm parent's keeper."""

    def __init__(
        self, pid: int, device: str, log: Path, marks: frozenset[bytes], ask: Callable[[int], int | None]
    ) -> None:
        """`ask`: for its exit code, if it is the child of somebody else."""
        super().__init__(_identity(pid, device), log, marks)
        self._leads = True  # it may not have come to that yet
        self._ask = ask

    def _reason(self) -> str:
        try:
            code: int | None = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            code = self._ask(self.pid)
        return how_ended(code) if code is not None else super()._reason()


def _identity(pid: int, device: str) -> Identity:
    return Identity(pid=pid, born=born(pid), machine=machine_id(), device=device)


def tail_of(log: Path) -> str:
    """The last lines of a file; "" if it is not there."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return "\n".join(map(clean, file.read().splitlines()[-_TAIL_LINES:]))
    return ""
