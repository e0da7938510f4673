"""The rescale protocol, sans I/O: which executors train in which generation, and who must be told what.

Events go in (a process came up, said something, is gone; somebody asked for other devices; time passed),
instructions come out, for the shell (`runtime.coordinator.shell`) to perform. The rules:

- A change is an *attempt*: all members of the next generation form its group beside training; when all have,
  the present members are told to switch, and do so together at a seal that shows that all know (or at the step
  that a plan names). Those who leave stay until the new generation has sealed its first step.
- Until the order to switch is out, an attempt is dropped for a newer target. After that it must end first:
  in the new generation's first seal, or in a failure.
- A failure is answered by a *recovery*: the next generation consists of all who hold the job's state and are
  alive. When they have agreed on how far they are the target is looked at again; until they have sealed a step nobody
  is started for it.
- Whoever has not followed a recovery cannot catch up, and is replaced.

This is the table of events by phases: what has happened, and which of these follows. How that is done is
`runtime.membership.rescaling`'s affair; whatever else has state of its own is a part, too (see the fields of
`Membership`). It is long because it is one table: cut in two, each half would need the other one's answers.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import Literal

from isoscale.batches import BatchChange
from isoscale.errors import IsoscaleError, UserCodeError
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.membership.admission import Admission, Differences, never_started, script_fault
from isoscale.runtime.membership.change import Attempt, Orphaned
from isoscale.runtime.membership.completion import Completion
from isoscale.runtime.membership.eviction import Eviction
from isoscale.runtime.membership.generations import Generations, Origin
from isoscale.runtime.membership.headway import Headway, Loss
from isoscale.runtime.membership.instructions import Ask, Done, Emit, Fail, Instruction, Kill, Restart, Tell, error_of
from isoscale.runtime.membership.reachability import Reachability, strangers_of
from isoscale.runtime.membership.rebalance import Rebalance
from isoscale.runtime.membership.recruiting import Recruiting
from isoscale.runtime.membership.rescaling import Rescaling
from isoscale.runtime.membership.retry_limits import Breakage, RetryLimits, broken_too_often, pause_before
from isoscale.runtime.membership.roster import Executor, Roster
from isoscale.runtime.membership.takeover import Census, seat
from isoscale.runtime.membership.target import Goal
from isoscale.types import JobSpec, Settings, Whereabouts

__all__ = ["Membership", "Phase"]

Phase = Literal["gathering", "training", "done", "failed"]


@dataclass(slots=True)
class Membership:
    spec: JobSpec
    settings: Settings
    goal: Goal
    #: accuracy-relevant factors of two executors that may not differ at the job's level
    differences: InitVar[Differences]
    #: prefix of the places where the members of a generation meet
    store: InitVar[str] = "store"
    #: shares of the first generation, where they are not to be chosen
    first_shares: tuple[int, ...] = ()
    phase: Phase = "gathering"
    roster: Roster = field(default_factory=Roster)
    headway: Headway = field(default_factory=Headway)
    #: what the script says of its batch size; None: nothing, or not yet
    declared: m.Declared | None = None
    #: the batch size that is asked for, which goes with the next switch
    rebatch: m.Rebatch | None = None
    #: a step was committed under this coordinator
    has_stepped: bool = False
    #: the job is about to be ended: no change is begun any more
    is_stopping: bool = False
    _origin: Origin = field(default_factory=Origin)
    #: of those who held the job's state, the one that was lost last
    _last: Loss | None = None
    _orphaned: Orphaned = field(default_factory=Orphaned)
    #: of the exchange of the present generation
    _breakage: Breakage = field(default_factory=Breakage)
    _reachability: Reachability = field(default_factory=Reachability)
    _retry_limits: RetryLimits = field(default_factory=RetryLimits)
    _completion: Completion = field(default_factory=Completion)
    _census: Census = field(default_factory=Census)
    _admission: Admission = field(init=False)
    _generations: Generations = field(init=False)
    _recruiting: Recruiting = field(init=False)
    _rebalance: Rebalance = field(init=False)
    _rescaling: Rescaling = field(init=False)
    _eviction: Eviction = field(init=False)

    def __post_init__(self, differences: Differences, store: str) -> None:
        self._admission = Admission(self.spec.determinism, differences)
        self._generations = Generations(self.roster, store, apart=bool(self.settings.storage))
        self._recruiting = Recruiting(self.roster, self.settings, self._retry_limits)
        self._rebalance = Rebalance(self.spec.workers, self.settings)
        self._rescaling = Rescaling(
            self.spec,
            self.goal,
            self._generations,
            self._recruiting,
            self._rebalance,
            self._breakage,
            self._reachability,
        )
        self._eviction = Eviction(self.settings.notice_s)

    # ---- looking ----

    @property
    def members(self) -> tuple[int, ...]:
        return self._generations.members

    @property
    def shares(self) -> tuple[int, ...]:
        return self._generations.shares

    @property
    def generation(self) -> int:
        """The highest one that was ever announced."""
        return self._generations.highest

    @property
    def current(self) -> int:
        """The generation that the members are in."""
        return self._generations.current

    @property
    def sealed(self) -> bool:
        """It has sealed a step."""
        return self._generations.sealed

    @property
    def attempt(self) -> Attempt | None:
        """The next one, in the making."""
        return self._generations.attempt

    @property
    def reason(self) -> str:
        """What the last change was for."""
        return self._rescaling.reason

    @property
    def step(self) -> int:
        return self._rescaling.step

    @property
    def step_s(self) -> float:
        """Seconds of a step, of late; 0 before the first."""
        return self._rescaling.step_s

    @property
    def is_short(self) -> bool:
        return self._rescaling.is_short

    @property
    def switch_s(self) -> float:
        """How long training stands still when executors come or go, as measured; 0 before the first time."""
        return self._rebalance.pause_s

    @property
    def _is_over(self) -> bool:
        return self.phase in ("done", "failed")

    def pause_s(self) -> float:
        """How long executors are not started, since others were lost; 0 if they are."""
        return self._retry_limits.pause_s()

    def has_finished(self, executor: int) -> bool:
        return executor in self._completion.finished

    # ---- beginning ----

    def begin(
        self, checkpoint: str = "", step: int = 0, batches: tuple[BatchChange, ...] = (), reached: int = 0
    ) -> list[Instruction]:
        """Gather executors for the target and start training, from a checkpoint or from the beginning; up to `reached`
        steps with the same batch sizes as before."""
        self.phase, self._origin = "gathering", Origin(checkpoint, batches, reached)
        self._rescaling.step = step
        self.goal.reach(step)
        return self._gather()

    def _gather(self) -> list[Instruction]:
        """See to it that all come that the target needs, and begin when they are there."""
        return [*self._recruiting.gather(self.goal.devices), *self._begin_if_gathered()]

    def on_started(self, executor: int, pid: int) -> list[Instruction]:
        one = self.roster.get(executor)
        if one is None:
            return []
        one.pid = pid
        return [Emit("executor_started", {"executor": executor, "pid": pid, "kind": one.kind})]

    def on_joining(self, kind: str) -> int:
        """Somebody started an executor of this kind by hand: its id. It serves like a spare."""
        return self.roster.add(kind, needed=False).executor

    def on_hello(self, hello: m.Hello, objection: IsoscaleError | None = None) -> list[Instruction]:
        """An executor is set up. Refuse it if it computes other bits, or because of the shell's `objection`."""
        one = self.roster.get(hello.executor)
        if one is None or one.state != "starting" or self._is_over:
            return []
        refusal = objection or self._admission.judge(hello)
        one.hello, one.pid, one.state = hello, hello.pid, "warm"
        if refusal is not None:
            return self._refuse(one, refusal)
        if not one.needed:
            self._retry_limits.spares.clear()
        if self.phase == "gathering":
            return self._begin_if_gathered() if self._recruiting.one_more() else []
        if one.needed:
            return self._recruiting.call(one.executor)
        return [] if self.settings.spawn else self._reconcile()

    def on_unlike(self, executor: int, refusal: IsoscaleError) -> list[Instruction]:
        """One that was admitted turns out to run other code, or to read other data. If it trains, so does the job."""
        one = self.roster.get(executor)
        if one is None or self._is_over:
            return []
        if one.state in ("member", "leaving"):
            return self._fail(refusal)
        return self._refuse(one, refusal)

    def _refuse(self, one: Executor, refusal: IsoscaleError) -> list[Instruction]:
        if self.phase == "gathering" and one.needed:
            return self._fail(refusal)
        return [Kill(one.executor, str(refusal)), *self._rescaling.give_up(str(refusal)), *self._reconcile()]

    def _begin_if_gathered(self) -> list[Instruction]:
        orders = self._rescaling.begin_if_gathered(self.first_shares, self._origin)
        if orders:
            self.phase = "training"
        return orders

    # ---- requests ----

    def on_request(self, target: DeviceSet, away: tuple[int, ...] = (), reason: str = "asked") -> list[Instruction]:
        """Other devices are wanted; the newest request counts. `away` are executors that shall go."""
        if self._is_over:
            return []
        self._rescaling.ask(target, away, reason)
        return self._gather() if self.phase == "gathering" else self._reconcile()

    def on_notice(self, executor: int, reason: str) -> list[Instruction]:
        """An executor was told to go: within a step, even if nobody has come in its place."""
        one = self.roster.get(executor)
        if one is None or one.noticed or self.phase not in ("gathering", "training"):
            return []
        one.noticed, self._rescaling.reason = True, reason
        notice = Emit("notice", {"executor": executor, "reason": reason})
        if self.phase == "gathering":
            return [notice, *self._recruiting.let_go(executor, reason), *self._gather()]
        if one.state != "member" and not self._generations.may_hold(executor):
            one.state = "leaving"
            return [notice, Tell(executor, m.Leave(reason=reason)), *self._reconcile()]
        return [notice, *self._reconcile()]

    def on_stopping(self, is_stopping: bool) -> list[Instruction]:
        """Somebody wants the job to end after a checkpoint; or it goes on, since there cannot be one."""
        self.is_stopping = is_stopping
        if is_stopping and self._generations.switching is None:
            self._generations.drop()  # overtaken: nobody has gone over
        return [] if is_stopping else self._reconcile()

    # ---- an attempt ----

    def _reconcile(self) -> list[Instruction]:
        """Take the next step from the executors there are towards those that are wanted."""
        if self.phase != "training" or self._completion or self.is_stopping or self._orphaned:
            return []
        return self._rescaling.reconcile()

    def on_held(self, executor: int) -> list[Instruction]:
        one = self.roster.get(executor)
        if one is None or one.state != "approaching":
            return []
        return self._reconcile() if self._recruiting.arrived(executor) else []

    def on_prepared(self, executor: int, generation: int) -> list[Instruction]:
        return self._generations.prepared(executor, generation, self.rebatch)

    def on_switched(self, executor: int, switched: m.Switched) -> list[Instruction]:
        self._generations.switched(executor, switched)
        # The last one that was to agree in a recovery: who comes in the place of the lost one may be there already.
        return [] if self.sealed or not self._generations.is_settled else self._reconcile()

    def on_received(self, executor: int, generation: int) -> list[Instruction]:
        attempt = self.attempt
        if executor not in self.roster:
            return []
        if attempt is None or attempt.generation != generation:
            overtaken = generation < self.current and executor not in self.members
            return self._overtake(executor) if overtaken else []
        attempt.received.add(executor)
        return self._recover(self._orphaned.reason) if self._orphaned else []

    def on_landed(self, executor: int, generation: int) -> list[Instruction]:
        self._generations.landed(executor, generation)
        return []

    def on_sealed(
        self, generation: int, step: int, members: tuple[int, ...] = (), shares: tuple[int, ...] = ()
    ) -> list[Instruction]:
        """The first seal of a generation, as far as somebody has told."""
        attempt = self.attempt
        if attempt is not None and attempt.generation == generation:
            # A newcomer may be heard before those who have told that the recovery, in which it came, had sealed a step.
            unheard = [] if self.sealed else self._rescaling.seal(self._generations.recovered_at)
            return [*unheard, *self._rescaling.complete(attempt, step), *self._go_on()]
        if generation > self.current and members:
            trouble = "" if self._generations.switching is None else "a new coordinator"
            return [*self._rescaling.follow(generation, members, shares), *self._go_on(trouble)]
        if generation != self.current or self.sealed:
            return []
        return [*self._rescaling.seal(step), *self._reconcile()]

    def _go_on(self, trouble: str = "") -> list[Instruction]:
        """In a generation that has sealed a step; but some of its members may be gone meanwhile."""
        gone = self._generations.gone()
        if gone or trouble:
            return self._recover(f"executor {gone[0]} is gone" if gone else trouble)
        return self._reconcile()

    # ---- failures ----

    def on_broken(
        self, executor: int, generation: int, reason: str, now: float, unreachable: tuple[int, ...] = ()
    ) -> list[Instruction]:
        """An executor cannot exchange. Usually somebody's end is about to be noticed; if not, form the group again."""
        if generation == self.current or (generation < self.current and not self.sealed):
            self._reachability.complain(executor, unreachable)
        elif generation > self.current and unreachable:
            # Newcomers go as soon as one of two has said so: training does not wait for them.
            held = {one.executor for one in self.roster if one.state == "held"}
            if strangers := strangers_of(executor, unreachable, held):
                self._generations.drop()
                return [Kill(one.executor, str(one)) for one in strangers]
        attempt = self.attempt
        concerned = attempt is not None and generation == attempt.generation
        if attempt is not None and concerned and not attempt.switch_sent:
            return self._unformed(reason)
        one = self.roster.get(executor)
        # Everybody says so at once: whoever speaks of the present generation is not looked up among all members.
        is_late = not concerned and generation < self.current
        if is_late and one is not None and executor not in self.members:
            # It may have gone over to a generation that a recovery has overtaken. Without the state it waits on.
            return self._overtake(executor) if one.state == "member" or executor in self._generations.overtaken else []
        # Of an attempt that was dropped several may say so; the present generation trains all the same.
        if (concerned or generation == self.current) and self.phase == "training":
            self._breakage.report(reason, now)
        return self._finish_if_done()

    def on_suspect(self, executor: int, reason: str) -> list[Instruction]:
        """An executor that computes wrong bits goes at once, and is not asked for its state."""
        if executor not in self.roster or self.phase != "training" or self.roster[executor].noticed:
            return []
        self.roster[executor].noticed = True
        return [Emit("suspect", {"executor": executor, "reason": reason}), Kill(executor, reason)]

    def on_lost(
        self, executor: int, reason: str, output: str = "", where: Whereabouts | None = None
    ) -> list[Instruction]:
        """An executor is gone, and dead. `output` is the end of what it printed; `where` it was, if anybody knows."""
        one = self.roster.remove(executor)
        if one is None or self._is_over:
            return []
        self._rebalance.forget(executor)
        attempt, switching = self.attempt, self._generations.switching
        if one.state == "leaving" and (attempt is None or executor not in attempt.members):
            return [Emit("executor_left", {"executor": executor, "pid": one.pid, "reason": reason})]
        lost = Emit("executor_lost", {"executor": executor, "pid": one.pid, "reason": reason})
        if one.state == "member":
            self._last = Loss(executor, reason, where)
            self.headway.commit(where.step if where is not None else 0)  # its last words may not have come as far
        if self.phase == "gathering":
            return [lost, *self._lost_before_start(one, reason, output)]
        if self._completion and (executor in self._completion.finished or executor in self.members):
            return [lost, *self._lost_at_end(executor, f"executor {executor} lost: {reason}")]
        if not self._generations.needs(executor, holds=one.state == "member"):
            return [lost, *self._lost_newcomer(one, reason, output)]
        gave_up: list[Instruction] = []
        if switching is not None and executor in switching.coming:
            gave_up = self._count_stillborn(one, reason, output)
        elif self._rescaling.is_fresh(one.joined_step):
            self._retry_limits.newcomers.lose(executor, self.roster.started, self._retry_limits.now, joined=True)
        return [lost, *gave_up, *self._recover(f"executor {executor} lost: {reason}")]

    def _lost_at_end(self, executor: int, reason: str) -> list[Instruction]:
        """Somebody had come to the end. Whoever has not needs to follow only if that one is gone without a result."""
        self._completion.lose(executor)
        if not self._completion:
            return self._recover(reason)
        self._breakage.assume()
        return self._finish_if_done()

    def _lost_newcomer(self, one: Executor, reason: str, output: str) -> list[Instruction]:
        if self.attempt is not None and one.executor in self.attempt.members:
            self._generations.drop()
        return [*self._count_stillborn(one, reason, output), *self._reconcile()]

    def _count_stillborn(self, one: Executor, reason: str, output: str) -> list[Instruction]:
        """Newcomers that end one after the other would end for ever. Spares are only started at longer intervals."""
        count = self._retry_limits.lose_early(one.executor, self.roster.started, needed=one.needed)
        if not count:
            return []
        last = output.strip().splitlines()[-1:] or [reason]
        return self._rescaling.give_up(f"newcomers ended before they could join, {count} times in a row: {last[0]}")

    def _unformed(self, reason: str) -> list[Instruction]:
        """A group could not be formed. Training goes on without it, and so the job does not fail of it."""
        self._generations.drop()
        if not self._retry_limits.unformed.strike():
            return self._reconcile()
        self._retry_limits.unformed.clear()
        why = f"the group of its executors cannot be formed: {reason}"
        in_vain = bool(self.goal.refused) or self.goal.holds_for_nothing
        gave_up = self._rescaling.give_up(why)
        # They would wait at the plan's step for ever. A recovery tells them, without whoever is out of reach.
        return [*gave_up, *(self._recover(why) if in_vain else self._reconcile())]

    def _recover(self, reason: str) -> list[Instruction]:
        """The next generation is made of all who hold the job's state."""
        holders = self._generations.holders()
        if not holders:
            return self._orphan(reason)
        self._orphaned.end()
        return self._rescaling.recover(holders, reason, replace=not self._completion and not self.is_stopping)

    def _overtake(self, newcomer: int) -> list[Instruction]:
        """It has gone over, with the state, to a generation that will never be: it cannot come back.

        Whoever recovers may be dead as well, and not known to be. Until they have sealed a step it may be the last one.
        """
        self._generations.overtaken.add(newcomer)
        if self._orphaned:
            return self._recover(self._orphaned.reason)
        return [*self._rescaling.release_overtaken(), *self._reconcile()] if self.sealed else []

    def _orphan(self, reason: str) -> list[Instruction]:
        """Nobody is known to hold the state. A newcomer may have got it, and be about to say so."""
        if not self._generations.awaits_word():
            return self._restart(reason)
        if self._generations.switching is None:
            self._generations.drop()  # nobody is left who could go over
        self._orphaned.begin(reason)
        return []

    def _restart(self, reason: str) -> list[Instruction]:
        self._generations.drop()
        self._orphaned.end()
        if self.headway.restart(self._last or Loss(-1, reason), self.roster.started):
            return self._fail(IsoscaleError(self.headway.account(self.spec.out)))
        self._retry_limits.newcomers.pause(pause_before(self.headway.attempts), self._retry_limits.now)
        self._completion.finished, self._last = {}, None
        return [*self._rescaling.disband(), Restart(reason)]

    def _count_broken(self, reason: str) -> list[Instruction]:
        if not self._retry_limits.broken.strike():
            return []
        first = self.members[0] if self.members else -1
        return self._fail(broken_too_often(first, self.current, self._retry_limits.broken.count, reason))

    def _lost_before_start(self, one: Executor, reason: str, output: str) -> list[Instruction]:
        """It never came as far as isoscale.run(train): the script itself is at fault, unless it was killed."""
        fault = script_fault(self.spec.script, one.executor, reason, output) if one.hello is None else None
        if fault is not None:
            return self._fail(fault, output if isinstance(fault, UserCodeError) else "")
        if count := self._retry_limits.lose_early(one.executor, self.roster.started, needed=one.needed):
            return self._fail(never_started(self.spec.out, one, reason, output, count))
        return self._gather()

    # ---- time ----

    def on_tick(self, now: float) -> list[Instruction]:
        """Called every fraction of a second."""
        due = self._retry_limits.tick(now)
        if self.phase == "gathering":
            return self._gather() if due else []
        if self.phase != "training":
            return []
        if self._orphaned:
            waits = self._generations.awaits_word() and not self._orphaned.is_overdue(now)
            return [] if waits else self._restart(self._orphaned.reason)
        if self._breakage.is_overdue(now):
            if self._completion:
                return self._finish_if_done()
            self._breakage.mend()
            outcasts = self._reachability.outcasts(self._generations.present())
            if outcasts:
                return [Kill(one.executor, str(one)) for one in outcasts]
            reason = f"the exchange broke: {self._breakage.reason}"
            return self._count_broken(reason) or self._recover(reason)
        instructions = self._if_evicted(now)
        if due or (self.goal.plan and self.sealed and self.attempt is None):
            instructions += self._reconcile()
        return instructions

    def _if_evicted(self, now: float) -> list[Instruction]:
        """Everybody was told to go. Until others have come they train on, but not for ever."""
        due = self._eviction.look(
            everybody=self._generations.all_are_noticed() and not self._completion,
            rescued=self._generations.switching is not None,
            given_up=self.goal.refused,
            step_s=self.step_s,
            now=now,
        )
        return [Ask(due, "all executors were told to go")] if due else []

    def on_step(self, step: int, seconds: float) -> None:
        """A step is committed; `seconds` is what it took."""
        self.has_stepped = True
        self._rescaling.stepped(step, seconds)
        self.headway.commit(step)

    def on_beat(self, executor: int, beat: m.Beat) -> list[Instruction]:
        one = self.roster.get(executor)
        if one is None or not one.heard(beat) or one.state != "member":
            return []
        return self._rescaling.measure(executor, beat)

    # ---- the end ----

    def on_finished(self, finished: m.Finished) -> list[Instruction]:
        if self.phase != "training":
            return []
        self._completion.finished[finished.executor] = finished
        return self._finish_if_done()

    def on_result_saved(self) -> list[Instruction]:
        self._completion.saved = True
        return self._finish_if_done()

    def _finish_if_done(self) -> list[Instruction]:
        """The others may follow whoever came to the end, or be gone."""
        if not self._completion or self.phase != "training":
            return []
        switching = self._generations.switching
        leaving = set(switching.leaving if switching is not None else ())
        waits = not self._breakage and self._completion.waits_for(
            self.members, lambda executor: executor in self.roster and executor not in leaving
        )
        instructions = [] if waits else self._completion.conclude()
        if any(isinstance(instruction, Done) for instruction in instructions):
            self.phase = "done"
        return instructions

    def on_failed(self, failed: m.Failed) -> list[Instruction]:
        """An executor says why it cannot go on: the script's fault, so all would fail, unless it is a newcomer."""
        one = self.roster.get(failed.executor)
        if one is None or self._is_over:
            return []
        if self.phase == "training" and one.state in ("starting", "warm", "approaching", "held"):
            self.roster.remove(failed.executor)
            warning, output = f"newcomer {failed.executor}: {failed.summary}", failed.traceback or failed.summary
            told = Emit("warning", {"message": warning})
            if self._generations.needs(failed.executor, holds=False):
                # The others have gone over, or will, to a generation that it does not come to.
                return [told, *self._count_stillborn(one, failed.summary, output), *self._recover(warning)]
            return [told, *self._lost_newcomer(one, failed.summary, output)]
        return self._fail(error_of(failed), failed.traceback)

    # ---- a new coordinator ----

    def on_still_starting(self, executor: int, kind: str, pid: int) -> None:
        """A process that another coordinator had started, and that has not said a word yet."""
        self.roster.adopt(executor, kind).pid = pid

    def on_rejoin(self, rejoin: m.Rejoin) -> None:
        """An executor that another coordinator had started; `adopted` is called when all have been heard."""
        seat(rejoin, self.roster)
        self._admission.know(rejoin.hello)
        self._generations.hear_of(max(rejoin.highest, rejoin.generation))
        self._census.count(rejoin)

    def adopted(self, *, saved_digest: str = "") -> list[Instruction]:
        """All that are alive have said who they are: go on with them. There may be a result on disk already."""
        found = self._census
        self.phase = "training"
        self._rescaling.adopt(found)
        self.headway.commit(self.step)
        self._completion.finished = found.finished
        # One whose order to begin was lost with the old coordinator is not there either.
        gone = [e for e in self.members if e not in self.roster or self.roster[e].state != "member"]
        if len(gone) == len(self.members):
            return self._recover("no executor was left")
        if self._completion:
            self._completion.found(saved_digest)
            if gone:
                self._breakage.assume()
            return [*self._rescaling.announce(), *self._finish_if_done()]
        if gone or self._breakage:
            self._breakage.mend()
            return self._recover(f"executor {gone[0]} is gone" if gone else self._breakage.reason)
        if found.uncertain & set(self.members):
            # They may still go over to what an earlier coordinator had prepared, and nobody knows with whom.
            return self._recover("a new coordinator")
        return [*self._rescaling.announce(), *self._rescaling.release_leavers(), *self._reconcile()]

    def on_over(self) -> None:
        """The job had come to its end before this coordinator came, and its result is on disk."""
        self.phase = "done"

    def _fail(self, error: IsoscaleError, traceback: str = "") -> list[Instruction]:
        self.phase = "failed"
        return [Fail(error=error, traceback=traceback)]
