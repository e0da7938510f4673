"""The rescale protocol, sans I/O: which executors train in which generation, and who must be told what.

Events go in (a process came up, said something, is gone; somebody asked for other devices; time passed),
instructions come out, for the shell (`runtime.coordinator.shell`) to perform. The rules:

- A change is an *attempt*: all members of the next generation form its group beside training; when all have,
  the present members are told to switch, and do so together at a seal that shows that all know (or at the step
  that a plan names). Those who leave stay until the new generation has sealed its first step.
- Until the order to switch is out, an attempt is dropped for a newer target. After that it must end first:
  in the new generation's first seal, or in a failure.
- A failure is answered by a *recovery*: the next generation consists of all who hold the job's state and are
  alive. Only then is the target looked at again.
- Whoever has not followed a recovery cannot catch up, and is replaced.

Whatever has state of its own is a part of its own (see the fields of `Membership`). What is left is long because it is
one table, of events by phases: cut in two, each half would change the fields of the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from isoscale.batches import BatchChange
from isoscale.errors import ExecutorLostError, IsoscaleError, UserCodeError
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.membership.admission import Differences, refusal_of, script_fault
from isoscale.runtime.membership.change import Attempt, Change, change_towards, pause_of
from isoscale.runtime.membership.completion import Completion
from isoscale.runtime.membership.eviction import Eviction
from isoscale.runtime.membership.headway import Headway, Loss
from isoscale.runtime.membership.instructions import Ask, Done, Emit, Fail, Instruction, Kill, Restart, Tell, error_of
from isoscale.runtime.membership.orders import (
    Formation,
    addresses_of,
    generation_events,
    meeting_place,
    rescale_event,
    straggler_event,
)
from isoscale.runtime.membership.reachability import Reachability, strangers_of
from isoscale.runtime.membership.rebalance import Move, Rebalance
from isoscale.runtime.membership.recruiting import Recruiting
from isoscale.runtime.membership.retry_limits import Breakage, RetryLimits, pause_before
from isoscale.runtime.membership.roster import Executor, Roster
from isoscale.runtime.membership.takeover import Census, standing_of
from isoscale.runtime.membership.target import Aside, Goal
from isoscale.types import JobSpec, Settings, Whereabouts

__all__ = ["Membership", "Phase"]

Phase = Literal["gathering", "training", "done", "failed"]

#: an executor that is lost sooner after it came is replaced after a pause
_LASTING_STEPS = 10


@dataclass(slots=True)
class Membership:
    spec: JobSpec
    settings: Settings
    goal: Goal
    #: accuracy-relevant factors of two executors that may not differ at the job's level
    differences: Differences
    #: prefix of the places where the members of a generation meet
    store: str = "store"
    #: shares of the first generation, where they are not to be chosen
    first_shares: tuple[int, ...] = ()
    phase: Phase = "gathering"
    roster: Roster = field(default_factory=Roster)
    #: the highest generation that was ever announced
    generation: int = 0
    members: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()
    #: the generation the members are in, and whether it has sealed a step
    current: int = 0
    sealed: bool = False
    attempt: Attempt | None = None
    #: what the last change was for
    reason: str = ""
    step: int = 0
    step_s: float = 0.0
    checkpoint: str = ""
    headway: Headway = field(default_factory=Headway)
    #: what the script says of its batch size; None: nothing, or not yet
    declared: m.Declared | None = None
    #: the batch size that is asked for, which goes with the next switch
    rebatch: m.Rebatch | None = None
    #: how the batch size was changed so far, and how many steps were committed, for those who begin again
    batches: tuple[BatchChange, ...] = ()
    reached: int = 0
    #: a step was committed under this coordinator
    has_stepped: bool = False
    #: the job is about to be ended: no change is begun any more
    is_stopping: bool = False
    _reference: m.Hello | None = None
    #: who has gone over in a recovery, and how many trained before it; 0 outside recoveries
    _recovered: dict[int, m.Switched] = field(default_factory=dict)
    _from: int = 0
    #: newcomers with the state of a generation that a recovery has overtaken: needed until that one has sealed a step
    _overtaken: set[int] = field(default_factory=set)
    #: of those who held the job's state, the one that was lost last
    _last: Loss | None = None
    _breakage: Breakage = field(default_factory=Breakage)
    _reachability: Reachability = field(default_factory=Reachability)
    _retry_limits: RetryLimits = field(default_factory=RetryLimits)
    _completion: Completion = field(default_factory=Completion)
    _census: Census = field(default_factory=Census)
    _recruiting: Recruiting = field(init=False)
    _rebalance: Rebalance = field(init=False)
    _eviction: Eviction = field(init=False)

    def __post_init__(self) -> None:
        self._recruiting = Recruiting(self.roster, self.settings, self._retry_limits)
        self._rebalance = Rebalance(self.spec.workers, self.settings)
        self._eviction = Eviction(self.settings.notice_s)

    # ---- beginning ----

    def begin(self, checkpoint: str = "", step: int = 0) -> list[Instruction]:
        """Gather executors for the target and start training, from a checkpoint or from the beginning."""
        self.phase, self.checkpoint, self.step = "gathering", checkpoint, step
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
        if one is None or one.state != "starting" or self.phase in ("done", "failed"):
            return []
        refusal = objection or refusal_of(hello, self._reference, self.spec.determinism, self.differences)
        one.hello, one.pid, one.state = hello, hello.pid, "warm"
        if self._reference is None and objection is None:
            self._reference = hello
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
        if one is None or self.phase in ("done", "failed"):
            return []
        if one.state in ("member", "leaving"):
            return self._fail(refusal)
        return self._refuse(one, refusal)

    def _refuse(self, one: Executor, refusal: IsoscaleError) -> list[Instruction]:
        if self.phase == "gathering" and one.needed:
            return self._fail(refusal)
        return [Kill(one.executor, str(refusal)), *self._give_up_target(str(refusal)), *self._reconcile()]

    def _begin_if_gathered(self) -> list[Instruction]:
        """The first generation, when all that the target needs are set up."""
        members = self._recruiting.gathered(self.goal.devices)
        if not members:
            return []
        self.phase, self.attempt = "training", None
        for executor in members:
            self.roster[executor].state = "member"
            self.roster[executor].needed = True
            self.roster[executor].joined_step = self.step
        shares = self.first_shares if len(self.first_shares) == len(members) else self._split(members)
        self.generation += 1
        self._enter(members, shares, "resumed" if self.checkpoint else "started")
        self._from = 0
        orders = self._formation(members, shares).begin(self.checkpoint, self.batches, self.reached)
        return [*orders, *self._announce()]

    # ---- requests ----

    def on_request(self, target: DeviceSet, away: tuple[int, ...] = (), reason: str = "asked") -> list[Instruction]:
        """Other devices are wanted; the newest request counts. `away` are executors that shall go."""
        if self.phase in ("done", "failed"):
            return []
        for taken_back in self.goal.ask(target, moves_only=bool(away)):
            if taken_back.executor in self.roster:  # it has not left yet
                self.roster[taken_back.executor].unwanted = False
        self._retry_limits.newcomers.clear()
        self.reason = reason
        for executor in away:
            if executor in self.roster:
                self.roster[executor].unwanted = True
        return self._gather() if self.phase == "gathering" else self._reconcile()

    def on_notice(self, executor: int, reason: str) -> list[Instruction]:
        """An executor was told to go: within a step, even if nobody has come in its place."""
        one = self.roster.get(executor)
        if one is None or one.noticed or self.phase not in ("gathering", "training"):
            return []
        one.noticed, self.reason = True, reason
        notice = Emit("notice", {"executor": executor, "reason": reason})
        if self.phase == "gathering":
            return [notice, *self._recruiting.let_go(executor, reason), *self._gather()]
        attempt = self.attempt
        if one.state != "member" and not (attempt is not None and attempt.switch_sent and executor in attempt.coming):
            one.state = "leaving"
            return [notice, Tell(executor, m.Leave(reason=reason)), *self._reconcile()]
        return [notice, *self._reconcile()]

    def on_stopping(self, is_stopping: bool) -> list[Instruction]:
        """Somebody wants the job to end after a checkpoint; or it goes on, since there cannot be one."""
        self.is_stopping = is_stopping
        if is_stopping and self.attempt is not None and not self.attempt.switch_sent:
            self.attempt = None  # overtaken: nobody has gone over
        return [] if is_stopping else self._reconcile()

    # ---- an attempt ----

    def _reconcile(self) -> list[Instruction]:
        """Take the next step from the executors there are towards those that are wanted."""
        if self.phase != "training" or not self.sealed or self._completion or self.is_stopping:
            return []
        if self.attempt is not None and self.attempt.switch_sent:
            return []
        devices, at_step = self.goal.next(self.step, self.step_s)
        wanted = self.roster.choose(devices, self.members)
        instructions = self._recruiting.call_up(wanted, self.members, self.goal.target)
        ready = self._recruiting.are_there(wanted)
        noticed = {one.executor for one in self.roster if one.noticed}
        change = change_towards(wanted, self.members, ready=ready, noticed=noticed, at_step=at_step)
        if change:
            return instructions + self._attempt(change, self.reason or "asked")
        if self.goal.holds_for_nothing and self.attempt is None:
            return instructions + self._attempt(change, "the plan is given up", self.shares)
        if self.attempt is not None and self.attempt.members != self.members:
            self.attempt = None  # for a target that is not wanted any more
        return instructions

    def _attempt(self, change: Change, reason: str, shares: tuple[int, ...] = ()) -> list[Instruction]:
        """Form the generation that a change leads to, unless that is being done already."""
        old, members, leaving, at_step = self.attempt, change.members, change.leaving, change.at_step
        if old is not None and (old.members, old.leaving, old.at_step) == (members, leaving, at_step) and not shares:
            return []
        shares = shares or self._split(members)
        self.generation += 1
        forming = {*members, change.sender} - {-1}
        self.attempt = Attempt(
            self.generation, members, shares, frozenset(change.coming), leaving, reason, forming, at_step
        )
        return self._formation(members, shares, beyond=at_step).prepare(self.attempt.coming, leaving, change.sender)

    def on_held(self, executor: int) -> list[Instruction]:
        one = self.roster.get(executor)
        if one is None or one.state != "approaching":
            return []
        return self._reconcile() if self._recruiting.arrived(executor) else []

    def on_prepared(self, executor: int, generation: int) -> list[Instruction]:
        attempt = self.attempt
        if attempt is None or attempt.generation != generation or attempt.switch_sent:
            return []
        attempt.forming.discard(executor)
        if attempt.forming:
            return []
        attempt.switch_sent = True
        batch = self.rebatch if attempt.at_step is None else None
        switch = m.Switch(generation=generation, at_step=attempt.at_step, batch=batch)
        return [Tell(member, switch) for member in self.members]

    def on_switched(self, executor: int, switched: m.Switched) -> list[Instruction]:
        if self.attempt is not None and self.attempt.generation == switched.generation:
            self.attempt.switched[executor] = switched
        elif switched.generation == self.current:
            self._recovered[executor] = switched
        return []

    def on_received(self, executor: int, generation: int) -> list[Instruction]:
        attempt = self.attempt
        if executor not in self.roster:
            return []
        if attempt is None or attempt.generation != generation:
            overtaken = generation < self.current and executor not in self.members
            return self._overtake(executor) if overtaken else []
        attempt.received.add(executor)
        return self._recover(attempt.orphaned) if attempt.orphaned else []

    def on_landed(self, executor: int, generation: int) -> list[Instruction]:
        one = self.roster.get(executor)
        if one is not None and self.attempt is not None and self.attempt.generation == generation:
            one.state = "member"
        return []

    def on_sealed(
        self, generation: int, step: int, members: tuple[int, ...] = (), shares: tuple[int, ...] = ()
    ) -> list[Instruction]:
        """The first seal of a generation, as far as somebody has told."""
        attempt = self.attempt
        if attempt is not None and attempt.generation == generation:
            return self._complete(attempt, step)
        if generation > self.current and members:
            return self._follow(generation, members, shares)
        if generation != self.current or self.sealed:
            return []
        for executor in self.members:
            if executor in self.roster and self.roster[executor].state == "held":
                self.roster[executor].state = "member"
        self.sealed = True
        self._retry_limits.broken.clear()
        self._breakage.mend()
        self._reachability.clear()
        events: list[Instruction] = []
        if self._from:
            events = [self._rescale_event(self._from, step, pause_of(self._recovered))]
        else:
            self._retry_limits.newcomers.joined()
        self._from = 0
        return [*events, *self._release_overtaken(), *self._release_leavers(), *self._reconcile()]

    def _follow(self, generation: int, members: tuple[int, ...], shares: tuple[int, ...]) -> list[Instruction]:
        """They have gone over to a generation that an earlier coordinator had prepared."""
        attempt, self.attempt = self.attempt, None
        before, now = self.members, frozenset(members)
        self._enter(members, shares, "a new coordinator", generation=generation)
        self.sealed = True
        for executor in members:
            if executor in self.roster:
                self.roster[executor].state = "member"
        instructions = self._announce(joined=now - frozenset(before))
        for executor in before:
            if executor not in now:
                instructions += self._recruiting.let_go(executor, "left before a new coordinator came")
        gone = [executor for executor in members if executor not in self.roster]
        if gone or (attempt is not None and attempt.switch_sent):
            return [*instructions, *self._recover(f"executor {gone[0]} is gone" if gone else "a new coordinator")]
        return [*instructions, *self._reconcile()]

    def _complete(self, attempt: Attempt, step: int) -> list[Instruction]:
        before, self.attempt = len(self.members), None
        self._retry_limits.unformed.clear()
        if attempt.coming:
            self._retry_limits.newcomers.joined()
        for executor in attempt.members:
            if executor in self.roster:
                self.roster[executor].state = "member"
                if executor in attempt.coming:
                    self.roster[executor].joined_step = step
        if attempt.at_step is not None:
            self.goal.reach(attempt.at_step)
        self.generation = max(self.generation, attempt.generation)
        self._enter(attempt.members, attempt.shares, attempt.reason, generation=attempt.generation)
        self.sealed = True
        self._retry_limits.broken.clear()
        self._reachability.clear()
        pause = pause_of(attempt.switched)
        self._rebalance.switched(pause[0])
        instructions = self._announce(joined=attempt.coming)
        instructions.append(self._rescale_event(before, step, pause))
        for executor in attempt.leaving:
            instructions += self._recruiting.let_go(executor, attempt.reason)
        gone = [executor for executor in attempt.members if executor not in self.roster]
        return [*instructions, *(self._recover(f"executor {gone[0]} is gone") if gone else self._reconcile())]

    # ---- failures ----

    def on_broken(
        self, executor: int, generation: int, reason: str, now: float, unreachable: tuple[int, ...] = ()
    ) -> list[Instruction]:
        """An executor cannot exchange. Usually somebody's end is about to be noticed; if not, form the group again."""
        if not self.sealed or generation == self.current:
            self._reachability.complain(executor, unreachable)
        elif generation > self.current and unreachable:
            # Newcomers go as soon as one of two has said so: training does not wait for them.
            held = {one.executor for one in self.roster if one.state == "held"}
            if strangers := strangers_of(executor, unreachable, held):
                self.attempt = None
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
            return self._overtake(executor) if one.state == "member" or executor in self._overtaken else []
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
        if one is None or self.phase in ("done", "failed"):
            return []
        self._rebalance.forget(executor)
        attempt = self.attempt
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
        holds = one.state == "member" and (
            executor in self.members or (attempt is not None and attempt.switch_sent and executor in attempt.members)
        )
        if holds or (attempt is not None and attempt.switch_sent and executor in attempt.members):
            gave_up: list[Instruction] = []
            if attempt is not None and attempt.switch_sent and executor in attempt.coming:
                gave_up = self._count_stillborn(one, reason, output)
            elif one.joined_step is not None and self.step - one.joined_step < _LASTING_STEPS:
                self._retry_limits.newcomers.lose(executor, self.roster.started, self._retry_limits.now, joined=True)
            return [lost, *gave_up, *self._recover(f"executor {executor} lost: {reason}")]
        return [lost, *self._lost_newcomer(one, reason, output)]

    def _lost_at_end(self, executor: int, reason: str) -> list[Instruction]:
        """Somebody had come to the end. Whoever has not needs to follow only if that one is gone without a result."""
        self._completion.lose(executor)
        if not self._completion:
            return self._recover(reason)
        self._breakage.assume()
        return self._finish_if_done()

    def _lost_newcomer(self, one: Executor, reason: str, output: str) -> list[Instruction]:
        if self.attempt is not None and one.executor in self.attempt.members:
            self.attempt = None
        return [*self._count_stillborn(one, reason, output), *self._reconcile()]

    def _count_stillborn(self, one: Executor, reason: str, output: str) -> list[Instruction]:
        """Newcomers that end one after the other would end for ever. Spares are only started at longer intervals."""
        if not self._lose_early(one) or not self._retry_limits.exhausted:
            return []
        last = output.strip().splitlines()[-1:] or [reason]
        count = self._retry_limits.newcomers.count
        return self._give_up_target(f"newcomers ended before they could join, {count} times in a row: {last[0]}")

    def _lose_early(self, one: Executor) -> bool:
        """One is lost before it was of use. True if it was needed, and is not one of several that met the same."""
        tries = self._retry_limits.newcomers if one.needed else self._retry_limits.spares
        return tries.lose(one.executor, self.roster.started, self._retry_limits.now) and one.needed

    def _unformed(self, reason: str) -> list[Instruction]:
        """A group could not be formed. Training goes on without it, and so the job does not fail of it."""
        self.attempt = None
        if not self._retry_limits.unformed.strike():
            return self._reconcile()
        self._retry_limits.unformed.clear()
        why = f"the group of its executors cannot be formed: {reason}"
        in_vain = bool(self.goal.refused) or self.goal.holds_for_nothing
        gave_up = self._give_up_target(why)
        # They would wait at the plan's step for ever. A recovery tells them, without whoever is out of reach.
        return [*gave_up, *(self._recover(why) if in_vain else self._reconcile())]

    def _recover(self, reason: str) -> list[Instruction]:
        """The next generation is made of all who hold the job's state."""
        attempt, self.attempt = self.attempt, None
        is_first = self.sealed
        candidates = [*(attempt.members if attempt is not None and attempt.switch_sent else ()), *self.members]
        holders = [e for e in dict.fromkeys(candidates) if e in self.roster and self.roster[e].state == "member"]
        # Those who left before this coordinator came wait, with the state, until the others have sealed a step.
        holders = holders or [one.executor for one in self.roster if one.state == "member"]
        holders = holders or sorted(executor for executor in self._overtaken if executor in self.roster)
        if not holders and attempt is not None:
            holders = [e for e in attempt.members if e in attempt.received and e in self.roster]
        if not holders:
            return self._orphan(attempt, reason)
        for executor in holders:
            self.roster[executor].state = "member"
        kept, dropped = tuple(sorted(holders[: self.spec.workers])), holders[self.spec.workers :]
        self._from = self._from or len(self.members)
        self.generation += 1
        self._enter(kept, self._split(kept), reason)
        instructions = self._formation(kept, self.shares).recover()
        for executor in dropped:
            instructions += self._recruiting.let_go(executor, "not needed")
        self._overtaken |= attempt.received if attempt is not None else set()
        self._overtaken -= set(kept)
        # A newcomer that was waiting for state from a group that is no more waits on.
        return [*instructions, *self._announce(), *(self._replace() if is_first else ())]

    def _replace(self) -> list[Instruction]:
        """Newcomers set themselves up while the others do their step again, and can join right after its seal.

        After a first loss only: a step that ends whoever does it shall not end those who are started meanwhile, too.
        """
        if self._completion or self.is_stopping or self._overtaken:
            return []
        devices, _ = self.goal.next(self.step, self.step_s)
        return self._recruiting.call_up(self.roster.choose(devices, self.members), self.members, self.goal.target)

    def _overtake(self, newcomer: int) -> list[Instruction]:
        """It has gone over, with the state, to a generation that will never be: it cannot come back.

        Whoever recovers may be dead as well, and not known to be. Until they have sealed a step it may be the last one.
        """
        self._overtaken.add(newcomer)
        return [*self._release_overtaken(), *self._reconcile()] if self.sealed else []

    def _release_overtaken(self) -> list[Instruction]:
        released, self._overtaken = sorted(self._overtaken), set()
        here = [executor for executor in released if executor in self.roster and executor not in self.members]
        return [one for executor in here for one in self._recruiting.let_go(executor, "the others have gone on")]

    def _orphan(self, attempt: Attempt | None, reason: str) -> list[Instruction]:
        """Nobody is known to hold the state. A newcomer may have got it, and be about to say so."""
        if attempt is None or not attempt.switch_sent or not any(e in self.roster for e in attempt.coming):
            return self._restart(reason)
        self.attempt, attempt.orphaned = attempt, attempt.orphaned or reason
        return []

    def _restart(self, reason: str) -> list[Instruction]:
        if self.headway.restart(self._last or Loss(-1, reason), self.roster.started):
            return self._fail(IsoscaleError(self.headway.account(self.spec.out)))
        self._retry_limits.newcomers.pause(pause_before(self.headway.attempts), self._retry_limits.now)
        self.members, self.shares, self.sealed, self._completion.finished, self._last = (), (), False, {}, None
        self._overtaken = set()
        instructions: list[Instruction] = []
        for one in self.roster:
            if one.state in ("approaching", "held"):
                # What they came for is gone, and they have run too far to begin with the others.
                instructions += self._recruiting.let_go(one.executor, "everybody begins again")
            elif one.state in ("member", "leaving"):
                self.roster.remove(one.executor)
        return [*instructions, Restart(reason)]

    def _count_broken(self, reason: str) -> list[Instruction]:
        if not self._retry_limits.broken.strike():
            return []
        error = ExecutorLostError(
            executor=self.members[0] if self.members else -1,
            pid=0,
            generation=self.current,
            reason=f"the exchange broke {self._retry_limits.broken.count} times although nobody is gone: {reason}",
        )
        return self._fail(error)

    def _lost_before_start(self, one: Executor, reason: str, output: str) -> list[Instruction]:
        """It never came as far as isoscale.run(train): the script itself is at fault, unless it was killed."""
        fault = script_fault(self.spec.script, one.executor, reason, output) if one.hello is None else None
        if fault is not None:
            return self._fail(fault, output if isinstance(fault, UserCodeError) else "")
        if self._lose_early(one) and self._retry_limits.exhausted:
            last = "".join(f" ({line})" for line in output.strip().splitlines()[-1:])
            count = self._retry_limits.newcomers.count
            why = f"{reason}{last}, and executors ended before training {count} times in a row"
            why += f"; see {self.spec.out}/logs/executor-{one.executor}.log"
            return self._fail(ExecutorLostError(executor=one.executor, pid=one.pid, generation=0, reason=why))
        return self._gather()

    # ---- time ----

    def on_tick(self, now: float) -> list[Instruction]:
        """Called every fraction of a second."""
        due = self._retry_limits.tick(now)
        if self.phase == "gathering":
            return self._gather() if due else []
        if self.phase != "training":
            return []
        if self.attempt is not None and self.attempt.orphaned:
            lost, self.attempt = (self.attempt, None) if self.attempt.is_lost(now) else (None, self.attempt)
            return [] if lost is None else self._restart(lost.orphaned)
        if self._breakage.is_overdue(now):
            if self._completion:
                return self._finish_if_done()
            self._breakage.mend()
            outcasts = self._reachability.outcasts([e for e in self.members if e in self.roster])
            if outcasts:
                return [Kill(one.executor, str(one)) for one in outcasts]
            reason = f"the exchange broke: {self._breakage.reason}"
            return self._count_broken(reason) or self._recover(reason)
        if evicted := self._if_evicted(now):
            return evicted
        if due or (self.goal.plan and self.sealed and self.attempt is None):
            return self._reconcile()
        return []

    def _if_evicted(self, now: float) -> list[Instruction]:
        """Everybody was told to go. Until others have come they train on, but not for ever."""
        # Every tick asks: the first one who may stay answers for all.
        present = (one.noticed for e in self.members if (one := self.roster.get(e)) is not None)
        due = self._eviction.look(
            everybody=next(present, False) and all(present) and not self._completion,
            rescued=self.attempt is not None and self.attempt.switch_sent,
            given_up=self.goal.refused,
            step_s=self.step_s,
            now=now,
        )
        return [Ask(due, "all executors were told to go")] if due else []

    def pause_s(self) -> float:
        """How long executors are not started, since others were lost; 0 if they are."""
        limits = self._retry_limits
        return max(tries.waits(limits.now) for tries in (limits.newcomers, limits.spares))

    @property
    def switch_s(self) -> float:
        """How long training stands still when executors come or go, as measured; 0 before the first time."""
        return self._rebalance.pause_s

    def on_step(self, step: int, seconds: float) -> None:
        """A step is committed; `seconds` is what it took."""
        self.step, self.has_stepped = step, True
        self.step_s = seconds if self.step_s == 0 else 0.9 * self.step_s + 0.1 * seconds
        self.headway.commit(step)
        if self._retry_limits.newcomers.troubled and self._has_lasted():
            self._retry_limits.newcomers.clear()

    def _has_lasted(self) -> bool:
        """All that are wanted are there, and have been for some steps."""
        joined = [one.joined_step for e in self.members if (one := self.roster.get(e)) is not None]
        lasted = all(step is None or self.step - step >= _LASTING_STEPS for step in joined)
        return lasted and len(self.members) >= self.goal.devices.total

    def on_beat(self, executor: int, beat: m.Beat) -> list[Instruction]:
        one = self.roster.get(executor)
        if one is None:
            return []
        one.beat = beat
        if not beat.steps or beat.turn_s <= 0:
            return []
        one.turn_s = beat.turn_s if one.turn_s == 0 else 0.5 * one.turn_s + 0.5 * beat.turn_s
        if one.state != "member" or not self.sealed:
            return []
        move = self._rebalance.measure(executor, beat, self.members, self.shares, may_move=self.attempt is None)
        return [] if move is None else self._move(move)

    def _move(self, move: Move) -> list[Instruction]:
        """Logical workers go to others; whoever would keep none leaves."""
        for executor in move.aside:
            self.roster[executor].unwanted = True
            self.goal.aside.append(Aside(executor, self.roster[executor].kind, move.gain))
        staying = tuple(e for e in self.members if e not in move.aside)
        is_slow = move.ratio > self.settings.straggler_ratio
        reason = f"executor {move.slowest} is slow" if is_slow else "speeds have changed"
        reason += ": set aside" if move.aside else ""
        attempt = self._attempt(Change(staying, leaving=move.aside), reason, move.shares)
        return [straggler_event(move.slowest, move.ratio, move.gain, move.shares, move.aside), *attempt]

    # ---- the end ----

    def on_finished(self, finished: m.Finished) -> list[Instruction]:
        if self.phase != "training":
            return []
        self._completion.finished[finished.executor] = finished
        return self._finish_if_done()

    def has_finished(self, executor: int) -> bool:
        return executor in self._completion.finished

    def on_result_saved(self) -> list[Instruction]:
        self._completion.saved = True
        return self._finish_if_done()

    def _finish_if_done(self) -> list[Instruction]:
        """The others may follow whoever came to the end, or be gone."""
        if not self._completion or self.phase != "training":
            return []
        leaving = set(self.attempt.leaving if self.attempt is not None and self.attempt.switch_sent else ())
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
        if one is None or self.phase in ("done", "failed"):
            return []
        if self.phase == "training" and one.state in ("starting", "warm", "approaching", "held"):
            self.roster.remove(failed.executor)
            warning = f"newcomer {failed.executor}: {failed.summary}"
            attempt = self.attempt
            if attempt is not None and attempt.switch_sent and failed.executor in attempt.members:
                # The others have gone over, or will, to a generation that it does not come to.
                gave_up = self._count_stillborn(one, failed.summary, failed.traceback or failed.summary)
                return [Emit("warning", {"message": warning}), *gave_up, *self._recover(warning)]
            return [
                Emit("warning", {"message": warning}),
                *self._lost_newcomer(one, failed.summary, failed.traceback or failed.summary),
            ]
        return self._fail(error_of(failed), failed.traceback)

    # ---- a new coordinator ----

    def on_still_starting(self, executor: int, kind: str, pid: int) -> None:
        """A process that another coordinator had started, and that has not said a word yet."""
        self.roster.adopt(executor, kind).pid = pid

    def on_rejoin(self, rejoin: m.Rejoin) -> None:
        """An executor that another coordinator had started; `adopted` is called when all have been heard."""
        hello = rejoin.hello
        one = self.roster.adopt(hello.executor, hello.kind)
        one.hello, one.pid, one.needed = hello, hello.pid, rejoin.state != "warm"
        one.state = standing_of(rejoin)
        one.noticed = bool(rejoin.noticed)
        self._reference = self._reference or hello
        self.generation = max(self.generation, rejoin.highest, rejoin.generation)
        self._census.count(rejoin)

    def adopted(self, *, saved_digest: str = "") -> list[Instruction]:
        """All that are alive have said who they are: go on with them. There may be a result on disk already."""
        found = self._census
        self.phase, self.reason, self.step = "training", "a new coordinator", max(self.step, found.step)
        self.headway.commit(self.step)
        self.current, self.sealed = found.generation, found.sealed
        self.members, self.shares, self._completion.finished = found.members, found.shares, found.finished
        if found.waits:
            self._breakage.assume("an executor waited for a coordinator")
        self.goal.reach(self.step - 1)
        for one in self.goal.aside:
            if one.executor in self.roster:
                self.roster[one.executor].unwanted = True
        # One whose order to begin was lost with the old coordinator is not there either.
        gone = [e for e in self.members if e not in self.roster or self.roster[e].state != "member"]
        if len(gone) == len(self.members):
            return self._recover("no executor was left")
        if self._completion:
            self._completion.found(saved_digest)
            if gone:
                self._breakage.assume()
            return [*self._announce(), *self._finish_if_done()]
        if gone or self._breakage:
            self._breakage.mend()
            return self._recover(f"executor {gone[0]} is gone" if gone else self._breakage.reason)
        if found.uncertain & set(self.members):
            # They may still go over to what an earlier coordinator had prepared, and nobody knows with whom.
            return self._recover("a new coordinator")
        return [*self._announce(), *self._release_leavers(), *self._reconcile()]

    def on_over(self) -> None:
        """The job had come to its end before this coordinator came, and its result is on disk."""
        self.phase = "done"

    def _release_leavers(self) -> list[Instruction]:
        """Whoever left before this coordinator came is needed until the generation they left for has sealed."""
        if not self.sealed:
            return []
        members = set(self.members)
        left = [one.executor for one in self.roster if one.state == "member" and one.executor not in members]
        return [
            instruction for executor in left for instruction in self._recruiting.let_go(executor, "left for others")
        ]

    # ---- parts ----

    def _split(self, members: tuple[int, ...]) -> tuple[int, ...]:
        if self.sealed and members == self.members:
            return self.shares
        return self._rebalance.split(members, [self.roster[e].kind for e in members])

    def _enter(
        self, members: tuple[int, ...], shares: tuple[int, ...], reason: str, *, generation: int | None = None
    ) -> None:
        self.members, self.shares, self.reason = members, shares, reason
        self.current = generation if generation is not None else self.generation
        self.sealed, self._recovered = False, {}
        self._breakage.mend()
        self._rebalance.begin_anew()
        self.goal.told_anew()

    def _formation(self, members: tuple[int, ...], shares: tuple[int, ...], *, beyond: int | None = None) -> Formation:
        """The newest generation; at `beyond` the plan's change is the one that is being made."""
        hellos = [one.hello if (one := self.roster.get(e)) is not None else None for e in members]
        addresses = addresses_of(hellos, apart=bool(self.settings.storage))
        place = meeting_place(addresses, self.store, self.generation)
        return Formation(self.generation, members, shares, place, self.goal.hold_at(beyond), addresses)

    def _announce(self, joined: frozenset[int] | None = None) -> list[Instruction]:
        fresh = [executor for executor in self.members if joined is None or executor in joined]
        return generation_events(self.current, self.step, self.members, self.shares, self.reason, fresh)

    def _rescale_event(self, before: int, step: int, pause: tuple[float, float]) -> Emit:
        return rescale_event(self.current, before, step, pause, self.members, self.shares, self.reason)

    def _give_up_target(self, why: str) -> list[Instruction]:
        """Stay with what there is, and say how to try again. Who was lost, or was to be replaced, is not."""
        for one in self.roster:
            one.unwanted = False
        wanted, _ = self.goal.next(self.step, self.step_s)
        kinds = [self.roster[e].kind for e in self.members if e in self.roster]
        self._retry_limits.newcomers.clear()
        if self.goal.refused and sorted(kinds) == sorted(wanted):
            return []  # another one of those that it was given up for
        target = str(wanted.total) if len(set(wanted)) == 1 else f"'{wanted}'"
        why = f"{why}; isoscale scale {self.spec.out} {target} tries again"
        self.goal.give_up(why, kinds)
        return [Emit("warning", {"message": f"scaling is given up: {why}"})]

    def _fail(self, error: IsoscaleError, traceback: str = "") -> list[Instruction]:
        self.phase = "failed"
        return [Fail(error=error, traceback=traceback)]
