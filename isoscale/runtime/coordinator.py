"""The coordinator of one job: the thin shell around `runtime.rescale`.

Serves the control socket (per-run token), starts and watches executor processes, keeps the event log, names
checkpoints, and performs what the state machine says. Training never waits for it; if it dies, another one
takes over (`resume_job`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isoscale.backends.local import born, is_executor, is_stopped
from isoscale.clock import Clock, WallClock
from isoscale.core.factors import differences
from isoscale.errors import IsoscaleError
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.control import Control, parse_target, saved
from isoscale.runtime.door import Door, Security
from isoscale.runtime.goal import Aside, Goal, PlanEntry
from isoscale.runtime.hearing import Hearing
from isoscale.runtime.instructions import Done, Emit, Fail, Instruction, Kill, ReportedError, Restart, Start, Tell
from isoscale.runtime.journal import Journal, Observer, RunResult
from isoscale.runtime.machine import machine_id
from isoscale.runtime.processes import FAREWELL_S, Output, Processes
from isoscale.runtime.published import Published
from isoscale.runtime.remote import Remote
from isoscale.runtime.rescale import Membership
from isoscale.runtime.standing import hear, may_say
from isoscale.runtime.status import status_of
from isoscale.runtime.survivors import survivors
from isoscale.types import JobSpec, Level, Placement, Settings

__all__ = ["Observer", "RunResult", "resume_job", "run_job"]

_TICK_S = 0.2
#: how long executors that are alive have to find a new coordinator
_ADOPTION_S = 15.0


async def run_job(
    spec: JobSpec,
    devices: DeviceSet,
    observer: Observer,
    *,
    placement: Placement | None = None,
    settings: Settings | None = None,
    plan: Sequence[tuple[int, DeviceSet]] = (),
    security: Security | None = None,
    resume: bool = False,
    clock: Clock | None = None,
) -> RunResult:
    """Run a job to its end. Cancelling the task ends all its processes.

    `spec.out` must be a directory that this run has for itself (see `cli.options.claim_directory`); with `resume` it
    goes on there from the newest whole checkpoint.
    """
    settings = settings or Settings()
    control = Control(Path(spec.out))
    coordinator = _Coordinator(spec, settings, devices, plan, control, observer, security, clock or WallClock())
    if placement is not None:
        coordinator.membership.first_shares = placement.shares
    return await coordinator.run(coordinator.begin_from_checkpoint if resume else coordinator.begin)


async def resume_job(
    directory: Path, observer: Observer, *, security: Security | None = None, clock: Clock | None = None
) -> RunResult:
    """Take over a job whose coordinator is gone: with the executors that are alive, else from a checkpoint."""
    control = Control(directory, field="DIR")
    job = control.load_job()
    plan = [(step, DeviceSet.parse(devices)) for step, devices in job.plan]
    coordinator = _Coordinator(
        job.spec,
        job.settings,
        DeviceSet.parse(job.target),
        plan,
        control,
        observer,
        security or Security(certificate=job.certificate, key=job.key),
        clock or WallClock(),
    )
    coordinator.membership.goal.aside = [Aside(*one) for one in job.aside]
    return await coordinator.run(coordinator.take_over)


class _Coordinator:
    def __init__(
        self,
        spec: JobSpec,
        settings: Settings,
        devices: DeviceSet,
        plan: Sequence[tuple[int, DeviceSet]],
        control: Control,
        observer: Observer,
        security: Security | None,
        clock: Clock,
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._observer = observer
        self._clock = clock
        self._control = control
        self.membership = Membership(
            spec,
            settings,
            Goal(devices, [PlanEntry(step, wanted) for step, wanted in plan]),
            functools.partial(_level_differences, spec.determinism),
            store=str(control.meeting_place()),
        )
        self._security = security or Security()
        self._door = Door(control.token, settings.host, self._security)
        self._door.on_executor = self._on_executor
        self._door.on_message = self._on_message
        self._door.on_request = self._on_request
        self._door.on_joining = self._on_joining
        self._processes = Processes(spec, self._door, control.path / "token", self._on_ended)
        self._output = Output(spec)
        self._hearing = Hearing(settings)
        self._remote = Remote(self._door, self._hearing)
        self._outcome: asyncio.Future[Done | Fail] = asyncio.get_running_loop().create_future()
        self._journal = Journal(spec, observer, clock)
        self._checkpoints = Published(spec, settings.keep_checkpoints, self._warn)
        self.membership.roster.reserve(self._journal.num_executors)
        # One that only ever waited is in no event, and may be alive.
        self.membership.roster.reserve(1 + max(control.load_executors(), default=-1))
        self._hellos: dict[int, m.Hello] = {}
        self._warnings: list[str] = []
        self._stopping = False
        #: what happened before it was clear who is alive, to be looked at then; None at all other times
        self._deferred: list[Callable[[], list[Instruction]]] | None = None

    async def run(self, begin: Any) -> RunResult:
        started = self._clock.monotonic()
        (Path(self._spec.out) / "logs").mkdir(exist_ok=True)
        ticker: asyncio.Task[None] | None = None
        async with self._door.open() as url:
            try:
                self._control.announce(url)
                self._save_job()
                self._journal.write("coordinator_started", term=self._control.term, pid=os.getpid())
                ticker = asyncio.create_task(self._tick())
                await begin()
                await self._conclude(await self._outcome, started)
            finally:
                if ticker is not None:
                    ticker.cancel()
                remote = [executor for executor in self._hellos if executor not in self._processes]
                await asyncio.gather(self._remote.dismiss(remote), self._processes.close())
                self._forward_output()
                self._journal.close(list(self._hellos.values()))
                self._control.close()
        return self._journal.result

    # ---- ways to begin ----

    async def begin(self) -> None:
        self._perform(self.membership.begin())

    async def begin_from_checkpoint(self) -> None:
        """From the newest whole checkpoint that fits the job; none at all is the user's mistake."""
        self._begin_at(*self._checkpoints.newest(required=True))

    def _begin_at(self, path: str, step: int) -> None:
        self._journal.rewind(step)
        self._perform(self.membership.begin(path, step))

    async def take_over(self) -> None:
        """Find out who is alive, wait until they have said how far they are, and go on."""
        found = survivors(self._control.load_executors(), machine_id(), born)
        self._remote.expected |= found.remote
        result = self._control.result()
        if not found.local and result and self._journal.result.step <= result["step"]:
            # Whoever waits on another machine to hear that it is over shall come and hear it.
            self.membership.on_over()
            await self._hear_from(found.remote)
            self._journal.result.step = result["step"]
            self._outcome.set_result(Done(**result))
            return
        if not found.local and not found.remote:
            self._begin_at(*self._checkpoints.newest(required=False))
            return
        self._deferred = []
        for executor, pid in found.local.items():
            with contextlib.suppress(ProcessLookupError):
                self._processes.adopt(executor, pid)
                if executor in found.starting:
                    self.membership.on_still_starting(executor, found.starting[executor][1], pid)
        await self._hear_from({*found.ready, *found.remote})
        for executor in found.ready:
            if executor in self._processes and executor not in self._hellos:
                self._processes.kill(executor)
        self._remote.expected.clear()
        deferred, self._deferred = self._deferred, None
        self._perform(self.membership.adopted(saved_digest=result.get("digest", "")))
        for work in deferred:
            self._perform(work())

    async def _hear_from(self, executors: set[int]) -> None:
        """Wait until all of them that are alive have come to this coordinator, but not for ever."""
        deadline = self._clock.monotonic() + _ADOPTION_S
        while self._clock.monotonic() < deadline:
            awaited = {e for e in executors if e in self._processes or e in self._remote.expected}
            if awaited <= set(self._hellos):
                break
            await asyncio.sleep(0.02)

    # ---- processes ----

    async def _start(self, executor: int, kind: str) -> None:
        try:
            pid = await self._processes.start(executor, kind, newcomer=self.membership.phase == "training")
        except OSError as error:
            self._do(functools.partial(self.membership.on_lost, executor, str(error)))
            return
        self._perform(self.membership.on_started(executor, pid))
        self._save_executors()

    def _on_ended(self, executor: int, reason: str, output: str) -> None:
        self._do(functools.partial(self.membership.on_lost, executor, reason, output))
        self._save_executors()

    def _save_executors(self) -> None:
        fields = self._processes.identities()
        for executor, known in fields.items():
            one = self.membership.roster.get(executor)
            known |= {"kind": one.kind if one is not None else "", "ready": executor in self._hellos}
        for executor, hello in self._hellos.items():
            if executor not in fields and executor in self.membership.roster:
                fields[executor] = {"pid": hello.pid, "born": 0, "machine": hello.machine}
        with contextlib.suppress(OSError):
            self._control.save_executors(fields)

    def _save_job(self) -> None:
        plan = [(entry.step, entry.devices) for entry in self.membership.goal.plan]
        with contextlib.suppress(OSError):
            files, goal = (self._security.certificate, self._security.key), self.membership.goal
            aside = tuple((one.executor, one.kind, one.gain) for one in goal.aside)
            self._control.save_job(saved(self._spec, self._settings, goal.target, plan, *files, aside))

    # ---- time ----

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now = self._clock.monotonic()
            self._forward_output()
            self._door.acknowledge()
            for executor in self._processes:
                if reason := self._why_dead(executor, now):
                    self._kill(executor, reason)
            for executor, reason in self._remote.lost(now, self._hellos, set(self._processes)):
                self._do(functools.partial(self.membership.on_lost, executor, reason))
                self._save_executors()
            if self._deferred is None:
                self._perform(self.membership.on_tick(now))

    def _why_dead(self, executor: int, now: float) -> str:
        """A stopped or hung process is dead for the others, and is made so."""
        silent = self._door.silent_for(executor, now)
        if silent is None:
            return ""
        one = self.membership.roster.get(executor)
        beat = one.beat if one is not None and one.state == "member" else None
        return self._hearing.why_dead(silent, beat, lambda: is_stopped(self._processes.pid_of(executor)))

    def _kill(self, executor: int, reason: str) -> None:
        if executor in self._processes:
            self._processes.kill(executor, reason)
        else:
            self._door.drop(executor)
            self._do(functools.partial(self.membership.on_lost, executor, reason))

    def _forward_output(self) -> None:
        if self.membership.phase != "gathering" and self.membership.members:
            for line in self._output.new_lines(self.membership.members[0]):
                self._observer.on_output(line)

    # ---- connections ----

    def _on_executor(self, executor: int) -> m.Welcome | None:
        one = self.membership.roster.get(executor)
        adopting = one is None and (executor in self._processes or executor in self._remote.expected)
        if one is None and not adopting:
            return None
        kind = one.kind if one is not None else self.membership.goal.target.kinds[0]
        return self._welcome(executor, kind)

    def _on_joining(self, kind: str) -> m.Welcome | str:
        """Somebody started `isoscale executor --join`: who it is, or why not."""
        if self.membership.phase in ("done", "failed"):
            return "the job has ended"
        if kind not in self._spec.kinds:
            return f"kind {kind} was not declared when the job began ({', '.join(self._spec.kinds)})"
        executor = self.membership.on_joining(kind)
        self._remote.may_join(executor, self._clock.monotonic())
        return self._welcome(executor, kind)

    def _welcome(self, executor: int, kind: str) -> m.Welcome:
        return m.Welcome(
            spec=self._spec, settings=self._settings, kind=kind, executor=executor, term=self._control.term
        )

    def _on_message(self, executor: int, message: m.FromExecutor) -> None:
        membership, journal = self.membership, self._journal
        if not may_say(membership, executor, message):
            return
        match message:
            case m.Hello() | m.Rejoin():
                self._on_introduction(executor, message)
            case m.Beat():
                journal.on_beat(executor, membership.current, message)
                if self._deferred is None:
                    self._perform(membership.on_beat(executor, message))
            case m.StepDone():
                membership.on_step(message.step, message.seconds)
                journal.on_step(message)
            case m.Logged():
                journal.on_logged(message)
            case m.Audited():
                journal.write("audit", step=message.step, digest=message.digest)
            case m.Streamed():
                journal.on_streamed(message)
            case m.Recorded():
                journal.on_recorded(message)
            case m.CheckpointWritten():
                fields = self._checkpoints.publish(message, self._clock.monotonic())
                if fields is not None:
                    journal.write("checkpoint", **fields)
            case m.Warned():
                self._warn(message.message)
            case m.Saved():
                journal.write("checkpoint", step=message.step, path=message.path, seconds=message.seconds)
                self._do(membership.on_result_saved)
            case m.Left():
                pass  # its process ends, which is what counts
            case _:
                self._do(lambda: hear(membership, executor, message, self._clock.monotonic()))

    def _on_introduction(self, executor: int, message: m.Hello | m.Rejoin) -> None:
        hello = message if isinstance(message, m.Hello) else message.hello
        known = executor in self._hellos
        self._hellos[executor] = hello
        self._remote.came(executor)
        if executor not in self._processes and hello.machine == machine_id() and is_executor(hello.pid, executor):
            with contextlib.suppress(ProcessLookupError):
                self._processes.adopt(executor, hello.pid)
        if isinstance(message, m.Hello):
            self._do(functools.partial(self.membership.on_hello, message))
        elif not known:
            self.membership.on_rejoin(message)
        if not known:
            self._save_executors()

    # ---- requests ----

    def _on_request(self, request: m.FromClient) -> m.Reply:
        try:
            match request:
                case m.Scale():
                    present = self.membership.goal.target
                    target = parse_target(request.target, present, self._spec) if request.target else present
                    self._do(functools.partial(self.membership.on_request, target, request.away, request.reason))
                    self._save_job()
                case m.TakeCheckpoint():
                    self._ask_for_checkpoint()
                case m.Stop():
                    self._processes.spawn(self._stop())
        except IsoscaleError as error:
            return m.Reply(ok=False, error=str(error), status=self.status())
        return m.Reply(ok=True, status=self.status())

    def _ask_for_checkpoint(self) -> None:
        if self.membership.members:
            self._door.send(self.membership.members[0], m.TakeCheckpoint())

    async def _stop(self) -> None:
        """A last checkpoint, then the end."""
        before = self._checkpoints.last
        self._ask_for_checkpoint()
        for _ in range(100):
            if self._checkpoints.last != before or self.membership.phase != "training":
                break
            await asyncio.sleep(0.1)
        if not self._outcome.done():
            self._stopping = True
            self._outcome.set_result(Fail(error=ReportedError("stopped on request; isoscale resume goes on", 130)))

    def status(self) -> dict[str, Any]:
        now = self._clock.monotonic()
        return status_of(
            self.membership,
            self._journal.result,
            term=self._control.term,
            silences={executor: self._door.silent_for(executor, now) for executor in self._hellos},
            checkpoint=self._checkpoints.last_with_age(now),
            messages=self._warnings[-5:],
        )

    # ---- instructions ----

    def _do(self, work: Callable[[], list[Instruction]]) -> None:
        """Let the state machine act, or wait until it knows whom it has taken over."""
        if self._deferred is not None:
            self._deferred.append(work)
        else:
            self._perform(work())

    def _perform(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Start():
                    self._processes.spawn(self._start(instruction.executor, instruction.kind))
                case Tell():
                    self._door.send(instruction.executor, instruction.message)
                case Kill():
                    self._kill(instruction.executor, instruction.reason)
                case Emit():
                    if instruction.event == "warning":
                        self._warn(instruction.fields["message"])
                        continue
                    self._journal.write(instruction.event, **instruction.fields)
                    if instruction.event == "straggler" and instruction.fields["set_aside"]:
                        self._save_job()
                    if instruction.event == "generation" and not self.membership.sealed:
                        self._observer.on_begin(len(instruction.fields["members"]))
                case Restart():
                    self._restart(instruction)
                case Done() | Fail():
                    if not self._outcome.done():
                        self._outcome.set_result(instruction)

    def _restart(self, restart: Restart) -> None:
        path, step = self._checkpoints.newest(required=False)
        self._warn(f"{restart.reason}; going on from {f'the checkpoint of step {step}' if step else 'the beginning'}")
        self._begin_at(path, step)

    def _warn(self, message: str) -> None:
        self._warnings.append(message)
        self._journal.write("warning", message=message)

    async def _conclude(self, outcome: Done | Fail, started: float) -> None:
        result = self._journal.result
        result.seconds = self._clock.monotonic() - started
        if isinstance(outcome, Done):
            result.exit_code, result.digest, result.step = 0, outcome.digest, outcome.step
            result.stop_reason = outcome.stop_reason
            self._journal.write("finished", step=outcome.step, digest=outcome.digest)
            for executor in self._processes:
                self._door.send(executor, m.Dismiss())
                if not self.membership.has_finished(executor):
                    self._processes.kill(executor)  # a spare, a newcomer, or one that nobody needs any more
            await self._processes.ended(FAREWELL_S)
            return
        error = outcome.error
        result.exit_code = error.reported_exit_code if isinstance(error, ReportedError) else error.exit_code
        result.error = str(error)
        result.traceback = outcome.traceback
        self._journal.write("stopped" if self._stopping else "failed", step=result.step, error=result.error)


def _level_differences(level: Level, mine: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, ...]:
    return differences(mine, theirs, level)
