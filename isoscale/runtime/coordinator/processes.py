"""The executor processes of a job that its backend has started: given what they need, watched, ended.

Says when one has ended and why; what that means for the job is `runtime.membership.state_machine`'s affair.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from isoscale import env
from isoscale.backends.leftovers import Lineage, end_leftovers, marks_of
from isoscale.backends.local import training_environment
from isoscale.backends.seam import Backend, Device, DeviceLeaving, ExecutorProcess, Identity, Launch, Notice
from isoscale.backends.system import is_executor
from isoscale.errors import StartError
from isoscale.kinds import NumericProfile, profile_named, profile_of
from isoscale.protocol import messages as m
from isoscale.runtime.code.launch import launch_of
from isoscale.runtime.control.server import ControlServer
from isoscale.runtime.control.trail import trail_path, whereabouts_of
from isoscale.types import JobSpec, Whereabouts

__all__ = ["FAREWELL_S", "Processes", "log_of", "profile_for"]

#: how long the last words of an executor may take to arrive
FAREWELL_S = 5.0
#: how long a device may take to be free of what an executor left behind
_SWEEP_S, _POLL_S = 30.0, 0.02


class Processes:
    def __init__(
        self,
        spec: JobSpec,
        backend: Backend,
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
        self._backend = backend
        self._server = server
        self._token_file = token_file
        self._on_ended = on_ended
        #: the manifest of the code that they run
        self.code: Path | None = None
        #: URL of the run's storage, for those whose machine does not see its directory
        self.storage = ""
        self._by_executor: dict[int, ExecutorProcess] = {}
        #: by which executors prove that a process is theirs
        self._keys: dict[int, str] = {}
        #: devices of those that are being started
        self._starting: dict[int, str] = {}
        #: devices on which something may be alive that an executor has started and left behind
        self._unswept: dict[int, str] = {}
        #: chooses the device of a new executor
        self.free_device: Callable[[str, Collection[str]], Device] = backend.free_device
        self._reasons: dict[int, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeps: set[asyncio.Future[object]] = set()
        backend.listen(self._on_notice)

    def __contains__(self, executor: int) -> bool:
        return executor in self._by_executor

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._by_executor))

    def moved(self, spec: JobSpec, token_file: Path) -> None:
        """The run's directory is another one now, for whoever is started from here on."""
        self._spec, self._token_file = spec, token_file

    def pid_of(self, executor: int) -> int:
        return self._by_executor[executor].identity.pid

    def is_stopped(self, executor: int) -> bool:
        """By a signal, so that it cannot answer."""
        return self._by_executor[executor].is_stopped()

    def identities(self) -> dict[int, dict[str, Any]]:
        """By which a later coordinator knows them again."""
        return {
            executor: {**asdict(process.identity), "key": self._keys.get(executor, "")}
            for executor, process in self._by_executor.items()
        }

    async def start(self, executor: int, kind: str, *, newcomer: bool) -> int:
        """Its process id. Raises StartError."""
        device = await self._device_for(kind)
        self._keys[executor] = secrets.token_urlsafe(16)
        self._starting[executor] = device.id
        try:
            process = await self._backend.start(self._launch(executor, kind, newcomer=newcomer), device)
        except OSError as error:  # what it is to be given cannot be read
            raise StartError(what=error.filename or device.id, reason=error.strerror or str(error)) from error
        finally:
            del self._starting[executor]
        self._by_executor[executor] = process
        self.spawn(self._watch(executor, process))
        return process.identity.pid

    async def _device_for(self, kind: str) -> Device:
        """One on which nothing runs any more: of an executor that is gone, its children may be about to be ended."""
        for _ in range(int(_SWEEP_S / _POLL_S)):
            try:
                return self.free_device(kind, self.devices())
            except StartError:
                if not self._unswept and not self._reasons:
                    raise
                await asyncio.sleep(_POLL_S)
        return self.free_device(kind, self.devices())

    def devices(self) -> set[str]:
        """Those on which something of this job is alive, or may be."""
        running = {process.identity.device for process in self._by_executor.values()}
        return running | {*self._starting.values()} | {*self._unswept.values()}

    def near(self) -> set[int]:
        """Those of whose end the system tells at once; of others a connection that is gone may say it first."""
        return {executor for executor, process in self._by_executor.items() if not process.identity.name}

    def device_of(self, executor: int) -> str:
        """ "" if its process is not known here."""
        process = self._by_executor.get(executor)
        return self._starting.get(executor, "") if process is None else process.identity.device

    def _launch(self, executor: int, kind: str, *, newcomer: bool) -> Launch:
        environment, log = self._environment(executor, kind), log_of(self._spec, executor)
        launch = launch_of(self._spec, environment, log, kept=self.code is not None, newcomer=newcomer)
        if not self.storage:
            return launch
        names = [name for name in (env.TOKEN_FILE, env.CA_FILE) if name in environment]
        return replace(launch, files={name: Path(environment[name]).read_bytes() for name in names})

    def _environment(self, executor: int, kind: str) -> dict[str, str]:
        variables = {
            env.COORDINATOR: self._server.url,
            env.TOKEN_FILE: str(self._token_file.resolve()),
            env.EXECUTOR: str(executor),
            env.KEY: self._keys.get(executor, ""),
        }
        if self.code is not None:
            variables[env.CODE] = str(self.code.resolve())
        if self.storage:
            variables |= {env.STORAGE: self.storage, env.CODE_DIGEST: self._spec.code}
        if self._server.ca_file is not None:
            variables[env.CA_FILE] = str(self._server.ca_file)
        if fault := env.fault():
            variables[env.FAULT] = fault
        return training_environment(variables, profile_for(self._spec, kind), self._spec.threads)

    def is_found(self, identity: Identity) -> bool:
        """Whether a process lives that the backend knows by a name."""
        return self._backend.lives(identity)

    def adopt(self, executor: int, identity: Identity, key: str = "") -> bool:
        """One that an earlier coordinator started; False if it is gone."""
        process = self._backend.find(identity, log_of(self._spec, executor))
        if process is None:
            return False
        self._by_executor[executor], self._keys[executor] = process, key
        self.spawn(self._watch(executor, process))
        return True

    def proves(self, executor: int, hello: m.Hello) -> bool:
        """Whether the process that it names is its own. A number that somebody sends could be any process's."""
        known = self._keys.get(executor, "")
        return (bool(known) and secrets.compare_digest(known, hello.key)) or is_executor(hello.pid, executor)

    def sweep_dead(self, executors: Iterable[int]) -> None:
        """Of an earlier coordinator's executors, which have died since: what they left behind."""
        for executor in executors:
            marks = marks_of({env.EXECUTOR: str(executor), env.TOKEN_FILE: str(self._token_file.resolve())})
            lineage = Lineage(leader=0, marks=marks, died=None, leads=False)
            self._until_swept(asyncio.to_thread(end_leftovers, lineage))

    async def _watch(self, executor: int, process: ExecutorProcess) -> None:
        reason = await process.wait()
        # Beside: others need not wait for its leftovers to end before they go on.
        self._unswept[executor] = process.identity.device
        self._until_swept(self._sweep(executor, process))
        # Its last message may still be on the way: the connection's end is handled first.
        await self._server.closed(executor, FAREWELL_S)
        self._by_executor.pop(executor, None)
        self._keys.pop(executor, None)
        self._on_ended(executor, self._reasons.pop(executor, reason), process.tail(), self._whereabouts(executor))

    async def _sweep(self, executor: int, process: ExecutorProcess) -> None:
        await process.sweep()
        self._unswept.pop(executor, None)

    def _whereabouts(self, executor: int) -> Whereabouts | None:
        """Of one that is gone."""
        if self._trails is None:
            return None
        path = trail_path(self._trails, executor)
        found = whereabouts_of(path)
        with contextlib.suppress(OSError):
            path.unlink()
        return found

    def _on_notice(self, notice: Notice) -> None:
        """An executor whose device will be taken is told as spot instances, Slurm and Kubernetes do."""
        for process in self._by_executor.values():
            if process.identity.device == notice.device:
                process.signal(signal.SIGTERM) if isinstance(notice, DeviceLeaving) else process.kill()

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

    def let_go(self) -> None:
        """They live on, and are nobody's business here any more."""
        for task in self._tasks:
            task.cancel()
        self._by_executor.clear()

    async def close(self) -> None:
        """Nothing is watched any more, and nothing is left running, of what executors have started neither."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(process.end() for process in self._by_executor.values()), *self._sweeps)
        await self._backend.close()

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


def profile_for(spec: JobSpec, kind: str) -> NumericProfile:
    """What an executor of this kind computes with in this job."""
    return profile_named(spec.profile) if spec.profile else profile_of(kind)


def log_of(spec: JobSpec, executor: int) -> Path:
    return Path(spec.out) / "logs" / f"executor-{executor}.log"
