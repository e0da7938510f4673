"""The executor processes of a job on the coordinator's machine: started with what they need, watched, ended.

Says when one has ended and why; what that means for the job is `runtime.membership.state_machine`'s affair.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from isoscale import env
from isoscale.backends.leftovers import Lineage, end_leftovers, marks_of
from isoscale.backends.local import ALLOCATOR, AdoptedProcess, LocalProcess, born, start_process
from isoscale.kinds import executor_environment, profile_named, profile_of
from isoscale.runtime.code.launch import command_of
from isoscale.runtime.control.host_id import machine_id
from isoscale.runtime.control.server import ControlServer
from isoscale.runtime.control.trail import trail_path, whereabouts_of
from isoscale.types import JobSpec, Whereabouts

__all__ = ["FAREWELL_S", "Processes", "log_of"]

#: how long the last words of an executor may take to arrive
FAREWELL_S = 5.0


class Processes:
    def __init__(
        self,
        spec: JobSpec,
        server: ControlServer,
        token_file: Path,
        on_ended: Callable[[int, str, str, Whereabouts | None], None],
        trails: Path | None = None,
    ) -> None:
        """`on_ended` gets the executor, the reason, the end of what it printed, and where it was.

        `trails`: the directory in which executors note where they are.
        """
        self._trails = trails
        self._spec = spec
        self._server = server
        self._token_file = token_file
        self._on_ended = on_ended
        #: the manifest of the code that they run
        self.code: Path | None = None
        self._by_executor: dict[int, LocalProcess | AdoptedProcess] = {}
        self._reasons: dict[int, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeps: set[asyncio.Future[object]] = set()

    def __contains__(self, executor: int) -> bool:
        return executor in self._by_executor

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._by_executor))

    def moved(self, spec: JobSpec, token_file: Path) -> None:
        """The run's directory is another one now, for whoever is started from here on."""
        self._spec, self._token_file = spec, token_file

    def pid_of(self, executor: int) -> int:
        return self._by_executor[executor].pid

    def identities(self) -> dict[int, dict[str, Any]]:
        """By which a later coordinator knows them again."""
        machine = machine_id()
        return {
            executor: {"pid": process.pid, "born": born(process.pid), "machine": machine}
            for executor, process in self._by_executor.items()
        }

    async def start(self, executor: int, kind: str, *, newcomer: bool) -> int:
        """Its process id; OSError if it cannot be started."""
        command = command_of(self._spec, kept=self.code is not None)
        log = log_of(self._spec, executor)
        process = await start_process(command, self._environment(executor, kind), log, newcomer=newcomer)
        self._by_executor[executor] = process
        self.spawn(self._watch(executor, process))
        return process.pid

    def _environment(self, executor: int, kind: str) -> dict[str, str]:
        profile = profile_named(self._spec.profile) if self._spec.profile else profile_of(kind)
        variables = {
            env.COORDINATOR: self._server.url,
            env.TOKEN_FILE: str(self._token_file.resolve()),
            env.EXECUTOR: str(executor),
            # Sets and dicts of strings iterate in the same order in every process.
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
        }
        if self.code is not None:
            variables[env.CODE] = str(self.code.resolve())
        if self._server.ca_file is not None:
            variables[env.CA_FILE] = str(self._server.ca_file)
        if fault := env.fault():
            variables[env.FAULT] = fault
        inherited = {**ALLOCATOR, **env.child_environment(variables)}
        return executor_environment(inherited, profile, self._spec.threads)

    def adopt(self, executor: int, pid: int) -> None:
        """One that an earlier coordinator started; ProcessLookupError if it is gone."""
        process = AdoptedProcess(pid, log_of(self._spec, executor))
        self._by_executor[executor] = process
        self.spawn(self._watch(executor, process))

    def sweep_dead(self, executors: Iterable[int]) -> None:
        """Of an earlier coordinator's executors, which have died since: what they left behind."""
        for executor in executors:
            marks = marks_of({env.EXECUTOR: str(executor), env.TOKEN_FILE: str(self._token_file.resolve())})
            lineage = Lineage(leader=0, marks=marks, died=None, leads=False)
            self._until_swept(asyncio.to_thread(end_leftovers, lineage))

    async def _watch(self, executor: int, process: LocalProcess | AdoptedProcess) -> None:
        reason = await process.wait()
        # Beside: others need not wait for its leftovers to end before they go on.
        self._until_swept(process.sweep())
        # Its last message may still be on the way: the connection's end is handled first.
        await self._server.closed(executor, FAREWELL_S)
        self._by_executor.pop(executor, None)
        self._on_ended(executor, self._reasons.pop(executor, reason), process.tail(), self._whereabouts(executor))

    def _whereabouts(self, executor: int) -> Whereabouts | None:
        """Of one that is gone."""
        if self._trails is None:
            return None
        path = trail_path(self._trails, executor)
        found = whereabouts_of(path)
        with contextlib.suppress(OSError):
            path.unlink()
        return found

    def is_condemned(self, executor: int) -> bool:
        """It was killed for a reason, and is not gone yet."""
        return executor in self._reasons

    def kill(self, executor: int, reason: str = "") -> None:
        """At once; the first reason is the one that is told. None: the way it ended."""
        if reason:
            self._reasons.setdefault(executor, reason)
        self._by_executor[executor].kill()

    async def ended(self, seconds: float) -> None:
        """Wait until all have ended, but not longer than this."""
        waits = [asyncio.ensure_future(process.wait()) for process in self._by_executor.values()]
        if waits:
            await asyncio.wait(waits, timeout=seconds)
        for wait in waits:
            wait.cancel()

    async def close(self) -> None:
        """Nothing is watched any more, and nothing is left running, of what executors have started neither."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(process.end() for process in self._by_executor.values()), *self._sweeps)

    def _until_swept(self, sweep: Awaitable[object]) -> None:
        """Do it beside; `close` waits for it."""
        task = asyncio.ensure_future(sweep)
        self._sweeps.add(task)
        task.add_done_callback(self._sweeps.discard)

    def spawn(self, work: Awaitable[None]) -> None:
        """Do something beside, until `close`."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def log_of(spec: JobSpec, executor: int) -> Path:
    return Path(spec.out) / "logs" / f"executor-{executor}.log"
