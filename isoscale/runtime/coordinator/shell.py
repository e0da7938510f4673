"""The coordinator of one job: the thin shell around `runtime.membership.state_machine`.

Serves the control socket (per-run token), starts and watches executor processes, keeps the event log, names
checkpoints, and performs what the state machine says. Training never waits for it; if it dies, another one
takes over (`resume_job`).

Long because it is where all parts of a coordinator meet: tables of what is said, asked and to be done, and who is told.
What has state or a rule of its own is a part.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from isoscale.backends.host_id import machine_id
from isoscale.backends.seam import Backend
from isoscale.backends.system import born
from isoscale.clock import Clock
from isoscale.core.numerics.factors import differences
from isoscale.errors import IsoscaleError, StartError, UserError
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.protocol.status import JobStatus
from isoscale.runtime.code.freezing import code_kept_at
from isoscale.runtime.control.directory import Control, memory_directory
from isoscale.runtime.control.server import ControlServer, Security
from isoscale.runtime.coordinator.adoption import survivors
from isoscale.runtime.coordinator.attaching import Attachment
from isoscale.runtime.coordinator.checkpoint_book import CheckpointBook
from isoscale.runtime.coordinator.checkpoints import Checkpoints, Published
from isoscale.runtime.coordinator.conclusion import conclude, how_it_ended
from isoscale.runtime.coordinator.grantee import Grantee
from isoscale.runtime.coordinator.holdings import Holdings
from isoscale.runtime.coordinator.interrupts import Interrupts
from isoscale.runtime.coordinator.journal import Journal, Observer, RunResult
from isoscale.runtime.coordinator.lateness import Lateness
from isoscale.runtime.coordinator.liveness import KillReason, Liveness
from isoscale.runtime.coordinator.mirror import Mirror
from isoscale.runtime.coordinator.own_time import OwnTime
from isoscale.runtime.coordinator.processes import FAREWELL_S, Processes
from isoscale.runtime.coordinator.reception import Reception
from isoscale.runtime.coordinator.remote import Remote
from isoscale.runtime.coordinator.residence import Residence
from isoscale.runtime.coordinator.script_output import Output
from isoscale.runtime.coordinator.status import status_of
from isoscale.runtime.coordinator.terms import terms_of
from isoscale.runtime.coordinator.watch import Watch
from isoscale.runtime.membership.desk import Desk
from isoscale.runtime.membership.dispatch import dispatch, may_say
from isoscale.runtime.membership.headway import Headway
from isoscale.runtime.membership.instructions import (
    Ask,
    Done,
    Emit,
    Fail,
    Instruction,
    Kill,
    Restart,
    Start,
    Stop,
    Tell,
)
from isoscale.runtime.membership.progress import Progress
from isoscale.runtime.membership.state_machine import Membership
from isoscale.runtime.membership.target import Goal, PlanEntry
from isoscale.types import JobSpec, Settings, Whereabouts

__all__ = ["Coordinator"]

_TICK_S = 0.2
#: how long those who have ended a job may take to say what they have told nobody
_HEAR_OUT_S = 5.0
#: in the place of an executor that is not there any more
_NOBODY = -1


class Coordinator:
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
        backend: Backend,
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._clock = clock
        self._control = control
        security = security or Security()
        self.membership = Membership(
            spec,
            settings,
            Goal(devices, [PlanEntry(step, wanted) for step, wanted in plan]),
            functools.partial(differences, level=spec.determinism),
            store=str(control.meeting_place()),
        )
        self._time = OwnTime(clock, _TICK_S)
        self._lateness = Lateness()
        self._journal = Journal(spec, observer, clock)
        self.membership.headway = Headway(self._journal.reached, self._journal.attempts)
        self.membership.roster.reserve(self._journal.num_executors)
        # One that only ever waited is in no event, and may be alive.
        self.membership.roster.reserve(1 + max(control.load_executors(), default=-1))
        self._residence = Residence(spec, settings, control, security)
        self._server = ControlServer(control.token, settings.host, security, self._time.now)
        trails = memory_directory(control.token)
        self._processes = Processes(spec, backend, self._server, control.path / "token", self._on_ended, trails)
        self._output = Output(spec, observer.on_output, self._on_cut)
        liveness = Liveness(settings)
        self._watch = Watch(self._server, self._processes, liveness, self._journal)
        self._remote = Remote(self._server, liveness)
        self.reception = Reception(
            self.membership, self._residence, settings, control.term, self._processes, self._remote, self._time.now
        )
        self._server.on_executor = self.reception.welcome
        self._server.on_joining = self.reception.welcome_joining
        self._server.on_message = self._on_message
        self._server.on_request = self._on_request
        book = CheckpointBook(spec, settings.keep_checkpoints, self._residence.home.find, self._warn)
        self._checkpoints = Checkpoints(book, clock, self._processes.spawn, self._warn)
        #: where machines share no disk
        self._mirror: Mirror | None = None
        #: another coordinator has the job now
        self._is_superseded = False
        self._outcome: asyncio.Future[Done | Fail | Stop] = asyncio.get_running_loop().create_future()
        self._warnings: deque[str] = deque(maxlen=5)
        #: when the last step was committed
        self._stepped_at = self._time.now()
        here = os.path.relpath(spec.out)
        go_on = f"isoscale resume {spec.out if here.startswith('..') else here}"
        self._desk = Desk(self.membership, self._progress, go_on)
        #: where a cluster service grants the job its devices
        self._grantee: Grantee | None = None
        if settings.granted:
            holdings = Holdings(lambda: self._residence.place, self._processes, self.membership)
            self._grantee = Grantee(holdings, self.membership, self._desk, self._residence)
            self._desk.lets_go = holdings.lets_go
        #: what happened before it was clear who is alive, to be looked at then; None at all other times
        self._deferred: list[Callable[[], list[Instruction]]] | None = None

    def use_storage(self, attachment: Attachment | None, warnings: Sequence[str] = ()) -> None:
        """What must survive this machine goes there, and executors get from there what they need. Raises UserError."""
        if attachment is None:
            return
        for warning in warnings:
            self._warn(warning)
        keep, place = self._settings.keep_checkpoints, self._residence.place
        self._mirror = attachment.mirror(place, self._control.term, keep)
        self._checkpoints.use(self._mirror, self.membership.spec)
        self._processes.storage = self._mirror.url

    async def run(self, begin: Callable[[], Awaitable[None]], *, heed_signals: bool = False) -> RunResult:
        started = self._clock.monotonic()
        (self._residence.place / "logs").mkdir(exist_ok=True)
        ticker: asyncio.Task[None] | None = None
        interrupts = Interrupts(self._on_signal) if heed_signals else contextlib.nullcontext()
        async with self._server.open() as url:
            try:
                self._control.announce(url)
                self._residence.save_job(self.membership.goal)
                terms = terms_of(self.membership.spec, self._settings, self.membership.goal, self._control.term)
                self._journal.write("coordinator_started", pid=os.getpid(), **terms)
                self._tell_code()
                if self._mirror is not None:
                    await self._mirror.announce(url, self._warn, self._on_superseded)
                    self._processes.spawn(self._mirror.follow(self._server, self._warn, self._on_superseded))
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
                remote = [executor for executor in self.reception.hellos if executor not in self._processes]
                if self._is_superseded:  # they are another one's now
                    self._processes.let_go()
                    remote = []
                await asyncio.gather(self._remote.dismiss(remote), self._processes.close())
                await self._output.finish()
                self._perform(self._desk.close(how_it_ended(self._journal.result)))
                self._look_after_home()
                place = Path(self._journal.result.saved or self._residence.place / "final.pt").parent
                rescued = self._residence.home.is_rescued(place)
                self._journal.close(
                    list(self.reception.hellos.values()), place, rescued=rescued, command=self._settings.command
                )
                if self._mirror is not None and (why := await self._mirror.close(ended=not self._is_superseded)):
                    self._observer.on_event("warning", {"message": why})
                self._control.close()
        return self._journal.result

    def _on_superseded(self) -> None:
        self._perform([self._superseded()])

    def _superseded(self) -> Fail:
        self._is_superseded = True
        text = f"another coordinator has taken the job over (after term {self._control.term})"
        return Fail(error=IsoscaleError(f"{text}; executors are left to it"))

    # ---- ways to begin ----

    async def begin(self) -> None:
        if not self._ends_at_once():
            self._perform(self.membership.begin())

    def _ends_at_once(self) -> bool:
        """Nobody trains, and the newest grant is of nothing."""
        if self._grantee is None or self._grantee.has_devices():
            return False
        self._perform(self._grantee.begin_with_nothing(self._time.now()))
        return True

    async def begin_from_checkpoint(self) -> None:
        """From the newest whole checkpoint that fits the job; none at all is the user's mistake."""
        if not self._ends_at_once():
            self._begin_at(*await self._checkpoints.newest_checked(required=True), "resumed")

    def _begin_at(self, path: str, step: int, reason: str) -> None:
        """Nobody holds the job's state any more."""
        headway = self.membership.headway
        self._journal.write("restart", step=step, reached=headway.reached, reason=reason, attempt=headway.attempts)
        self._journal.rewind(step)
        self._perform(self.membership.begin(path, step, self._journal.batches, self._journal.reached))

    async def take_over(self) -> None:
        """Find out who is alive, wait until they have said how far they are, and go on."""
        known = self._control.load_executors()
        found = survivors(known, machine_id(), born, self._processes.is_found)
        self._processes.sweep_dead({*known} - {*found.local, *found.remote})
        self._remote.expected |= found.remote
        result = self._control.result()
        is_over = bool(result) and self._journal.result.step <= result["step"]
        if not found.local and is_over:
            # Whoever waits on another machine to hear that it is over shall come and hear it.
            self.membership.on_over()
            await self.reception.hear_from(found.remote, self._warn)
            self._end_with(result)
            return
        if not found.local and not found.remote:
            if not self._ends_at_once():
                newest = await self._checkpoints.newest_checked(required=False)
                self._begin_at(*newest, "a new coordinator found no executor")
            return
        self._deferred, self._desk.is_ready = [], False
        self.reception.adopt(found, known)
        await self.reception.hear_from({*found.ready, *found.remote}, self._warn)
        for executor in found.ready:
            if executor in self._processes and executor not in self.reception.hellos:
                self._kill(executor, KillReason("it did not come to its new coordinator"))
        self._remote.expected.clear()
        if is_over and not self.membership.roster.holders():
            self._end_with(result)
            return
        if is_over:
            await self._hear_out()
            self._tell_of_result()
        deferred, self._deferred, self._desk.is_ready = self._deferred, None, True
        self._perform(self.membership.adopted(saved_digest=result.get("digest", "")))
        for work in deferred:
            self._perform(work())
        if self._grantee is not None:
            self._perform(self._grantee.catch_up(self._time.now()))

    async def _hear_out(self) -> None:
        """The job is over, and whoever has saved its result says so after all that no coordinator has heard yet."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HEAR_OUT_S):
                while not self._journal.result.saved:
                    await asyncio.sleep(_TICK_S / 4)

    def _end_with(self, result: dict[str, Any]) -> None:
        """Nobody who trained is left, and nobody is needed."""
        self._tell_of_result()
        self.membership.on_over()
        self._journal.result.step = result["step"]
        self._outcome.set_result(Done(**result))

    def _tell_of_result(self) -> None:
        """What lies beside it, in case that those who knew are gone."""
        for message in self._control.unheard():
            self._on_fact(_NOBODY, message)

    # ---- processes ----

    async def _start(self, executor: int, kind: str) -> None:
        newcomer = self.membership.phase == "training"
        if newcomer:
            self._processes.spawn(self._tell_changes())
        try:
            aside = newcomer and not self.membership.is_short
            pid = await self._processes.start(executor, kind, newcomer=aside)
        except StartError as error:
            self._do(functools.partial(self.membership.on_lost, executor, str(error)))
            return
        if self._outcome.done():
            return  # it came too late: whatever is still there is ended with the job
        self._perform(self.membership.on_started(executor, pid))
        self._save_executors()
        if self._grantee is not None and not self._grantee.holdings.allows(executor):
            self._kill(executor, KillReason("its device was taken back while it was started"))

    def _on_ended(self, executor: int, reason: str, output: str, where: Whereabouts | None) -> None:
        self._do(functools.partial(self.membership.on_lost, executor, reason, output, where))
        self._save_executors()

    def _tell_code(self) -> None:
        code = self.reception.code
        for event, fields in code.events if code is not None else ():
            self._journal.write(event, **fields)
        for warning in (*(code.warnings if code is not None else ()), self.reception.provenance.warning):
            self._warn(warning)

    async def _tell_changes(self) -> None:
        """Somebody comes later, and the script may have been edited: it does not run what it would run alone."""
        self._warn(await self.reception.edited())

    def _save_executors(self) -> None:
        self._residence.save_executors(self._processes, self.reception.hellos, self.membership.roster)

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
            if self._mirror is None:
                self._server.acknowledge()
            if self._outcome.done():
                continue  # whoever is silent now may: it was told to go
            warning, condemned = self._watch.judge(now, self.membership.roster, self.reception.hellos)
            self._warn(warning)
            for executor, verdict in condemned:
                self._kill(executor, verdict)
            for executor, reason in self._remote.lost(now, self._processes.near()):
                self._do(functools.partial(self.membership.on_lost, executor, reason))
                if executor in self._processes:
                    self._processes.kill(executor, reason)
                self._save_executors()
            if self._deferred is None:
                self._perform(self.membership.on_tick(now))
            self._perform(self._desk.tick(now))
            self._keep_time(now)

    def _kill(self, executor: int, verdict: KillReason) -> None:
        """What this coordinator ends on its own judgement, as opposed to the end of the job."""
        here = self._watch.end(executor, verdict, self.reception.hellos.get(executor))
        if not here or executor not in self._processes.near():  # whoever is far may be out of reach
            self._do(functools.partial(self.membership.on_lost, executor, verdict.reason))
            self._save_executors()

    def _look_after_home(self) -> None:
        """Say so when the run's directory is not where it was; newcomers, commands and a successor find it."""
        residence = self._residence
        with contextlib.suppress(OSError):
            if news := residence.look():
                self._warn(news)
                residence.settle(self._server.url)
                self._processes.moved(residence.spec, residence.token_file)
                if (kept := code_kept_at(residence.place)).exists():
                    self._processes.code = kept
                self._output.moved(residence.spec)
                residence.save_job(self.membership.goal)
                self._save_executors()

    def _first(self) -> int | None:
        """Whose output is shown."""
        training = self.membership.phase != "gathering"
        return self.membership.members[0] if training and self.membership.members else None

    def _on_cut(self, executor: int, lines: int) -> None:
        self._journal.write("output_cut", executor=executor, lines=lines)

    # ---- connections ----

    def _on_message(self, executor: int, message: m.FromExecutor) -> None:
        if not may_say(self.membership, executor, message):
            return
        if isinstance(message, m.Fact):
            self._on_fact(executor, message)
        else:
            self._on_report(executor, message)

    def _on_report(self, executor: int, message: m.Report) -> None:
        """Of itself."""
        membership = self.membership
        match message:
            case m.Hello() | m.Rejoin():
                self._on_introduction(executor, message)
            case m.Beat():
                self._late(executor, message.at)
                self._journal.on_beat(executor, membership.current, message)
                if self._deferred is None:
                    self._perform(membership.on_beat(executor, message))
            case m.Uses():
                gathers = membership.phase == "gathering" and self._deferred is None
                self._object(executor, self.reception.compare(executor, message, gathers=gathers))
            case m.Landed():
                self._do(lambda: dispatch(membership, executor, message, self._time.now()))
                self._object(executor, self.reception.provenance.joined(executor))
            case m.Left():
                pass  # its process ends, which is what counts
            case _:
                self._do(lambda: dispatch(membership, executor, message, self._time.now()))

    def _on_fact(self, executor: int, message: m.Fact) -> None:
        """Of the job: into the log, and to those who asked for it."""
        membership, journal = self.membership, self._journal
        match message:
            case m.StepDone():
                self._stepped_at = self._time.now()
                membership.on_step(message.step, message.seconds)
                journal.on_step(message, self._late(executor, message.at))
            case m.Declared():
                membership.declared = message
                journal.on_declared(message)
                if self._grantee is not None:
                    self._perform(self._grantee.ask_for_batch(journal.result.batch_size, self._time.now()))
            case m.Rebatched():
                journal.on_rebatched(message)
                if message.error and not message.request:
                    self._warn(f"batch size {message.new} at step {message.step}, by the plan: {message.error}")
                self._perform(self._desk.on_rebatched(message))
            case m.Logged():
                then = functools.partial(self._output.then, executor, message.output)
                journal.on_logged(message, self._late(executor, message.at), then)
            case m.Audited():
                journal.write("audit", step=message.step, digest=message.digest)
            case m.Streamed():
                journal.on_streamed(message)
            case m.Recorded():
                journal.on_recorded(message)
            case m.CheckpointWritten() if not self.reception.provenance.spoiled:
                self._checkpoints.publish(message, functools.partial(self._published, executor, message))
            case m.CheckpointFailed():
                self._warn(message.reason)
                self._perform(self._desk.on_no_checkpoint(executor, message.reason))
            case m.Warned():
                self._warn(message.message)
            case m.Saved():
                journal.result.saved = self._residence.elsewhere(self._residence.place / message.path)
                journal.write("checkpoint", step=message.step, path=message.path, seconds=message.seconds)
                self._do(membership.on_result_saved)

    def _late(self, executor: int, at: float) -> float:
        """How long ago an executor wrote this."""
        return self._lateness.of(executor, at, self._clock.monotonic())

    def _on_introduction(self, executor: int, message: m.Hello | m.Rejoin) -> None:
        hello = message if isinstance(message, m.Hello) else message.hello
        is_new = self.reception.introduce(executor, hello)
        if isinstance(message, m.Hello):
            objection = self.reception.provenance.objection(executor)
            self._do(functools.partial(self.membership.on_hello, message, objection))
        else:
            self._late(executor, message.at)  # before all that it has kept for this coordinator
            if is_new:
                self.membership.on_rejoin(message)
        if is_new:
            self._save_executors()

    def _object(self, executor: int, error: IsoscaleError | None) -> None:
        """It runs other code, or reads other data, than the others."""
        if error is not None:
            self._do(functools.partial(self.membership.on_unlike, executor, error))

    # ---- requests ----

    def _on_request(self, request: m.FromClient) -> m.Reply:
        try:
            accepted, instructions = self._accept(request)
        except IsoscaleError as error:
            return m.Reply(ok=False, error=str(error), status=self.status())
        self._perform(instructions)
        if isinstance(request, m.Scale):
            self._residence.save_job(self.membership.goal)
        return m.Reply(ok=True, status=self.status(), id=accepted)

    def _accept(self, request: m.FromClient) -> tuple[int | None, list[Instruction]]:
        """Where a service runs the job, nobody else changes its devices. Raises UserError."""
        now, grantee = self._time.now(), self._grantee
        if not isinstance(request, m.Grant):
            if grantee is not None:
                grantee.check(request)
            return self._desk.on_request(request, now)
        if grantee is None:
            remedy = "scale it: isoscale scale DIR"
            raise UserError(field="grant", value=request.number, problem="no service runs this job", remedy=remedy)
        answer = grantee.on_grant(request, now)
        self._processes.spawn(self._at_once())
        return answer

    async def _at_once(self) -> None:
        self._keep_time(self._time.now())

    def _keep_time(self, now: float) -> None:
        """Devices that are wanted back are free in time: those who stay do the step again."""
        if self._grantee is not None and not self._outcome.done():
            for executor in self._grantee.overdue(self._progress(), now):
                self._kill(executor, KillReason("its device is wanted back before it could leave"))

    def _on_signal(self, name: str, code: int) -> None:
        limit_s = self._settings.notice_s if name == "SIGTERM" else None
        self._perform(self._desk.on_signal(name, code, self._time.now(), limit_s))

    def _published(self, executor: int, message: m.CheckpointWritten, published: Published) -> None:
        if isinstance(published, str):
            self._perform(self._desk.on_no_checkpoint(executor, published))
        else:
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
            write_s=self._checkpoints.write_s,
        )

    def status(self) -> JobStatus:
        now = self._time.now()
        status = status_of(
            self.membership,
            self._journal.result,
            term=self._control.term,
            silences={executor: self._server.silent_for(executor, now) for executor in self.reception.hellos},
            checkpoint=self._checkpoints.last_with_age(),
            messages=list(self._warnings),
            requests=self._desk.shown(now),
        )
        if self._grantee is not None:
            unsaved = max(0, self._journal.result.step - self._checkpoints.saved)
            status["grant"] = self._grantee.holdings.status(self._desk.abandoned_s, self._checkpoints.write_s, unsaved)
        return status

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
                    self._server.send(instruction.executor, instruction.message)
                case Kill():
                    self._kill(instruction.executor, KillReason(instruction.reason))
                case Emit():
                    self._emit(instruction.event, instruction.fields)
                case Restart():
                    self._restart(instruction)
                case Ask():
                    self._perform(self._desk.on_ask(instruction, self._time.now()))
                case Done() | Fail() | Stop():
                    if not self._outcome.done():
                        self._outcome.set_result(instruction)

    def _emit(self, event: str, fields: dict[str, Any]) -> None:
        if event == "warning":
            self._warn(fields["message"])
            return
        self._journal.write(event, **fields)
        if event == "straggler" and fields["set_aside"]:
            self._residence.save_job(self.membership.goal)
            if self._grantee is not None:
                self._grantee.holdings.set_aside(fields["set_aside"], "slow: set aside")
        if event == "generation" and not self.membership.sealed:
            self._observer.on_begin(len(fields["members"]))

    def _restart(self, restart: Restart) -> None:
        path, step = self._checkpoints.newest()
        self._warn(f"{restart.reason}; going on from {f'the checkpoint of step {step}' if step else 'the beginning'}")
        self._begin_at(path, step, restart.reason)

    def _warn(self, message: str) -> None:
        """Unless there is nothing to say."""
        if message:
            self._warnings.append(message)
            self._journal.write("warning", message=message)

    async def _conclude(self, outcome: Done | Fail | Stop, started: float) -> None:
        result = self._journal.result
        result.seconds = self._clock.monotonic() - started
        if self._mirror is not None and isinstance(outcome, Done):
            if await self._mirror.is_superseded():
                # Its executors ended the job while it slept: the result is the other one's to tell.
                outcome = self._superseded()
            else:
                self._warn(await self._mirror.fetch_result())
        last = conclude(result, outcome, rescued=self._residence.is_rescue(result.saved))
        self._journal.write(last.event, **last.fields)
        if isinstance(outcome, Done):
            for executor in self._processes:
                self._server.send(executor, m.Dismiss())
                if not self.membership.has_finished(executor):
                    self._processes.kill(executor)  # a spare, a newcomer, or one that nobody needs any more
            await self._processes.ended(FAREWELL_S)
