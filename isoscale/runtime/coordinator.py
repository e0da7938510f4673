"""The coordinator of one job: the thin shell around `runtime.rescale`.

Serves the control socket (loopback, per-run token), starts executor processes, writes the event log,
and performs what the state machine says. Training never waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import http
import json
import os
import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from isoscale import env
from isoscale.backends.local import ALLOCATOR, LocalProcess, start_process
from isoscale.clock import Clock, WallClock
from isoscale.errors import IsoscaleError
from isoscale.kinds import DeviceSet, executor_environment, profile_named, profile_of
from isoscale.protocol import messages as m
from isoscale.protocol.events import EventLog
from isoscale.runtime.rescale import BeginGeneration, Done, Fail, Instruction, Membership, ReportedError
from isoscale.types import JobSpec, Level, Placement

__all__ = ["Observer", "RunResult", "run_job"]

_FAREWELL_S = 5.0


class Observer(Protocol):
    """Somebody who watches a run, such as a progress display. Must not block."""

    def on_output(self, line: str) -> None:
        """A line that the script printed on the first executor."""

    def on_begin(self, num_executors: int) -> None:
        """A generation began."""

    def on_step(self, step: m.StepDone, num_executors: int) -> None: ...

    def on_log(self, logged: m.Logged) -> None: ...


@dataclass(slots=True)
class RunResult:
    exit_code: int = 1
    digest: str = ""
    step: int = 0
    stop_reason: str = ""
    error: str = ""
    traceback: str = ""
    seconds: float = 0.0
    loss: float | None = None
    logged: dict[str, Any] = field(default_factory=dict)
    #: every logical worker's values per step, when the job records
    records: list[dict[str, dict[int, str]]] = field(default_factory=list)


async def run_job(
    spec: JobSpec,
    devices: DeviceSet,
    observer: Observer,
    *,
    placement: Placement | None = None,
    clock: Clock | None = None,
) -> RunResult:
    """Run a job to its end on processes of this machine. Cancelling the task ends them all.

    `spec.out` must be a directory that this run has for itself (see `cli.options.claim_directory`).
    """
    placement = placement or Placement.even(spec.workers, devices.total)
    coordinator = _Coordinator(spec, devices, placement, observer, clock or WallClock())
    return await coordinator.run()


class _Coordinator:
    def __init__(
        self, spec: JobSpec, devices: DeviceSet, placement: Placement, observer: Observer, clock: Clock
    ) -> None:
        self._spec = spec
        self._kinds = list(devices)
        self._observer = observer
        self._clock = clock
        self._control = Path(spec.out) / "control"
        self._token = secrets.token_urlsafe(32)
        self._membership = Membership(spec, placement, functools.partial(_level_differences, spec.determinism))
        self._processes: dict[int, LocalProcess] = {}
        self._connections: dict[int, ServerConnection] = {}
        #: output of an executor before it is set up is shown only if it fails
        self._held: list[str] = []
        self._outcome: asyncio.Future[Done | Fail] = asyncio.get_running_loop().create_future()
        self._sending: set[asyncio.Future[None]] = set()
        self._result = RunResult()
        self._log = EventLog(Path(spec.out) / "events.jsonl", clock)

    async def run(self) -> RunResult:
        started = self._clock.monotonic()
        self._control.mkdir(exist_ok=True)
        token_file = self._control / "token"
        with os.fdopen(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(self._token)
        async with serve(
            self._serve,
            "127.0.0.1",
            0,
            process_request=self._authenticate,
            max_size=m.MAX_MESSAGE_BYTES,
            compression=None,
        ) as server:
            watchers = [
                asyncio.create_task(self._start_and_watch(e, server, token_file)) for e in range(len(self._kinds))
            ]
            try:
                outcome = await self._outcome
                await self._conclude(outcome, started)
            finally:
                for watcher in watchers:
                    watcher.cancel()
                await asyncio.gather(*(process.end() for process in self._processes.values()))
                self._write_summary()
                self._log.close()
                token_file.unlink(missing_ok=True)
        return self._result

    # ---- processes ----

    async def _start_and_watch(self, executor: int, server: Server, token_file: Path) -> None:
        host, port = next(iter(server.sockets)).getsockname()[:2]
        kind = self._kinds[executor]
        profile = profile_named(self._spec.profile) if self._spec.profile else profile_of(kind)
        variables = {
            env.COORDINATOR: f"ws://{host}:{port}",
            env.TOKEN_FILE: str(token_file.resolve()),
            env.EXECUTOR: str(executor),
            # Sets and dicts of strings iterate in the same order in every process.
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
        }
        inherited = {**ALLOCATOR, **env.child_environment(variables)}
        environment = executor_environment(inherited, profile, self._spec.threads)
        command = [sys.executable, self._spec.script, *self._spec.script_args]
        logs = Path(self._spec.out) / "logs"
        logs.mkdir(exist_ok=True)
        forward = functools.partial(self._on_output, executor) if executor == 0 else None
        try:
            process = await start_process(command, environment, logs / f"executor-{executor}.log", forward)
        except OSError as error:
            self._perform(self._membership.on_lost(executor, 0, str(error)))
            return
        self._processes[executor] = process
        self._log.write("executor_started", executor=executor, pid=process.pid, kind=kind)
        reason = await process.wait()
        # Its last message may still be on the way: the connection's end is handled first.
        if executor in self._connections:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._connections[executor].wait_closed(), _FAREWELL_S)
        if executor not in self._membership.finished and self._membership.phase not in ("done", "failed"):
            self._log.write("executor_lost", executor=executor, pid=process.pid, reason=reason)
        self._perform(self._membership.on_lost(executor, process.pid, reason, process.tail()))

    def _on_output(self, executor: int, line: str) -> None:
        if executor in self._membership.hellos:
            self._observer.on_output(line)
        else:
            self._held.append(line)

    # ---- connections ----

    def _authenticate(self, connection: ServerConnection, request: Request) -> Response | None:
        given = request.headers.get("Authorization", "")
        if hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return None
        return connection.respond(http.HTTPStatus.UNAUTHORIZED, "a token is required\n")

    async def _serve(self, connection: ServerConnection) -> None:
        executor = _executor_of(connection)
        if executor not in self._processes:
            return  # not one that this coordinator started
        self._connections[executor] = connection
        try:
            await connection.send(m.encode(m.Welcome(spec=self._spec, kind=self._kinds[executor])))
            async for frame in connection:
                self._on_message(m.decode_from_executor(frame if isinstance(frame, bytes) else frame.encode()))
        except (ConnectionClosed, msgspec.DecodeError):
            await connection.close()

    def _on_message(self, message: m.FromExecutor) -> None:
        members = len(self._membership.hellos)
        match message:
            case m.Hello():
                if message.executor == 0:
                    for line in self._held:
                        self._observer.on_output(line)
                self._perform(self._membership.on_hello(message))
            case m.StepDone():
                self._result.step, self._result.loss = message.step, message.loss
                self._log.write(
                    "step",
                    step=message.step,
                    epoch=message.epoch,
                    loss=message.loss,
                    seconds=round(message.seconds, 6),
                    executors=members,
                    generation=message.generation,
                )
                self._observer.on_step(message, members)
            case m.Logged():
                self._result.logged |= message.values
                self._log.write("log", step=message.step, epoch=message.epoch, **message.values)
                self._observer.on_log(message)
            case m.Audited():
                self._log.write("audit", step=message.step, digest=message.digest)
            case m.Recorded():
                self._result.records.append(message.values)
            case m.Saved():
                self._log.write("checkpoint", step=message.step, path=message.path, seconds=message.seconds)
            case m.Finished():
                self._perform(self._membership.on_finished(message))
            case m.Failed():
                self._perform(self._membership.on_failed(message))

    # ---- instructions ----

    def _perform(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, BeginGeneration):
                self._begin(instruction)
            elif not self._outcome.done():
                self._outcome.set_result(instruction)

    def _begin(self, begin: BeginGeneration) -> None:
        store = self._control / f"store-{begin.generation}"
        for index, executor in enumerate(begin.members):
            message = m.Begin(
                generation=begin.generation, shares=begin.placement.shares, index=index, store=str(store.resolve())
            )
            self._send(self._connections[executor], message)
            self._log.write("executor_joined", executor=executor, generation=begin.generation)
        self._observer.on_begin(len(begin.members))

    def _send(self, connection: ServerConnection, message: m.FromCoordinator) -> None:
        sending = asyncio.ensure_future(_send_unless_closed(connection, message))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    async def _conclude(self, outcome: Done | Fail, started: float) -> None:
        result = self._result
        result.seconds = self._clock.monotonic() - started
        if isinstance(outcome, Done):
            result.exit_code, result.digest, result.step = 0, outcome.digest, outcome.step
            result.stop_reason = outcome.stop_reason
            self._log.write("finished", step=outcome.step, digest=outcome.digest)
            waits = [process.wait() for process in self._processes.values()]
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.gather(*waits), _FAREWELL_S)
            return
        result.exit_code = _exit_code(outcome.error)
        result.error = str(outcome.error)
        result.traceback = outcome.traceback
        self._log.write("failed", step=result.step, error=result.error)

    def _write_summary(self) -> None:
        spec = asdict(self._spec)
        hellos = self._membership.hellos.values()
        summary = {
            "format": 1,
            "exit_code": self._result.exit_code,
            "step": self._result.step,
            "digest": self._result.digest,
            "loss": self._result.loss,
            "seconds": round(self._result.seconds, 3),
            "stop_reason": self._result.stop_reason,
            "error": self._result.error,
            "logged": self._result.logged,
            "executors": [{"executor": h.executor, "kind": h.kind, "fingerprint": h.fingerprint} for h in hellos],
            "job": spec,
        }
        path = Path(self._spec.out) / "summary.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(summary, indent=1, default=str) + "\n")
        temporary.replace(path)


async def _send_unless_closed(connection: ServerConnection, message: m.FromCoordinator) -> None:
    with contextlib.suppress(ConnectionClosed):  # its loss is handled where its process is watched
        await connection.send(m.encode(message))


def _executor_of(connection: ServerConnection) -> int:
    """Executors connect to /executor/ID."""
    match = re.fullmatch(r"/executor/([0-9]{1,6})", connection.request.path if connection.request else "")
    return int(match[1]) if match else -1


def _exit_code(error: IsoscaleError) -> int:
    return error.reported_exit_code if isinstance(error, ReportedError) else error.exit_code


def _level_differences(level: Level, mine: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, ...]:
    from isoscale.core.determinism import differences

    return differences(mine, theirs, level)
