"""The coordinator of one job: the thin shell around `runtime.membership.state_machine`.

Serves the control socket (per-run token), starts and watches executor processes, keeps the event log, names
checkpoints, and performs what the state machine says. Training never waits for it; if it dies, another one
takes over (`resume_job`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from isoscale.backends.local import born, is_executor, is_stopped
from isoscale.clock import Clock, WallClock
from isoscale.core.numerics.factors import differences
from isoscale.errors import IsoscaleError
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.code.collect import Snapshot
from isoscale.runtime.code.freezing import Frozen, code_kept_at, freeze_anew, go_on_with, still_alive, what_changed
from isoscale.runtime.control.directory import Control, closed_on_error, memory_directory, saved
from isoscale.runtime.control.home import EXIT_ELSEWHERE, Home
from isoscale.runtime.control.host_id import machine_id
from isoscale.runtime.control.server import Door, Security
from isoscale.runtime.coordinator.adoption import survivors
from isoscale.runtime.coordinator.checkpoint_book import Published
from isoscale.runtime.coordinator.interrupts import Interrupts
from isoscale.runtime.coordinator.journal import Journal, Observer, RunResult
from isoscale.runtime.coordinator.lateness import Lateness
from isoscale.runtime.coordinator.liveness import Hearing, Verdict
from isoscale.runtime.coordinator.own_time import OwnTime
from isoscale.runtime.coordinator.processes import FAREWELL_S, Processes
from isoscale.runtime.coordinator.provenance import Provenance
from isoscale.runtime.coordinator.remote import Remote
from isoscale.runtime.coordinator.script_output import Output
from isoscale.runtime.coordinator.status import status_of
from isoscale.runtime.membership.desk import Desk
from isoscale.runtime.membership.dispatch import hear, may_say
from isoscale.runtime.membership.headway import Headway
from isoscale.runtime.membership.instructions import (
    Ask,
    Done,
    Emit,
    Fail,
    Instruction,
    Kill,
    ReportedError,
    Restart,
    Start,
    Stop,
    Tell,
)
from isoscale.runtime.membership.progress import Progress
from isoscale.runtime.membership.state_machine import Membership
from isoscale.runtime.membership.target import Aside, Goal, PlanEntry
from isoscale.types import JobSpec, Level, Placement, Settings, Whereabouts

__all__ = ["Observer", "RunResult", "resume_job", "run_job"]

_TICK_S = 0.2
#: how long executors that are alive have to find a new coordinator
_ADOPTION_S = 15.0
#: settings that the log tells: how long things may take, and what there should be
_TOLD = ("heartbeat_s", "lost_after_s", "stalled_after_s", "checkpoint_every", "spares", "spawn")


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
    heed_signals: bool = False,
    new_code: bool = False,
    code: Snapshot | Frozen | None = None,
    clock: Clock | None = None,
) -> RunResult:
    """Run a job to its end. Cancelling the task ends all its processes.

    `spec.out` must be a directory that this run has for itself (see `cli.options.claim_directory`); with `resume` it
    goes on there from the newest whole checkpoint, with the code that it began with unless `new_code`. `code` was
    collected, or kept for several runs, before. With `heed_signals` Ctrl-C and SIGTERM stop it after a checkpoint.
    """
    settings = settings or Settings()
    control = Control(Path(spec.out))
    with closed_on_error(control):
        snapshot = code if isinstance(code, Snapshot) else None
        if isinstance(code, Frozen):
            frozen = code
        elif resume:
            frozen = go_on_with(spec, new_code=new_code, snapshot=snapshot)
        else:
            frozen = freeze_anew(spec, snapshot)
    spec = frozen.of(spec)
    coordinator = _Coordinator(spec, settings, devices, plan, control, observer, security, clock or WallClock())
    coordinator.use_code(frozen)
    if resume:
        coordinator.provenance.begin_again()
    if placement is not None:
        coordinator.membership.first_shares = placement.shares
    begin = coordinator.begin_from_checkpoint if resume else coordinator.begin
    return await coordinator.run(begin, heed_signals=heed_signals)


async def resume_job(
    directory: Path,
    observer: Observer,
    *,
    security: Security | None = None,
    heed_signals: bool = False,
    new_code: bool = False,
    clock: Clock | None = None,
) -> RunResult:
    """Take over a job whose coordinator is gone: with the executors that are alive, else from a checkpoint.

    With `new_code` from a checkpoint only, and with the script as it is now. Raises UserError.
    """
    control = Control(directory, field="DIR")
    with closed_on_error(control):
        job = control.load_job()
        spec = replace(job.spec, out=str(directory.resolve()))  # it may have been moved since
        alive = survivors(control.load_executors(), machine_id(), born).local
        if new_code and alive:
            raise still_alive(directory, sorted(alive))
        frozen = go_on_with(spec, new_code=new_code)
    plan = [(step, DeviceSet.parse(devices)) for step, devices in job.plan]
    coordinator = _Coordinator(
        frozen.of(spec),
        job.settings,
        DeviceSet.parse(job.target),
        plan,
        control,
        observer,
        security or Security(certificate=job.certificate, key=job.key),
        clock or WallClock(),
    )
    coordinator.use_code(frozen)
    if not alive:
        coordinator.provenance.begin_again()
    coordinator.membership.goal.aside = [Aside(*one) for one in job.aside]
    return await coordinator.run(coordinator.take_over, heed_signals=heed_signals)


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
        self._time = OwnTime(clock, _TICK_S)
        self._lateness = Lateness()
        self._door = Door(control.token, settings.host, self._security, self._time.now)
        self._door.on_executor = self._on_executor
        self._door.on_message = self._on_message
        self._door.on_request = self._on_request
        self._door.on_joining = self._on_joining
        trails = memory_directory(control.token)
        self._processes = Processes(spec, self._door, control.path / "token", self._on_ended, trails)
        self._output = Output(spec, observer.on_output, self._on_cut)
        self._hearing = Hearing(settings)
        self._remote = Remote(self._door, self._hearing)
        self._outcome: asyncio.Future[Done | Fail | Stop] = asyncio.get_running_loop().create_future()
        self._journal = Journal(spec, observer, clock)
        self.membership.headway = Headway(self._journal.reached, self._journal.attempts)
        self._home = Home(Path(spec.out), control.token)
        self._place = Path(spec.out)
        self._checkpoints = Published(spec, settings.keep_checkpoints, self._home.find, self._warn)
        self.membership.roster.reserve(self._journal.num_executors)
        # One that only ever waited is in no event, and may be alive.
        self.membership.roster.reserve(1 + max(control.load_executors(), default=-1))
        self._hellos: dict[int, m.Hello] = {}
        self._code: Frozen | None = None
        self._told_changes = ""
        self.provenance = Provenance(spec.out, spec.determinism, anew=True)
        self._warnings: deque[str] = deque(maxlen=5)
        #: when the last step was committed
        self._stepped_at = self._time.now()
        here = os.path.relpath(spec.out)
        go_on = f"isoscale resume {spec.out if here.startswith('..') else here}"
        self._desk = Desk(self.membership, self._progress, go_on)
        #: what happened before it was clear who is alive, to be looked at then; None at all other times
        self._deferred: list[Callable[[], list[Instruction]]] | None = None

    def use_code(self, frozen: Frozen) -> None:
        """What executors run from now on."""
        self._code, self._processes.code = frozen, frozen.path
        self.provenance = Provenance(self._spec.out, self._spec.determinism, anew=frozen.anew)

    async def run(self, begin: Any, *, heed_signals: bool = False) -> RunResult:
        started = self._clock.monotonic()
        (Path(self._spec.out) / "logs").mkdir(exist_ok=True)
        ticker: asyncio.Task[None] | None = None
        interrupts = Interrupts(self._on_signal) if heed_signals else contextlib.nullcontext()
        async with self._door.open() as url:
            try:
                self._control.announce(url)
                self._save_job()
                self._journal.write("coordinator_started", pid=os.getpid(), **self._terms())
                self._tell_code()
                journal = self._journal
                left_open = journal.open_requests.values()
                self._perform(self._desk.adopt(left_open, journal.last_request, self._time.now()))
                ticker = asyncio.create_task(self._tick())
                self._processes.spawn(self._output.follow(self._first))
                with interrupts:
                    await begin()
                    await self._conclude(await self._outcome, started)
            finally:
                if ticker is not None:
                    ticker.cancel()
                remote = [executor for executor in self._hellos if executor not in self._processes]
                await asyncio.gather(self._remote.dismiss(remote), self._processes.close())
                await self._output.finish()
                self._perform(self._desk.close(self._how_it_ended()))
                self._look_after_home()
                place = Path(self._journal.result.saved or self._place / "final.pt").parent
                rescued = self._home.is_rescued(place)
                self._journal.close(list(self._hellos.values()), place, rescued=rescued)
                self._control.close()
        return self._journal.result

    def _terms(self) -> dict[str, Any]:
        """On what terms this coordinator begins: whoever reads the log holds the rest of it against them."""
        goal, settings = self.membership.goal, self._settings
        return {
            "term": self._control.term,
            "determinism": self._spec.determinism,
            "target": str(goal.target),
            "plan": [[entry.step, str(entry.devices)] for entry in goal.plan],
            "set_aside": [one.executor for one in goal.aside],
            "settings": {name: getattr(settings, name) for name in _TOLD},
        }

    # ---- ways to begin ----

    async def begin(self) -> None:
        self._perform(self.membership.begin())

    async def begin_from_checkpoint(self) -> None:
        """From the newest whole checkpoint that fits the job; none at all is the user's mistake."""
        self._begin_at(*self._checkpoints.newest(required=True), "resumed")

    def _begin_at(self, path: str, step: int, reason: str) -> None:
        """Nobody holds the job's state any more."""
        headway = self.membership.headway
        self._journal.write("restart", step=step, reached=headway.reached, reason=reason, attempt=headway.attempts)
        self._journal.rewind(step)
        self._perform(self.membership.begin(path, step))

    async def take_over(self) -> None:
        """Find out who is alive, wait until they have said how far they are, and go on."""
        known = self._control.load_executors()
        found = survivors(known, machine_id(), born)
        self._processes.sweep_dead({*known} - {*found.local, *found.remote})
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
            self._begin_at(*self._checkpoints.newest(required=False), "a new coordinator found no executor")
            return
        self._deferred, self._desk.is_ready = [], False
        for executor, pid in found.local.items():
            with contextlib.suppress(ProcessLookupError):
                self._processes.adopt(executor, pid)
                if executor in found.starting:
                    self.membership.on_still_starting(executor, found.starting[executor][1], pid)
        await self._hear_from({*found.ready, *found.remote})
        for executor in found.ready:
            if executor in self._processes and executor not in self._hellos:
                self._kill(executor, Verdict("it did not come to its new coordinator"))
        self._remote.expected.clear()
        deferred, self._deferred, self._desk.is_ready = self._deferred, None, True
        self._perform(self.membership.adopted(saved_digest=result.get("digest", "")))
        for work in deferred:
            self._perform(work())

    async def _hear_from(self, executors: set[int]) -> None:
        """Wait until all of them that are alive have come to this coordinator, but not for ever.

        If several live here and none comes, it is rather their machine that is at fault, and they hold the job's state.
        """
        begun, told = self._time.now(), False
        while True:
            awaited = {e for e in executors if e in self._processes or e in self._remote.expected}
            if awaited <= set(self._hellos):
                break
            waited = self._time.now() - begun
            if waited > _ADOPTION_S:
                mute = [e for e in awaited if e in self._processes and not is_stopped(self._processes.pid_of(e))]
                if len(mute) < 2 or awaited & set(self._hellos) or waited > self._settings.orphan_s:
                    break
                if not told:
                    told = True
                    self._warn(
                        f"{len(mute)} executors are alive and none has come to this coordinator: is their machine "
                        f"out of memory? They have {self._settings.orphan_s:.0f} s"
                    )
            await asyncio.sleep(0.02)

    # ---- processes ----

    async def _start(self, executor: int, kind: str) -> None:
        newcomer = self.membership.phase == "training"
        if newcomer:
            self._processes.spawn(self._tell_changes())
        try:
            pid = await self._processes.start(executor, kind, newcomer=newcomer)
        except OSError as error:
            self._do(functools.partial(self.membership.on_lost, executor, str(error)))
            return
        self._perform(self.membership.on_started(executor, pid))
        self._save_executors()

    def _on_ended(self, executor: int, reason: str, output: str, where: Whereabouts | None) -> None:
        self._do(functools.partial(self.membership.on_lost, executor, reason, output, where))
        self._save_executors()

    def _tell_code(self) -> None:
        for event, fields in self._code.events if self._code is not None else ():
            self._journal.write(event, **fields)
        for warning in (*(self._code.warnings if self._code is not None else ()), self.provenance.warning):
            if warning:
                self._warn(warning)

    async def _tell_changes(self) -> None:
        """Somebody comes later, and the script may have been edited: it does not run what it would run alone."""
        changed = "" if self._code is None else await asyncio.to_thread(what_changed, self._code.manifest)
        if changed and changed != self._told_changes:
            self._told_changes = changed
            self._warn(f"{changed}; isoscale stop, then isoscale resume --new-code takes the edited files")

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
            if missing := self._time.tick():
                self._journal.write("coordinator_paused", seconds=round(missing, 3))
                # What was said meanwhile is read before anybody is judged.
                await asyncio.sleep(_TICK_S)
            now = self._time.now()
            self._look_after_home()
            self._door.acknowledge()
            if self._outcome.done():
                continue  # whoever is silent now may: it was told to go
            for executor, verdict in self._judge(now):
                self._kill(executor, verdict)
            for executor, reason in self._remote.lost(now, set(self._processes)):
                self._do(functools.partial(self.membership.on_lost, executor, reason))
                self._save_executors()
            if self._deferred is None:
                self._perform(self.membership.on_tick(now))
            self._perform(self._desk.tick(now))

    def _judge(self, now: float) -> list[tuple[int, Verdict]]:
        """Who is to be ended, of those who have not been."""
        known = {e for e in (*self._processes, *self._hellos) if not self._processes.is_condemned(e)}
        silences = {e: s for e in known if (s := self._door.silent_for(e, now)) is not None}
        roster = self.membership.roster
        if warning := self._hearing.listen(silences, roster.holders(), now, known - set(self._hellos)):
            self._warn(warning)
        local = {executor: self._processes.pid_of(executor) for executor in self._processes}
        return self._hearing.judge(silences, roster, local, is_stopped)

    def _kill(self, executor: int, verdict: Verdict) -> None:
        """What this coordinator ends on its own judgement, as opposed to the end of the job."""
        local, hello = executor in self._processes, self._hellos.get(executor)
        if local and self._processes.is_condemned(executor):
            return
        self._journal.write(
            "executor_killed",
            executor=executor,
            pid=self._processes.pid_of(executor) if local else hello.pid if hello is not None else 0,
            reason=verdict.reason,
            silent_s=None if verdict.silent_s is None else round(verdict.silent_s, 3),
            limit_s=verdict.limit_s,
        )
        if local:
            self._processes.kill(executor, verdict.reason)
        else:
            self._door.drop(executor)
            self._do(functools.partial(self.membership.on_lost, executor, verdict.reason))
            self._save_executors()

    def _look_after_home(self) -> None:
        """Say so when the run's directory is not where it was."""
        with contextlib.suppress(OSError):
            place = self._home.find()
            if place != self._place:
                self._place = place
                self._warn(self._home.news(place))
                self._settle(place)

    def _settle(self, place: Path) -> None:
        """Newcomers, commands and a successor find the run where it is now."""
        self._spec = replace(self._spec, out=str(place))
        (place / "logs").mkdir(exist_ok=True)
        self._control.settle(place, self._door.url)
        self._processes.moved(self._spec, self._control.path / "token")
        if (kept := code_kept_at(place)).exists():
            self._processes.code = kept
        self._output.moved(self._spec)
        self._save_job()
        self._save_executors()

    def _first(self) -> int | None:
        """Whose output is shown."""
        training = self.membership.phase != "gathering"
        return self.membership.members[0] if training and self.membership.members else None

    def _on_cut(self, executor: int, lines: int) -> None:
        self._journal.write("output_cut", executor=executor, lines=lines)

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
        self._remote.may_join(executor, self._time.now())
        beside = self._code.manifest.beside_script() if self._code is not None else {}
        welcome = self._welcome(executor, kind)
        return msgspec.structs.replace(welcome, code=beside, versions=self.provenance.versions)

    def _welcome(self, executor: int, kind: str) -> m.Welcome:
        return m.Welcome(
            spec=self._spec, settings=self._settings, kind=kind, executor=executor, term=self._control.term
        )

    def _on_uses(self, executor: int, message: m.Uses) -> None:
        roster = self.membership.roster
        gathers = self.membership.phase == "gathering" and self._deferred is None
        trains = gathers or roster[executor].state in ("member", "leaving")
        error = self.provenance.hear(executor, message, trains=trains, known=roster.__contains__)
        if error is not None and executor in self._hellos:  # else it is refused when it says hello
            self._do(functools.partial(self.membership.on_unlike, executor, error))

    def _on_message(self, executor: int, message: m.FromExecutor) -> None:
        membership, journal = self.membership, self._journal
        if not may_say(membership, executor, message):
            return
        match message:
            case m.Hello() | m.Rejoin():
                self._on_introduction(executor, message)
            case m.Beat():
                self._late(executor, message.at)
                journal.on_beat(executor, membership.current, message)
                if self._deferred is None:
                    self._perform(membership.on_beat(executor, message))
            case m.StepDone():
                self._stepped_at = self._time.now()
                membership.on_step(message.step, message.seconds)
                journal.on_step(message, self._late(executor, message.at))
            case m.Logged():
                journal.on_logged(message, self._late(executor, message.at))
            case m.Audited():
                journal.write("audit", step=message.step, digest=message.digest)
            case m.Streamed():
                journal.on_streamed(message)
            case m.Recorded():
                journal.on_recorded(message)
            case m.CheckpointWritten() if not self.provenance.spoiled:
                self._publish(executor, message)
            case m.CheckpointFailed():
                self._warn(message.reason)
                self._perform(self._desk.on_no_checkpoint(executor, message.reason))
            case m.Warned():
                self._warn(message.message)
            case m.Saved():
                saved_at = self._place / message.path
                journal.result.saved = "" if saved_at.parent == self._home.out else str(saved_at)
                journal.write("checkpoint", step=message.step, path=message.path, seconds=message.seconds)
                self._do(membership.on_result_saved)
            case m.Uses():
                self._on_uses(executor, message)
            case m.Landed():
                self._do(lambda: hear(membership, executor, message, self._time.now()))
                if (error := self.provenance.joined(executor)) is not None:
                    self._do(functools.partial(membership.on_unlike, executor, error))
            case m.Left():
                pass  # its process ends, which is what counts
            case _:
                self._do(lambda: hear(membership, executor, message, self._time.now()))

    def _late(self, executor: int, at: float) -> float:
        """How long ago an executor wrote this."""
        return self._lateness.of(executor, at, self._clock.monotonic())

    def _on_introduction(self, executor: int, message: m.Hello | m.Rejoin) -> None:
        hello = message if isinstance(message, m.Hello) else message.hello
        known = executor in self._hellos
        self._hellos[executor] = hello
        self._remote.came(executor)
        if executor not in self._processes and hello.machine == machine_id() and is_executor(hello.pid, executor):
            with contextlib.suppress(ProcessLookupError):
                self._processes.adopt(executor, hello.pid)
        if isinstance(message, m.Hello):
            self._do(functools.partial(self.membership.on_hello, message, self.provenance.objection(executor)))
        else:
            self._late(executor, message.at)  # before all that it has kept for this coordinator
            if not known:
                self.membership.on_rejoin(message)
        if not known:
            self._save_executors()

    # ---- requests ----

    def _on_request(self, request: m.FromClient) -> m.Reply:
        try:
            accepted, instructions = self._desk.on_request(request, self._time.now())
        except IsoscaleError as error:
            return m.Reply(ok=False, error=str(error), status=self.status())
        self._perform(instructions)
        if isinstance(request, m.Scale):
            self._save_job()
        return m.Reply(ok=True, status=self.status(), id=accepted)

    def _on_signal(self, name: str, code: int) -> None:
        limit_s = self._settings.notice_s if name == "SIGTERM" else None
        self._perform(self._desk.on_signal(name, code, self._time.now(), limit_s))

    def _publish(self, executor: int, message: m.CheckpointWritten) -> None:
        published = self._checkpoints.publish(message, self._clock.monotonic())
        if isinstance(published, str):
            self._perform(self._desk.on_no_checkpoint(executor, published))
            return
        self._journal.write("checkpoint", **published)
        self._perform(self._desk.on_checkpoint(executor, message, published["path"]))

    def _progress(self) -> Progress:
        membership = self.membership
        return Progress(
            step=self._journal.result.step,
            saved=self._checkpoints.saved,
            is_training=membership.phase == "training" or self._deferred is not None,
            step_s=membership.step_s,
            since_step_s=self._time.now() - self._stepped_at,
        )

    def status(self) -> dict[str, Any]:
        now = self._time.now()
        return status_of(
            self.membership,
            self._journal.result,
            term=self._control.term,
            silences={executor: self._door.silent_for(executor, now) for executor in self._hellos},
            checkpoint=self._checkpoints.last_with_age(self._clock.monotonic()),
            messages=list(self._warnings),
            requests=self._desk.shown(now),
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
                    self._kill(instruction.executor, Verdict(instruction.reason))
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
                case Ask():
                    self._perform(self._desk.on_ask(instruction, self._time.now()))
                case Done() | Fail() | Stop():
                    if not self._outcome.done():
                        self._outcome.set_result(instruction)

    def _restart(self, restart: Restart) -> None:
        path, step = self._checkpoints.newest(required=False)
        self._warn(f"{restart.reason}; going on from {f'the checkpoint of step {step}' if step else 'the beginning'}")
        self._begin_at(path, step, restart.reason)

    def _warn(self, message: str) -> None:
        self._warnings.append(message)
        self._journal.write("warning", message=message)

    async def _conclude(self, outcome: Done | Fail | Stop, started: float) -> None:
        result = self._journal.result
        result.seconds = self._clock.monotonic() - started
        if isinstance(outcome, Done):
            result.exit_code, result.digest, result.step = 0, outcome.digest, outcome.step
            result.stop_reason = outcome.stop_reason
            if result.saved and self._home.is_rescued(Path(result.saved).parent):
                result.exit_code = EXIT_ELSEWHERE
            self._journal.write("finished", step=outcome.step, digest=outcome.digest)
            for executor in self._processes:
                self._door.send(executor, m.Dismiss())
                if not self.membership.has_finished(executor):
                    self._processes.kill(executor)  # a spare, a newcomer, or one that nobody needs any more
            await self._processes.ended(FAREWELL_S)
            return
        if isinstance(outcome, Stop):
            result.exit_code, result.error = outcome.exit_code, outcome.told
            self._journal.write("stopped", step=result.step, saved=outcome.saved, error=result.error)
            return
        error = outcome.error
        result.exit_code = error.reported_exit_code if isinstance(error, ReportedError) else error.exit_code
        result.error = str(error)
        result.traceback = outcome.traceback
        self._journal.write("failed", step=result.step, error=result.error)

    def _how_it_ended(self) -> str:
        result = self._journal.result
        if result.exit_code == 0:
            return f"the job finished at step {result.step}"
        return result.error or f"the job was interrupted at step {result.step}"


def _level_differences(level: Level, mine: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, ...]:
    return differences(mine, theirs, level)
