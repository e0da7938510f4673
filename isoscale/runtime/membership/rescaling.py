"""From the executors there are to those that are wanted; and, when one is lost, on with those who are left.

`runtime.membership.state_machine` says when. This says how: whom to call up (`recruiting`), how much each hosts
(`rebalance`), which generation to form (`generations`). Pure: gives instructions. Knows nothing of events, nor when a
job is stopped or at its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.membership.change import Attempt, Change, change_towards, pause_of
from isoscale.runtime.membership.generations import Generations, Origin
from isoscale.runtime.membership.instructions import Emit, Instruction
from isoscale.runtime.membership.orders import straggler_event
from isoscale.runtime.membership.reachability import Reachability
from isoscale.runtime.membership.rebalance import Move, Rebalance
from isoscale.runtime.membership.recruiting import Recruiting
from isoscale.runtime.membership.retry_limits import Breakage, RetryLimits
from isoscale.runtime.membership.roster import Roster
from isoscale.runtime.membership.takeover import Census
from isoscale.runtime.membership.target import Aside, Goal
from isoscale.types import JobSpec

__all__ = ["BEGINNINGS", "Rescaling"]

#: why there is a first generation: from nothing, from a checkpoint
BEGINNINGS = ("started", "resumed")

#: an executor that is lost sooner after it came is replaced after a pause
_LASTING_STEPS = 10


@dataclass(slots=True)
class Rescaling:
    spec: JobSpec
    goal: Goal
    generations: Generations
    recruiting: Recruiting
    rebalance: Rebalance
    #: of the exchange of the present generation
    breakage: Breakage
    reachability: Reachability
    #: what the last change was for
    reason: str = ""
    #: committed steps, and seconds of one of late; 0 before the first
    step: int = 0
    step_s: float = 0.0

    @property
    def roster(self) -> Roster:
        return self.recruiting.roster

    @property
    def limits(self) -> RetryLimits:
        return self.recruiting.limits

    @property
    def is_short(self) -> bool:
        """Fewer train than are wanted: who comes has a device to itself."""
        return len(self.generations.members) < self.goal.next(self.step, self.step_s)[0].total

    def stepped(self, step: int, seconds: float) -> None:
        """A step is committed."""
        self.step = step
        self.step_s = seconds if self.step_s == 0 else 0.9 * self.step_s + 0.1 * seconds
        if self.limits.newcomers.troubled and self._has_lasted():
            self.limits.newcomers.clear()

    def is_fresh(self, joined_step: int | None) -> bool:
        """Who came in then may still turn out to be of no use."""
        return joined_step is not None and self.step - joined_step < _LASTING_STEPS

    def _has_lasted(self) -> bool:
        """All that are wanted are there, and have been for some steps."""
        members = self.generations.members
        joined = [one.joined_step for e in members if (one := self.roster.get(e)) is not None]
        return not any(map(self.is_fresh, joined)) and len(members) >= self.goal.devices.total

    # ---- the first generation ----

    def begin_if_gathered(self, shares: tuple[int, ...], origin: Origin) -> list[Instruction]:
        """When all that the target needs are set up. `shares`: where they are not to be chosen."""
        members = self.recruiting.gathered(self.goal.devices)
        if not members:
            return []
        shares = shares if len(shares) == len(members) else self._split(members)
        orders = self.generations.begin(members, shares, origin, self.step, self.goal.hold_at())
        self._entered(BEGINNINGS[bool(origin.checkpoint)])
        return [*orders, *self.announce()]

    # ---- changes ----

    def ask(self, target: DeviceSet, away: tuple[int, ...], reason: str) -> None:
        """Other devices are wanted; the newest request counts. `away` are executors that shall go."""
        self.reason = reason
        self.limits.newcomers.clear()
        taken_back = [aside.executor for aside in self.goal.ask(target, moves_only=bool(away))]
        for executors, unwanted in ((taken_back, False), (away, True)):
            for executor in executors:
                if executor in self.roster:  # it has not left yet
                    self.roster[executor].unwanted = unwanted

    def reconcile(self) -> list[Instruction]:
        """Take the next step from the executors there are towards those that are wanted."""
        generations = self.generations
        if not generations.is_settled or generations.switching is not None:
            return []
        if not generations.sealed and (self.goal.plan or self.goal.holds_for_nothing):
            return []  # whoever holds for a plan's step may go over without a seal, for which others still wait
        members = generations.members
        devices, at_step = self.goal.next(self.step, self.step_s)
        wanted = self.roster.choose(devices, members)
        if generations.sealed:
            instructions = self.recruiting.call_up(wanted, members, self.goal.target)
            ready = self.recruiting.are_there(wanted)
        else:
            # Nobody is started for a step that may end whoever does it (`recover`); who has come may join after it.
            instructions, ready = [], self.recruiting.wait_already(wanted)
        noticed = {one.executor for one in self.roster if one.noticed}
        change = change_towards(wanted, members, ready=ready, noticed=noticed, at_step=at_step)
        if change:
            return instructions + self._attempt(change, self.reason or "asked")
        if self.goal.holds_for_nothing and generations.attempt is None:
            return instructions + self._attempt(change, "the plan is given up", generations.shares)
        if generations.attempt is not None and generations.attempt.members != members:
            generations.drop()  # for a target that is not wanted any more
        return instructions

    def measure(self, executor: int, beat: m.Beat) -> list[Instruction]:
        """A member tells how fast it is."""
        generations = self.generations
        if not generations.sealed:
            return []
        may_move = generations.attempt is None
        move = self.rebalance.measure(executor, beat, generations.members, generations.shares, may_move=may_move)
        return [] if move is None else self._move(move)

    def _move(self, move: Move) -> list[Instruction]:
        """Logical workers go to others; whoever would keep none leaves."""
        for executor in move.aside:
            self.roster[executor].unwanted = True
            self.goal.aside.append(Aside(executor, self.roster[executor].kind, move.gain))
        staying = tuple(e for e in self.generations.members if e not in move.aside)
        is_slow = move.ratio > self.rebalance.settings.straggler_ratio
        reason = f"executor {move.slowest} is slow" if is_slow else "speeds have changed"
        reason += ": set aside" if move.aside else ""
        attempt = self._attempt(Change(staying, leaving=move.aside), reason, move.shares)
        return [straggler_event(move.slowest, move.ratio, move.gain, move.shares, move.aside), *attempt]

    def _attempt(self, change: Change, reason: str, shares: tuple[int, ...] = ()) -> list[Instruction]:
        """Form the generation that a change leads to, unless that is being done already."""
        attempt = self.generations.attempt
        if attempt is not None and attempt.leads_to(change) and not shares:
            return []
        shares = shares or self._split(change.members)
        return self.generations.prepare(change, shares, reason, self.goal.hold_at(change.at_step))

    def complete(self, attempt: Attempt, step: int) -> list[Instruction]:
        """All have gone over, and sealed a step. Those who left are not needed any more."""
        before, pause = len(self.generations.members), pause_of(attempt.switched)
        if attempt.at_step is not None:
            self.goal.reach(attempt.at_step)
        self.generations.complete(attempt, step)
        self._entered(attempt.reason)
        self._works()
        self.limits.unformed.clear()
        if attempt.coming:
            self.limits.newcomers.joined()
        self.rebalance.switched(pause[0])
        rescaled = self.generations.rescaled(before, step, pause, self.reason)
        return [*self.announce(attempt.coming), rescaled, *self._let_go(attempt.leaving, attempt.reason)]

    def give_up(self, why: str) -> list[Instruction]:
        """Stay with what there is, and say how to try again. Who was lost, or was to be replaced, is not."""
        for one in self.roster:
            one.unwanted = False
        wanted, _ = self.goal.next(self.step, self.step_s)
        kinds = [self.roster[e].kind for e in self.generations.present()]
        self.limits.newcomers.clear()
        if self.goal.refused and sorted(kinds) == sorted(wanted):
            return []  # another one of those that it was given up for
        target = str(wanted.total) if len(set(wanted)) == 1 else f"'{wanted}'"
        why = f"{why}; isoscale scale {self.spec.out} {target} tries again"
        self.goal.give_up(why, kinds)
        return [Emit("warning", {"message": f"scaling is given up: {why}"})]

    # ---- failures ----

    def recover(self, holders: list[int], reason: str, *, replace: bool) -> list[Instruction]:
        """The next generation is made of those who hold the job's state; others come in the place of who is lost."""
        # After a first loss only: a step that ends whoever does it shall not end those who are started meanwhile, too.
        replace = replace and self.generations.sealed
        kept, dropped = tuple(sorted(holders[: self.spec.workers])), holders[self.spec.workers :]
        orders = self.generations.recover(holders, kept, self._split(kept), self.goal.hold_at())
        self._entered(reason)
        # A newcomer that was waiting for state from a group that is no more waits on.
        news = [*self._let_go(dropped, "not needed"), *self.announce()]
        return [*orders, *news, *(self._replace() if replace and not self.generations.overtaken else ())]

    def _replace(self) -> list[Instruction]:
        """Newcomers set themselves up while the others do their step again, and can join right after its seal."""
        devices, _ = self.goal.next(self.step, self.step_s)
        members = self.generations.members
        return self.recruiting.call_up(self.roster.choose(devices, members), members, self.goal.target)

    def seal(self, step: int) -> list[Instruction]:
        """The present generation, which is the first one or a recovery, has sealed its first step."""
        if not self.generations.is_recovery:
            self.limits.newcomers.joined()
        events = self.generations.seal(step, self.reason)
        self._works()
        return [*events, *self.release_overtaken(), *self.release_leavers()]

    def release_overtaken(self) -> list[Instruction]:
        return self._let_go(self.generations.release_overtaken(), "the others have gone on")

    def disband(self) -> list[Instruction]:
        """Nobody holds the job's state any more: everybody begins again."""
        self.generations.lose()
        # What these came for is gone, and they have run too far to begin with the others.
        going = [one.executor for one in self.roster if one.state in ("approaching", "held")]
        # Whoever was let go before is not heard of any more, and did not have to be lost for this.
        left = [
            Emit("executor_left", {"executor": one.executor, "pid": one.pid, "reason": "was told to leave"})
            for one in self.roster
            if one.state == "leaving"
        ]
        for one in self.roster:
            if one.state in ("member", "leaving"):
                self.roster.remove(one.executor)
        return [*left, *self._let_go(going, "everybody begins again")]

    # ---- after another coordinator ----

    def adopt(self, found: Census) -> None:
        """Go on with those who were found; nothing is told to anybody yet."""
        self.reason, self.step = "a new coordinator", max(self.step, found.step)
        self.generations.adopt(found)
        if found.waits:
            self.breakage.assume("an executor waited for a coordinator")
        self.goal.reach(self.step - 1)
        for one in self.goal.aside:
            if one.executor in self.roster:
                self.roster[one.executor].unwanted = True

    def follow(self, generation: int, members: tuple[int, ...], shares: tuple[int, ...]) -> list[Instruction]:
        """They have gone over to a generation that an earlier coordinator had prepared."""
        before, now = self.generations.members, frozenset(members)
        self.generations.follow(generation, members, shares)
        self._entered("a new coordinator")
        left = [executor for executor in before if executor not in now]
        return [*self.announce(now - frozenset(before)), *self._let_go(left, "left before a new coordinator came")]

    def release_leavers(self) -> list[Instruction]:
        """Whoever left before this coordinator came is needed until the generation they left for has sealed."""
        if not self.generations.sealed:
            return []
        attempt = self.generations.attempt
        needed = {*self.generations.members, *(attempt.members if attempt is not None else ())}
        return self._let_go([e for e in self.roster.holders() if e not in needed], "left for others")

    # ---- parts ----

    def announce(self, joined: frozenset[int] | None = None) -> list[Instruction]:
        return self.generations.announced(self.step, self.reason, joined)

    def _let_go(self, executors: Iterable[int], reason: str) -> list[Instruction]:
        return [one for executor in executors for one in self.recruiting.let_go(executor, reason)]

    def _split(self, members: tuple[int, ...]) -> tuple[int, ...]:
        if self.generations.sealed and members == self.generations.members:
            return self.generations.shares
        return self.rebalance.split(members, [self.roster[e].kind for e in members])

    def _entered(self, reason: str) -> None:
        """Another generation, and why: what was known of the exchange and the speeds of the last one is void."""
        self.reason = reason
        self.breakage.mend()
        self.rebalance.begin_anew()
        self.goal.told_anew()

    def _works(self) -> None:
        """They reach each other, as a step that was sealed has shown."""
        self.limits.broken.clear()
        self.breakage.mend()
        self.reachability.clear()
