"""The rescale protocol, sans I/O: which executors train in which generation, and who must be told what.

Events go in (a process came up, said something, is gone; somebody asked for other devices; time passed),
instructions come out, for the shell (`runtime.coordinator`) to perform. The rules:

- A change is an *attempt*: all members of the next generation form its group beside training; when all have,
  the present members are told to switch, and do so together at a seal that shows that all know (or at the step
  that a plan names). Those who leave stay until the new generation has sealed its first step.
- Until the order to switch is out, an attempt is dropped for a newer target. After that it must end first:
  in the new generation's first seal, or in a failure.
- A failure is answered by a *recovery*: the next generation consists of all who hold the job's state and are
  alive. Only then is the target looked at again.
- Whoever has not followed a recovery cannot catch up, and is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from isoscale.errors import ExecutorLostError, IsoscaleError, UserCodeError
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.admission import Differences, refusal_of, script_fault
from isoscale.runtime.attempt import Attempt, PlanEntry, pause_of
from isoscale.runtime.ending import Ending
from isoscale.runtime.instructions import Done, Emit, Fail, Instruction, Kill, ReportedError, Restart, Start, Tell
from isoscale.runtime.orders import Formation, generation_events, rescale_event
from isoscale.runtime.roster import Executor, Roster
from isoscale.scheduling.planner import best_split
from isoscale.scheduling.straggler import StragglerRule
from isoscale.types import JobSpec, Placement, Settings

__all__ = ["Membership", "Phase"]

Phase = Literal["gathering", "training", "done", "failed"]

#: an exchange that broke although nobody is gone is formed again after so long, and so often without a seal in between
_BROKEN_GRACE_S = 3.0
_MAX_BROKEN = 5
#: newcomers that die before they are of use, one after the other, until the target is given up
_MAX_STILLBORN = 3
_MAX_RESTARTS = 3
#: logical workers move if that makes a step this much faster: less is noise, and would go back and forth
_WORTH_MOVING = 1.1
#: newcomers for a planned change are started when it is due in less than this
_LEAD_S = 30.0
_LEAD_STEPS = 20


@dataclass(slots=True)
class Membership:
    spec: JobSpec
    settings: Settings
    target: DeviceSet
    #: accuracy-relevant factors of two executors that may not differ at the job's level
    differences: Differences
    #: prefix of the places where the members of a generation meet
    store: str = "store"
    plan: list[PlanEntry] = field(default_factory=list)
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
    refused: str = ""
    _reference: m.Hello | None = None
    #: executors that an earlier coordinator had told of a generation they were not in yet
    _uncertain: set[int] = field(default_factory=set)
    #: executors know of a step at which they will wait for a change that will not come
    _holds_for_nothing: bool = False
    #: newcomers on their way
    _awaited: set[int] = field(default_factory=set)
    _broken_at: float | None = None
    _broken_reason: str = ""
    _num_broken: int = 0
    _num_unformed: int = 0
    _stillborn: int = 0
    _restarts: int = 0
    #: while executors gather: at least so many must still be set up
    _lacking: int = 0
    _reported: dict[int, m.Beat] = field(default_factory=dict)
    _recovered: dict[int, m.Switched] = field(default_factory=dict)
    _ending: Ending = field(default_factory=Ending)
    _from: int = 0
    _rule: StragglerRule = field(init=False)

    def __post_init__(self) -> None:
        self._rule = StragglerRule(self.settings.straggler_ratio, self.settings.straggler_steps, _WORTH_MOVING)

    # ---- beginning ----

    def begin(self, checkpoint: str = "", step: int = 0) -> list[Instruction]:
        """Gather executors for the target and start training, from a checkpoint or from the beginning."""
        self.phase, self.checkpoint, self.step = "gathering", checkpoint, step
        while self.plan and self.plan[0].step <= step:
            self.target = self.plan.pop(0).devices
        return self._gather()

    def _gather(self) -> list[Instruction]:
        """See to it that all come that the target needs, and begin when they are there."""
        wanted = self.roster.choose(self.target, ())
        for one in self.roster:
            one.needed = one.executor in wanted.coming
        instructions = self._start_missing(wanted.missing)
        return [*instructions, *self._refill_spares(), *self._begin_if_gathered()]

    def on_started(self, executor: int, pid: int) -> list[Instruction]:
        one = self.roster.get(executor)
        if one is None:
            return []
        one.pid = pid
        return [Emit("executor_started", {"executor": executor, "pid": pid, "kind": one.kind})]

    def on_joining(self, kind: str) -> int:
        """Somebody started an executor of this kind by hand: its id. It serves like a spare."""
        return self.roster.add(kind, needed=False).executor

    def on_hello(self, hello: m.Hello) -> list[Instruction]:
        """An executor is set up. Refuse it if it computes other bits."""
        one = self.roster.get(hello.executor)
        if one is None or one.state != "starting" or self.phase in ("done", "failed"):
            return []
        refusal = refusal_of(hello, self._reference, self.spec.determinism, self.differences)
        one.hello, one.pid, one.state = hello, hello.pid, "warm"
        if self._reference is None:
            self._reference = hello
        if refusal is not None:
            if self.phase == "gathering" and one.needed:
                return self._fail(refusal)
            return [Kill(one.executor, str(refusal)), *self._give_up_target(str(refusal)), *self._reconcile()]
        if self.phase == "gathering":
            # Each brings at most one nearer: with ten thousand of them nobody looks at all every time.
            self._lacking -= 1
            return self._begin_if_gathered() if self._lacking <= 0 else []
        if one.needed:
            one.state = "approaching"
            return [Tell(one.executor, m.Approach())]
        return [] if self.settings.spawn else self._reconcile()

    def _begin_if_gathered(self) -> list[Instruction]:
        """The first generation, when all that the target needs are set up."""
        wanted = self.roster.choose(self.target, ())
        self._lacking = len(wanted.missing) + sum(self.roster[e].state != "warm" for e in wanted.coming)
        if self._lacking:
            return []
        self.phase, self.attempt = "training", None
        members = wanted.coming
        for executor in members:
            self.roster[executor].state = "member"
            self.roster[executor].needed = True
        shares = self.first_shares if len(self.first_shares) == len(members) else self._split(members)
        self.generation += 1
        self._enter(members, shares, "resumed" if self.checkpoint else "started")
        self._from = 0
        return [*self._formation(members, shares).begin(self.checkpoint), *self._announce()]

    # ---- requests ----

    def on_request(self, target: DeviceSet, away: tuple[int, ...] = (), reason: str = "asked") -> list[Instruction]:
        """Other devices are wanted; the newest request counts. `away` are executors that shall go."""
        if self.phase in ("done", "failed"):
            return []
        self.target, self.refused, self._stillborn, self.reason = target, "", 0, reason
        for executor in away:
            if executor in self.roster:
                self.roster[executor].unwanted = True
        return self._gather() if self.phase == "gathering" else self._reconcile()

    def on_notice(self, executor: int, reason: str) -> list[Instruction]:
        """An executor was told to go: within a step, even if nobody has come in its place."""
        one = self.roster.get(executor)
        if one is None or one.noticed or self.phase != "training":
            return []
        one.noticed, self.reason = True, reason
        notice = Emit("notice", {"executor": executor, "reason": reason})
        attempt = self.attempt
        if one.state != "member" and not (attempt is not None and attempt.switch_sent and executor in attempt.coming):
            one.state = "leaving"
            return [notice, Tell(executor, m.Leave(reason=reason)), *self._reconcile()]
        return [notice, *self._reconcile()]

    # ---- an attempt ----

    def _reconcile(self) -> list[Instruction]:
        """Take the next step from the executors there are towards those that are wanted."""
        if self.phase != "training" or not self.sealed or self._ending:
            return []
        if self.attempt is not None and self.attempt.switch_sent:
            return []
        goal, at_step = self._goal()
        wanted = self.roster.choose(goal, self.members)
        instructions: list[Instruction] = []
        for executor in wanted.coming:
            one = self.roster[executor]
            one.needed = True
            if one.state == "warm":
                one.state = "approaching"
                instructions.append(Tell(executor, m.Approach()))
        instructions += self._release({*wanted.staying, *wanted.coming})
        instructions += self._start_missing(wanted.missing)
        instructions += self._refill_spares()
        self._awaited = {e for e in wanted.coming if self.roster[e].state != "held"}
        ready = not wanted.missing and not self._awaited
        coming = wanted.coming if ready else ()
        staying = set(wanted.staying)
        leaving = tuple(e for e in self.members if e not in staying)
        if not ready:
            # A notice does not wait for a replacement, unless nobody else is there.
            leaving = tuple(e for e in leaving if self.roster[e].noticed) if wanted.staying else ()
            at_step = None
        going = set(leaving)
        members = (*(e for e in self.members if e not in going), *coming)
        if not coming and not leaving and at_step is None:
            if self._holds_for_nothing and self.attempt is None:
                return instructions + self._attempt(members, (), (), None, "the plan is given up", self.shares)
            if self.attempt is not None and self.attempt.members != self.members:
                self.attempt = None  # for a target that is not wanted any more
            return instructions
        return instructions + self._attempt(members, coming, leaving, at_step, self.reason or "asked")

    def _attempt(
        self,
        members: tuple[int, ...],
        coming: tuple[int, ...],
        leaving: tuple[int, ...],
        at_step: int | None,
        reason: str,
        shares: tuple[int, ...] = (),
    ) -> list[Instruction]:
        old = self.attempt
        if old is not None and (old.members, old.leaving, old.at_step) == (members, leaving, at_step) and not shares:
            return []
        shares = shares or self._split(members)
        self.generation += 1
        self.attempt = Attempt(
            self.generation, members, shares, frozenset(coming), leaving, reason, set(members), at_step
        )
        return self._formation(members, shares, beyond=at_step).prepare(self.attempt.coming, leaving)

    def on_held(self, executor: int) -> list[Instruction]:
        one = self.roster.get(executor)
        if one is None or one.state != "approaching":
            return []
        one.state = "held"
        self._awaited.discard(executor)
        return [] if self._awaited else self._reconcile()

    def on_prepared(self, executor: int, generation: int) -> list[Instruction]:
        attempt = self.attempt
        if attempt is None or attempt.generation != generation or attempt.switch_sent:
            return []
        attempt.forming.discard(executor)
        if attempt.forming:
            return []
        attempt.switch_sent = True
        switch = m.Switch(generation=generation, at_step=attempt.at_step)
        return [Tell(member, switch) for member in self.members]

    def on_switched(self, executor: int, switched: m.Switched) -> list[Instruction]:
        if self.attempt is not None and self.attempt.generation == switched.generation:
            self.attempt.switched[executor] = switched
        elif switched.generation == self.current:
            self._recovered[executor] = switched
        return []

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
        self.sealed, self._num_broken, self._broken_at = True, 0, None
        events: list[Instruction] = []
        if self._from:
            events = [self._rescale_event(self._from, step, pause_of(self._recovered))]
        self._from = 0
        return [*events, *self._release_leavers(), *self._reconcile()]

    def _follow(self, generation: int, members: tuple[int, ...], shares: tuple[int, ...]) -> list[Instruction]:
        """They have gone over to a generation that an earlier coordinator had prepared."""
        attempt, self.attempt = self.attempt, None
        before = self.members
        self._enter(members, shares, "a new coordinator", generation=generation)
        self.sealed = True
        for executor in members:
            if executor in self.roster:
                self.roster[executor].state = "member"
        instructions = self._announce(joined=frozenset(members) - frozenset(before))
        for executor in before:
            if executor not in members:
                instructions += self._let_go(executor, "left before a new coordinator came")
        gone = [executor for executor in members if executor not in self.roster]
        if gone or (attempt is not None and attempt.switch_sent):
            return [*instructions, *self._recover(f"executor {gone[0]} is gone" if gone else "a new coordinator")]
        return [*instructions, *self._reconcile()]

    def _complete(self, attempt: Attempt, step: int) -> list[Instruction]:
        before, self.attempt = len(self.members), None
        self._stillborn = self._num_unformed = 0
        for executor in attempt.members:
            if executor in self.roster:
                self.roster[executor].state = "member"
        if attempt.at_step is not None:
            while self.plan and self.plan[0].step <= attempt.at_step:
                self.target = self.plan.pop(0).devices
        self.generation = max(self.generation, attempt.generation)
        self._enter(attempt.members, attempt.shares, attempt.reason, generation=attempt.generation)
        self.sealed, self._num_broken = True, 0
        instructions = self._announce(joined=attempt.coming)
        instructions.append(self._rescale_event(before, step, pause_of(attempt.switched)))
        for executor in attempt.leaving:
            instructions += self._let_go(executor, attempt.reason)
        gone = [executor for executor in attempt.members if executor not in self.roster]
        return [*instructions, *(self._recover(f"executor {gone[0]} is gone") if gone else self._reconcile())]

    # ---- failures ----

    def on_broken(self, executor: int, generation: int, reason: str, now: float) -> list[Instruction]:
        """An executor cannot exchange. Usually somebody's end is about to be noticed; if not, form the group again."""
        attempt = self.attempt
        concerned = attempt is not None and generation == attempt.generation
        if attempt is not None and concerned and not attempt.switch_sent:
            return self._unformed(reason)
        if not concerned and executor in self.roster and executor not in self.members and generation < self.current:
            # It went over to a generation that a recovery has overtaken.
            return [*self._let_go(executor, "the others have gone on"), *self._reconcile()]
        # Of an attempt that was dropped several may say so; the present generation trains all the same.
        if (concerned or generation == self.current) and self.phase == "training" and self._broken_at is None:
            self._broken_at, self._broken_reason = now, reason
        return self._finish_if_done()

    def on_suspect(self, executor: int, reason: str) -> list[Instruction]:
        """An executor that computes wrong bits goes at once, and is not asked for its state."""
        if executor not in self.roster or self.phase != "training" or self.roster[executor].noticed:
            return []
        self.roster[executor].noticed = True
        return [Emit("suspect", {"executor": executor, "reason": reason}), Kill(executor, reason)]

    def on_lost(self, executor: int, reason: str, output: str = "") -> list[Instruction]:
        """An executor is gone, and dead. `output` is the end of what it printed."""
        one = self.roster.remove(executor)
        if one is None or self.phase in ("done", "failed"):
            return []
        self._reported.pop(executor, None)
        attempt = self.attempt
        if one.state == "leaving" and (attempt is None or executor not in attempt.members):
            return [Emit("executor_left", {"executor": executor, "pid": one.pid, "reason": reason})]
        lost = Emit("executor_lost", {"executor": executor, "pid": one.pid, "reason": reason})
        if self.phase == "gathering":
            return [lost, *self._lost_before_start(one, reason, output)]
        if self._ending and (executor in self._ending.finished or executor in self.members):
            return [lost, *self._lost_at_end(executor, f"executor {executor} lost: {reason}")]
        holds = one.state == "member" and (
            executor in self.members or (attempt is not None and attempt.switch_sent and executor in attempt.members)
        )
        if holds or (attempt is not None and attempt.switch_sent and executor in attempt.members):
            why = f"executor {executor} lost: {reason}"
            gave_up = [] if holds else self._count_stillborn(reason, output)
            return [lost, *gave_up, *self._recover(why)]
        return [lost, *self._lost_newcomer(one, reason, output)]

    def _lost_at_end(self, executor: int, reason: str) -> list[Instruction]:
        """Somebody had come to the end. Whoever has not needs to follow only if that one is gone without a result."""
        self._ending.lose(executor)
        if not self._ending:
            return self._recover(reason)
        self._broken_at = self._broken_at or 0.0
        return self._finish_if_done()

    def _lost_newcomer(self, one: Executor, reason: str, output: str) -> list[Instruction]:
        if self.attempt is not None and one.executor in self.attempt.members:
            self.attempt = None
        return [*self._count_stillborn(reason, output), *self._reconcile()]

    def _count_stillborn(self, reason: str, output: str) -> list[Instruction]:
        """Newcomers that end one after the other would end for ever."""
        self._stillborn += 1
        if self._stillborn < _MAX_STILLBORN:
            return []
        last = output.strip().splitlines()[-1:] or [reason]
        return self._give_up_target(f"{self._stillborn} newcomers ended before they could join: {last[0]}")

    def _unformed(self, reason: str) -> list[Instruction]:
        """A group could not be formed. Training goes on without it, and so the job does not fail of it."""
        self.attempt = None
        self._num_unformed += 1
        if self._num_unformed < _MAX_BROKEN:
            return self._reconcile()
        self._num_unformed = 0
        return [*self._give_up_target(f"the group of its executors cannot be formed: {reason}"), *self._reconcile()]

    def _recover(self, reason: str) -> list[Instruction]:
        """The next generation is made of all who hold the job's state."""
        attempt, self.attempt = self.attempt, None
        candidates = [*(attempt.members if attempt is not None and attempt.switch_sent else ()), *self.members]
        holders = [e for e in dict.fromkeys(candidates) if e in self.roster and self.roster[e].state == "member"]
        if not holders:
            return self._restart(reason)
        kept, dropped = tuple(sorted(holders[: self.spec.workers])), holders[self.spec.workers :]
        self._from = self._from or len(self.members)
        self.generation += 1
        self._enter(kept, self._split(kept), reason)
        instructions = self._formation(kept, self.shares).recover()
        for executor in dropped:
            instructions += self._let_go(executor, "not needed")
        # A newcomer that was waiting for state from a group that is no more waits on.
        return [*instructions, *self._announce()]

    def _restart(self, reason: str) -> list[Instruction]:
        self._restarts += 1
        if self._restarts > _MAX_RESTARTS:
            error = ExecutorLostError(executor=-1, pid=0, generation=self.current, reason=f"all are gone; {reason}")
            return self._fail(error)
        self.members, self.shares, self.sealed, self._ending.finished = (), (), False, {}
        for one in self.roster:
            if one.state in ("approaching", "held", "member", "leaving"):
                self.roster.remove(one.executor)
        return [Restart(reason)]

    def _count_broken(self, reason: str) -> list[Instruction]:
        self._num_broken += 1
        if self._num_broken <= _MAX_BROKEN:
            return []
        error = ExecutorLostError(
            executor=self.members[0] if self.members else -1,
            pid=0,
            generation=self.current,
            reason=f"the exchange broke {self._num_broken} times although nobody is gone: {reason}",
        )
        return self._fail(error)

    def _lost_before_start(self, one: Executor, reason: str, output: str) -> list[Instruction]:
        """It never came as far as isoscale.run(train): the script itself is at fault, unless it was killed."""
        fault = script_fault(self.spec.script, one.executor, reason, output) if one.hello is None else None
        if fault is not None:
            return self._fail(fault, output if isinstance(fault, UserCodeError) else "")
        self._stillborn += 1
        if self._stillborn >= _MAX_STILLBORN:
            return self._fail(ExecutorLostError(executor=one.executor, pid=one.pid, generation=0, reason=reason))
        return self._gather()

    # ---- time ----

    def on_tick(self, now: float) -> list[Instruction]:
        """Called every second or so."""
        if self.phase != "training":
            return []
        if self._broken_at is not None and now - self._broken_at >= _BROKEN_GRACE_S:
            if self._ending:
                return self._finish_if_done()
            self._broken_at = None
            reason = f"the exchange broke: {self._broken_reason}"
            return self._count_broken(reason) or self._recover(reason)
        if self.plan and self.sealed and self.attempt is None:
            return self._reconcile()
        return []

    def on_step(self, step: int, seconds: float) -> None:
        """A step is committed; `seconds` is what it took."""
        self.step = step
        self.step_s = seconds if self.step_s == 0 else 0.9 * self.step_s + 0.1 * seconds
        self._restarts = 0 if self.sealed else self._restarts

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
        self._reported[executor] = beat
        if len(self._reported) < len(self.members):
            return []
        reported, self._reported = self._reported, {}
        if not self.settings.rebalance or self.attempt is not None:
            return []
        turns = {e: b.turn_s for e, b in reported.items()}
        shares = self._rule.observe(turns, min(b.steps for b in reported.values()), self.members, self.shares)
        if shares is None or shares == self.shares:
            return []
        slowest, ratio = self._rule.slowest
        event = Emit("straggler", {"executor": slowest, "ratio": round(ratio, 3), "shares": list(shares)})
        return [event, *self._attempt(self.members, (), (), None, f"executor {slowest} is slow", shares)]

    # ---- the end ----

    def on_finished(self, finished: m.Finished) -> list[Instruction]:
        if self.phase != "training":
            return []
        self._ending.finished[finished.executor] = finished
        return self._finish_if_done()

    def has_finished(self, executor: int) -> bool:
        return executor in self._ending.finished

    def on_result_saved(self) -> list[Instruction]:
        self._ending.saved = True
        return self._finish_if_done()

    def _finish_if_done(self) -> list[Instruction]:
        """The others may follow whoever came to the end, or be gone."""
        if not self._ending or self.phase != "training":
            return []
        leaving = self.attempt.leaving if self.attempt is not None and self.attempt.switch_sent else ()
        done = {*self._ending.finished, *leaving}
        waiting = [e for e in self.members if e in self.roster and e not in done] if self._broken_at is None else []
        instructions = self._ending.conclude(waiting)
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
                gave_up = self._count_stillborn(failed.summary, failed.traceback or failed.summary)
                return [Emit("warning", {"message": warning}), *gave_up, *self._recover(warning)]
            return [
                Emit("warning", {"message": warning}),
                *self._lost_newcomer(one, failed.summary, failed.traceback or failed.summary),
            ]
        if failed.traceback:
            error: IsoscaleError = UserCodeError(
                traceback_text=failed.traceback, logical_rank=failed.logical_rank, executor=failed.executor
            )
            return self._fail(error, failed.traceback)
        return self._fail(ReportedError.of(failed))

    # ---- a new coordinator ----

    def on_still_starting(self, executor: int, kind: str, pid: int) -> None:
        """A process that another coordinator had started, and that has not said a word yet."""
        self.roster.adopt(executor, kind).pid = pid

    def on_rejoin(self, rejoin: m.Rejoin) -> None:
        """An executor that another coordinator had started; `adopted` is called when all have been heard."""
        hello = rejoin.hello
        one = self.roster.adopt(hello.executor, hello.kind)
        one.hello, one.pid, one.needed = hello, hello.pid, rejoin.state != "warm"
        states: dict[str, Literal["warm", "approaching", "held", "member"]] = {
            "warm": "warm",
            "approaching": "approaching",
            "held": "held",
        }
        one.state = states.get(rejoin.state, "member")
        self._reference = self._reference or hello
        self.generation = max(self.generation, rejoin.highest, rejoin.generation)
        self.step = max(self.step, rejoin.step)
        if rejoin.state in ("member", "leaving", "finished") and rejoin.generation >= self.current:
            self.sealed = rejoin.sealed or (self.sealed and rejoin.generation == self.current)
            self.current, self.members, self.shares = rejoin.generation, rejoin.members, rejoin.shares
        if rejoin.finished is not None:
            self._ending.finished[hello.executor] = rejoin.finished
        if rejoin.state == "leaving" or rejoin.highest > rejoin.generation:
            self._uncertain.add(hello.executor)
        if rejoin.waiting:
            self._broken_reason = "an executor waited for a coordinator"
            self._broken_at = self._broken_at or 0.0

    def adopted(self, *, saved_digest: str = "") -> list[Instruction]:
        """All that are alive have said who they are: go on with them. There may be a result on disk already."""
        self.phase, self.reason = "training", "a new coordinator"
        while self.plan and self.plan[0].step < self.step:
            self.target = self.plan.pop(0).devices
        # One whose order to begin was lost with the old coordinator is not there either.
        gone = [e for e in self.members if e not in self.roster or self.roster[e].state != "member"]
        if len(gone) == len(self.members):
            return self._restart("no executor was left")
        if self._ending:
            self._ending.found(saved_digest)
            self._broken_at = 0.0 if gone else self._broken_at
            return [*self._announce(), *self._finish_if_done()]
        if gone or self._broken_at is not None:
            self._broken_at = None
            return self._recover(f"executor {gone[0]} is gone" if gone else self._broken_reason)
        if self._uncertain & set(self.members):
            # They may still go over to what an earlier coordinator had prepared, and nobody knows with whom.
            return self._recover("a new coordinator")
        return [*self._announce(), *self._release_leavers(), *self._reconcile()]

    def _release_leavers(self) -> list[Instruction]:
        """Whoever left before this coordinator came is needed until the generation they left for has sealed."""
        if not self.sealed:
            return []
        members = set(self.members)
        left = [one.executor for one in self.roster if one.state == "member" and one.executor not in members]
        return [instruction for executor in left for instruction in self._let_go(executor, "left for others")]

    # ---- parts ----

    def _goal(self) -> tuple[DeviceSet, int | None]:
        """The devices to work towards, and the step at which a plan wants them."""
        if not self.plan:
            return self.target, None
        entry = self.plan[0]
        steps = entry.step - self.step
        near = steps <= _LEAD_STEPS or (self.step_s > 0 and steps * self.step_s <= _LEAD_S)
        return (entry.devices, entry.step) if near else (self.target, None)

    def _hold_at(self, beyond: int | None = None) -> int | None:
        """The next step at which the plan changes the devices, after the change that is being made."""
        return next((e.step for e in self.plan if beyond is None or e.step > beyond), None)

    def _split(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """Even, unless executors are known to differ by more than a straggler may."""
        times = self.roster.turn_seconds(members)
        if times is None or not self.settings.rebalance or max(times) <= self.settings.straggler_ratio * min(times):
            return Placement.even(self.spec.workers, len(members)).shares
        return best_split(self.spec.workers, times)

    def _enter(
        self, members: tuple[int, ...], shares: tuple[int, ...], reason: str, *, generation: int | None = None
    ) -> None:
        self.members, self.shares, self.reason = members, shares, reason
        self.current = generation if generation is not None else self.generation
        self.sealed, self._broken_at = False, None
        self._holds_for_nothing &= bool(self.plan)
        self._reported, self._recovered = {}, {}

    def _meeting_place(self, members: tuple[int, ...]) -> str:
        """A file on one machine; across machines the store that the first member serves."""
        hellos = [self.roster[e].hello for e in members if e in self.roster]
        machines = {hello.machine for hello in hellos if hello is not None}
        first = hellos[0] if hellos else None
        if len(machines) > 1 and first is not None and first.store:
            return f"{first.store}/{self.store.rpartition('/')[2]}-{self.generation}"
        return f"{self.store}-{self.generation}"

    def _formation(self, members: tuple[int, ...], shares: tuple[int, ...], *, beyond: int | None = None) -> Formation:
        """The newest generation; at `beyond` the plan's change is the one that is being made."""
        return Formation(self.generation, members, shares, self._meeting_place(members), self._hold_at(beyond))

    def _announce(self, joined: frozenset[int] | None = None) -> list[Instruction]:
        fresh = [executor for executor in self.members if joined is None or executor in joined]
        return generation_events(self.current, self.step, self.members, self.shares, self.reason, fresh)

    def _rescale_event(self, before: int, step: int, pause: tuple[float, float]) -> Emit:
        return rescale_event(self.current, before, step, pause, self.members, self.shares, self.reason)

    def _start_missing(self, kinds: tuple[str, ...]) -> list[Instruction]:
        if not self.settings.spawn:
            return []  # somebody will start them and let them join
        return [Start(self.roster.add(kind, needed=True).executor, kind) for kind in kinds]

    def _refill_spares(self) -> list[Instruction]:
        if not self.settings.spares:
            return []
        kind, lacking = self.target.kinds[0], self.settings.spares - len(self.roster.spares())
        return [Start(self.roster.add(kind, needed=False).executor, kind) for _ in range(lacking)]

    def _release(self, wanted: set[int]) -> list[Instruction]:
        """Newcomers that nobody wants any more go; warm ones are spares again."""
        instructions: list[Instruction] = []
        members = set(self.members)
        for one in self.roster:
            if one.executor in wanted or one.executor in members or one.state == "leaving":
                continue
            if one.state in ("approaching", "held"):
                instructions += self._let_go(one.executor, "not wanted any more")
            one.needed = False
        return instructions

    def _let_go(self, executor: int, reason: str) -> list[Instruction]:
        if executor not in self.roster:
            return []
        self.roster[executor].state = "leaving"
        return [Tell(executor, m.Leave(reason=reason))]

    def _give_up_target(self, why: str) -> list[Instruction]:
        """Stay with what there is. Executors that were lost are not replaced either."""
        groups = [(self.roster[e].kind, 1) for e in self.members if e in self.roster]
        self._holds_for_nothing |= bool(self.plan)
        self.refused, self._stillborn, self.plan = why, 0, []
        if groups:
            self.target = DeviceSet(tuple(groups))
        return [Emit("warning", {"message": f"scaling is given up: {why}"})]

    def _fail(self, error: IsoscaleError, traceback: str = "") -> list[Instruction]:
        self.phase = "failed"
        return [Fail(error=error, traceback=traceback)]
