"""Executors as `membership.state_machine` sees them: what they do on an order, and what they say.

Each of them is the executor's own `executor.state_machine`; only its shell is a model. Orders and reports travel in
queues, one each way per executor; groups form, steps are sealed and state is handed over when all who take part are
there. Any of it may happen in any order, and executors die at any moment. `World.perform` is the coordinator's shell,
and checks every instruction against the rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.executor.generations import takes_part
from isoscale.runtime.executor.instructions import BreakOff, Form, GoOver, HoldForPlan, Meet, Pause, Quit, Send
from isoscale.runtime.executor.instructions import Instruction as ExecutorInstruction
from isoscale.runtime.executor.state_machine import MemberState
from isoscale.runtime.membership.dispatch import dispatch
from isoscale.runtime.membership.headway import Headway
from isoscale.runtime.membership.instructions import Ask, Done, Emit, Fail, Instruction, Kill, Restart, Start, Tell
from isoscale.runtime.membership.state_machine import Membership
from isoscale.runtime.membership.target import Goal, PlanEntry
from isoscale.types import JobSpec, Placement, Settings

NEVER = 10**9
PAUSE = Pause(0.0, 0.1)
NOT_FORMED = "the group was not formed"


@dataclass
class Executor:
    """A process: its state machine, and what its threads are at."""

    executor: int
    kind: str
    core: MemberState = field(init=False)
    #: set up, and has said so
    started: bool = False
    alive: bool = True
    #: the coordinator has been told that it is gone
    buried: bool = False
    #: the group of its generation is formed
    connected: bool = False
    #: and was given up since
    broken_off: bool = False
    #: in the last seal, which others may have left
    entered: bool = False
    #: it has written the result
    wrote: bool = False
    noticed: bool = False
    #: the last generation whose group it had, whatever it has been told since
    trained_in: int = 0
    #: newcomers that one who leaves has still to give the state to, one after the other, for this generation
    to_hand: list[int] = field(default_factory=list)
    handing: int = 0
    inbox: deque[Any] = field(default_factory=deque)
    outbox: deque[Any] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.core = MemberState(self.executor)

    @property
    def state(self) -> str:
        return self.core.phase if self.started else "starting"

    @property
    def generation(self) -> int:
        return self.core.generation.number

    @property
    def members(self) -> tuple[int, ...]:
        return self.core.generation.members

    @property
    def shares(self) -> tuple[int, ...]:
        return self.core.generation.shares

    @property
    def step(self) -> int:
        return self.core.step

    @property
    def prepared(self) -> m.Prepare | None:
        return self.core.next.order if self.core.next is not None else None

    @property
    def holds_state(self) -> bool:
        return self.alive and self.state in ("member", "leaving", "finished")

    @property
    def trains(self) -> bool:
        waits = self.core.is_broken or self.core.recover is not None or self.broken_off
        return self.alive and self.state == "member" and self.connected and not waits

    @property
    def on_hold(self) -> bool:
        hold_at = self.core.generation.hold_at
        return hold_at is not None and self.step >= hold_at

    @property
    def agreed(self) -> bool:
        return self.core.next is not None and self.core.next.agreed

    def say(self, message: Any) -> None:
        self.outbox.append(message)

    def perform(self, instructions: list[ExecutorInstruction]) -> None:
        """The executor's shell. Groups form when the others are there (`World.live`)."""
        for instruction in instructions:
            match instruction:
                case Send(message):
                    self.say(message)
                case Form(order):
                    assert self.prepared is order
                case BreakOff(generation):
                    self.broken_off |= generation == self.core.group
                    if generation == self.handing:
                        self.to_hand.clear()

    def receive(self, message: Any) -> None:
        self.perform(self.core.on_order(message))
        match message:
            case m.Begin():
                self.perform(self.core.begin(message))
                self.perform(self.core.arrived(int(message.checkpoint or 0)))
                self.joined(connected=False)
            case m.Approach():
                self.perform(self.core.approach())

    def joined(self, *, connected: bool = True) -> None:
        """Its state machine has entered a generation."""
        self.connected, self.broken_off, self.entered = connected, False, False
        self.trained_in = self.generation

    def breaks(self) -> None:
        """Its exchange has broken."""
        self.perform(self.core.broke())

    def rejoin(self) -> m.Rejoin:
        return self.core.rejoin(hello_of(self), "SIGTERM" if self.noticed else "")


def hello_of(one: Executor) -> m.Hello:
    return m.Hello(
        executor=one.executor, pid=1000 + one.executor, kind=one.kind, fingerprint="f", kernels={}, factors={}
    )


def finished_of(one: Executor) -> m.Finished:
    return m.Finished(executor=one.executor, step=one.step, digest="d", stop_reason="")


class World:
    def __init__(
        self, target: DeviceSet, *, workers: int = 4, settings: Settings | None = None, plan: tuple[PlanEntry, ...] = ()
    ) -> None:
        self.spec = JobSpec(workers=workers, kinds=("cpu", "cpu-avx2"), out="runs/one")
        self.settings = settings or Settings()
        self.executors: dict[int, Executor] = {}
        self.now = 0.0
        #: the job ends when so many steps are committed
        self.end = NEVER
        #: the step of the newest checkpoint
        self.checkpoint = 0
        self.outcome: Done | Fail | Ask | None = None
        self.restarts = 0
        self.switching: int | None = None
        #: pairs of executors that can open no connection to each other
        self.apart: set[frozenset[int]] = set()
        #: the step and the logical worker whose turn ends its process, whoever hosts it
        self.poison: tuple[int, int] | None = None
        self.events: list[Emit] = []
        self.announced = 0
        #: what happened, for the reader of a failure
        self.story: list[str] = []
        self.membership = self._new_membership(target, list(plan))

    def _new_membership(self, target: DeviceSet, plan: list[PlanEntry]) -> Membership:
        return Membership(self.spec, self.settings, Goal(target, plan), lambda mine, theirs: ())

    def begin(self) -> None:
        self.perform(self.membership.begin())

    @property
    def saved(self) -> bool:
        """The result is on disk."""
        return any(one.wrote for one in self.executors.values())

    # ---- the coordinator's shell ----

    def perform(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if not isinstance(instruction, Emit):
                self.story.append(str(instruction))
            match instruction:
                case Start():
                    assert instruction.executor not in self.executors, "an id was used twice"
                    self.executors[instruction.executor] = Executor(instruction.executor, instruction.kind)
                case Tell():
                    self._check(instruction)
                    one = self.executors[instruction.executor]
                    if one.alive:
                        one.inbox.append(instruction.message)
                case Kill():
                    self.die(self.executors[instruction.executor])
                case Restart():
                    self._check_nobody_holds_the_state()
                    self.restarts += 1
                    assert self.membership.headway.attempts <= 3, "it begins again for ever"
                    self.switching = None
                    self.perform(self.membership.begin(str(self.checkpoint or ""), self.checkpoint))
                case Ask():
                    assert all(self.membership.roster[e].noticed for e in self.membership.members)
                    if instruction.request == "stop":
                        self.outcome = instruction
                    else:
                        self.checkpoint = max(self.checkpoint, *(one.step for one in self.alive() if one.trains), 0)
                case Done():
                    assert self.saved, "done before the result was saved"
                    self.outcome = instruction
                case Fail():
                    self.outcome = instruction
                case Emit():
                    self.events.append(instruction)
                    if instruction.event in ("generation", "rescale"):
                        assert sum(instruction.fields["shares"]) == self.spec.workers
                        assert len(instruction.fields["shares"]) == len(instruction.fields["members"])

    def _check(self, tell: Tell) -> None:
        """The rules that every order keeps."""
        message, one = tell.message, self.executors[tell.executor]
        if isinstance(message, m.Begin | m.Prepare | m.Recover):
            assert sum(message.shares) == self.spec.workers
            assert min(message.shares) >= 1
            assert len(message.shares) == len(message.members) == len(set(message.members))
            assert message.index < 0 or message.members[message.index] == tell.executor
            assert message.generation >= self.announced, "generations must increase"
            if message.generation == self.announced:
                assert self.announced_members == message.members, "one generation, two lists of members"
            self.announced, self.announced_members = message.generation, message.members
            for member in message.members:
                self._check_member(member, message)
        if isinstance(message, m.Recover):
            self.switching = None
        if isinstance(message, m.Switch):
            assert self.switching in (None, message.generation), "two orders to switch at once"
            self.switching = message.generation
        if isinstance(message, m.Leave) and one.holds_state:
            others = [e for e in self.executors.values() if e is not one and _may_hold(e)]
            assert others, f"executor {one.executor} is told to leave, and nobody else holds the state"

    def _check_nobody_holds_the_state(self) -> None:
        """Whatever a restart throws away, nobody who is alive has it, and has not been told to go."""
        told = {one.executor for one in self.executors.values() if one.core.leave or _is_told_to_leave(one)}
        holders = [one.executor for one in self.alive() if one.holds_state and one.executor not in told]
        story = "\n".join(self.story[-40:])
        assert not holders, f"executors {holders} hold the state, and the job begins again\n{story}"

    def _check_member(self, executor: int, message: m.Begin | m.Prepare | m.Recover) -> None:
        known = self.membership.roster.get(executor)
        assert known is not None, f"executor {executor} is gone and a member of generation {message.generation}"
        if isinstance(message, m.Recover):
            assert known.state == "member"
        elif isinstance(message, m.Prepare):
            assert known.state == "held" or executor in self.membership.members

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.membership.on_tick(self.now))

    def request(self, target: DeviceSet, away: tuple[int, ...] = ()) -> None:
        self.story.append(f"request {target} away {away}")
        self.perform(self.membership.on_request(target, away))

    def replace_coordinator(self) -> None:
        """Another one takes over: everybody who is set up says who they are, then it goes on."""
        self.story.append("new coordinator")
        old = self.membership
        self.membership = self._new_membership(old.goal.target, old.goal.plan)
        self.membership.goal.aside = old.goal.aside
        self.membership.roster.reserve(len(self.executors))
        # What the event log tells it.
        self.membership.headway = Headway(old.headway.reached, old.headway.attempts)
        self.switching = None
        for one in self.executors.values():
            one.inbox.clear()  # orders of a coordinator that is gone do not arrive any more
            if not one.alive:
                one.buried = True
                one.outbox.clear()
            elif one.state == "starting":
                self.membership.on_still_starting(one.executor, one.kind, 1)
        for one in self.executors.values():
            if one.alive and one.state != "starting":
                self.membership.on_rejoin(one.rejoin())
        if any(one.alive for one in self.executors.values()):
            # Reports that were on their way come after.
            known = [one.core.highest for one in self.executors.values() if one.alive]
            self.announced = max([one.generation for one in self.executors.values() if one.alive] + known)
            self.perform(self.membership.adopted(saved_digest="d" if self.saved else ""))
        else:
            self.announced = 0
            self.perform(self.membership.begin(str(self.checkpoint or ""), self.checkpoint))

    # ---- things that happen ----

    def die(self, one: Executor, unsent: int = 0) -> None:
        """SIGKILL: the last `unsent` of its reports are lost."""
        if not one.alive:
            return
        self.story.append(f"executor {one.executor} dies in state {one.state}")
        one.alive = False
        one.inbox.clear()
        for _ in range(min(unsent, len(one.outbox))):
            one.outbox.pop()
        one.say("lost")

    def deliver(self, one: Executor) -> None:
        one.receive(one.inbox.popleft())

    def report(self, one: Executor) -> None:
        message, membership = one.outbox.popleft(), self.membership
        if message != "lost" and not isinstance(message, m.Beat):
            self.story.append(f"{one.executor}: {message}")
        match message:
            case "lost":
                one.buried = True
                self.story.append(f"{one.executor} is buried")
                self.perform(membership.on_lost(one.executor, "killed"))
            case m.Hello():
                self.perform(membership.on_hello(message))
            case m.StepDone():
                membership.on_step(message.step, 0.1)
            case m.Beat():
                self.perform(membership.on_beat(one.executor, message))
            case m.Saved():
                self.perform(membership.on_result_saved())
            case _:
                if isinstance(message, m.Sealed) and message.generation == self.switching:
                    self.switching = None
                self.perform(dispatch(membership, one.executor, message, self.now))

    def notice(self, one: Executor) -> None:
        """SIGTERM."""
        one.noticed = True
        one.say(m.Notice(reason="SIGTERM"))

    def members_of(self, generation: int) -> list[Executor]:
        """All who are in this generation and can exchange, if that is everybody who belongs to it; else none."""
        inside = [one for one in self.executors.values() if one.generation == generation and one.trains]
        if not inside or {one.executor for one in inside} != set(inside[0].members):
            return []
        return sorted(inside, key=lambda one: inside[0].members.index(one.executor))

    def live(self, one: Executor) -> bool:
        """Whatever an executor can do by itself, next; False if nothing."""
        if not one.alive:
            return False
        core = one.core
        if one.state == "starting":
            one.started = True
            one.say(hello_of(one))
        elif one.state in ("member", "leaving"):
            return self._live_as_member(one)
        elif one.state == "finished":
            return self._live_at_end(one)
        elif core.leave:
            self.die(one)
        elif one.state == "approaching":
            one.perform(core.hold())
        else:
            return self._form(one)
        return True

    def _live_at_end(self, one: Executor) -> bool:
        word = one.core.take_last_word()
        if word == "save":
            one.wrote = True
            one.say(m.Saved(step=one.step, path="final.pt", seconds=0.0))
        elif word == "end":
            self.die(one)
        return word is not None

    def _live_as_member(self, one: Executor) -> bool:
        action = one.core.next_action()
        if isinstance(action, HoldForPlan):
            action = one.core.action_in_hold() or action
        match action:
            case Meet():
                return self._meet(one)
            case Quit():
                self.die(one)
            case _ if one.state == "member" and not one.connected:
                return self._connect(one)
            case _ if one.trains and not self._is_whole(one):
                one.breaks()
            case GoOver(order) if one.trains:
                self._go_over(one, order)
            case _ if one.to_hand:
                self._hand_over(one)
            case _:
                return self._form(one)
        return True

    def _is_whole(self, one: Executor) -> bool:
        """Nobody of its generation is dead, has given the exchange up or has gone elsewhere; as far as it can see."""
        if one.agreed or (one.on_hold and one.core.has_sealed):
            return True  # it exchanges nothing
        others = [self.executors[e] for e in one.members if e != one.executor]
        return all(other.trains and other.generation == one.generation for other in others)

    def _connect(self, one: Executor) -> bool:
        others = [self.executors[e] for e in one.members]
        apart = self._are_apart(one.members)
        if not apart and all(o.alive and o.state == "member" and o.generation == one.generation for o in others):
            for o in others:
                o.connected = True
            return True
        if (apart or any(not o.alive or o.generation > one.generation for o in others)) and not one.core.is_broken:
            one.breaks()  # in the first step
            return True
        return False

    def _form(self, one: Executor) -> bool:
        """The group of the next generation forms when all have the order; it fails if one will not come."""
        order = one.prepared
        if order is None or not takes_part(order, one.executor) or (one.core.next is not None and one.core.next.formed):
            return False
        generation = order.generation
        members = [self.executors[e] for e in (*order.members, *((order.sender,) if order.sender >= 0 else ()))]
        have = [(o, o.prepared) for o in members if o.alive]
        ready = [(o, mine) for o, mine in have if mine is not None and mine.generation == generation]
        apart = self._are_apart(tuple(o.executor for o in members))
        if len(ready) == len(members) and not apart:
            for o, mine in ready:
                o.perform(o.core.formed(mine))
            return True
        late = [o for o in members if o not in [o for o, _ in ready]]
        if any(not o.alive or o.core.highest > generation or o.core.leave for o in late) or (apart and not late):
            for o, mine in ready:
                o.perform(o.core.not_formed(mine, NOT_FORMED, self._cut_off(o, mine)))
            return True
        return False

    def _meet(self, one: Executor) -> bool:
        """Those who recover agree on how far they have come."""
        order = one.core.take_recovery()
        assert order is not None
        members = [self.executors[e] for e in order.members]
        have = [
            o
            for o in members
            if o.alive
            and o.core.recover is not None
            and o.core.recover.generation == order.generation
            and o.state in ("member", "leaving")
        ]
        apart = self._are_apart(order.members)
        if len(have) == len(members) and not apart:
            for o in have:
                mine = o.core.take_recovery()
                assert mine is not None
                o.perform(o.core.met(mine))
            newest = max(o.step for o in have)
            behind = [o for o in have if o.step < newest and not (o.step == newest - 1 and o.entered)]
            if behind:
                # One that had not gone over when the others sealed a step without it.
                for o in behind:
                    assert o.trained_in < max(other.trained_in for other in have), "somebody cannot follow"
                    self.die(o)
                self._cannot_meet([o for o in have if o not in behind])
                return True
            for o in have:
                self._go_on(o, newest)
            return True
        late = [o for o in members if o not in have and not (o.alive and any(self._is_for(x, order) for x in o.inbox))]
        if late or (apart and len(have) == len(members)):
            self._cannot_meet(have)
            return True
        return False

    @staticmethod
    def _go_on(one: Executor, newest: int) -> None:
        order = one.core.recover
        assert order is not None
        one.perform(one.core.recovered(order, PAUSE))
        one.joined()
        if one.step < newest:
            one.perform(one.core.sealed(newest))  # as luckier ones have seen it

    def _cannot_meet(self, have: list[Executor]) -> None:
        for o in have:
            order = o.core.take_recovery()
            assert order is not None
            o.connected = True
            o.perform(o.core.not_recovered(order, NOT_FORMED, self._cut_off(o, order)))

    def _are_apart(self, members: tuple[int, ...]) -> bool:
        return any(pair <= set(members) for pair in self.apart)

    def _cut_off(self, one: Executor, order: m.Prepare | m.Recover) -> tuple[int, ...]:
        return tuple(e for e in order.members if frozenset((one.executor, e)) in self.apart)

    @staticmethod
    def _is_for(message: Any, order: m.Recover) -> bool:
        return isinstance(message, m.Recover) and message.generation == order.generation

    def _go_over(self, one: Executor, order: m.Prepare) -> None:
        assert one.core.next is not None
        assert one.core.next.formed or not takes_part(order, one.executor), "a switch before all have prepared"
        if order.index < 0:
            one.perform(one.core.go_out(order))
            if order.sender == one.executor:
                one.to_hand, one.handing = [order.members[i] for i in sorted(order.senders)], order.generation
            return
        one.perform(one.core.switched(order, PAUSE))
        one.joined()
        for i, source in order.senders.items():
            if source == order.index:
                self._give(one, order.members[i], order.generation)

    def _hand_over(self, one: Executor) -> None:
        """To the next newcomer; one that is gone breaks the group through which the rest would get it."""
        fresh = self.executors[one.to_hand.pop(0)]
        if not fresh.alive:
            one.to_hand.clear()
        else:
            self._give(one, fresh.executor, one.handing)

    def _give(self, one: Executor, newcomer: int, generation: int) -> None:
        fresh = self.executors[newcomer]
        order = fresh.core.incoming()
        if fresh.alive and fresh.state == "held" and order is not None and order.generation == generation:
            fresh.perform(fresh.core.received(order, one.step))
            fresh.joined()
            fresh.perform(fresh.core.landed())
            fresh.perform(fresh.core.arrived(one.step))

    def seal(self, generation: int, lucky: set[int] | None = None) -> bool:
        """All of a generation commit a step. With `lucky` only those hear of it: somebody has died meanwhile."""
        group = self.members_of(generation)
        if not group or any(one.on_hold or one.agreed for one in group) or group[0].step >= self.end:
            if group and all(one.on_hold for one in group) and not group[0].core.has_sealed:
                for one in group:  # a seal without a step, for a plan's change that waits for one
                    one.perform(one.core.sealed(one.step))
                return True
            return False
        if self.poison is not None and group[0].step + 1 == self.poison[0]:
            host = Placement(shares=group[0].shares).executor_of(self.poison[1])
            self.die(self.executors[group[0].members[host]])
            return True
        all_ready = all(one.core.is_ready() for one in group)
        for one in group:
            if lucky is None or one.executor in lucky:
                one.perform(one.core.sealed(one.step + 1, all_ready=all_ready))
            else:
                one.entered = True
        if lucky is None or group[0].executor in lucky:
            group[0].say(
                m.StepDone(step=group[0].step, epoch=0, loss=None, seconds=0.1, samples=1, generation=1, total=0)
            )
        return True

    def finish(self, generation: int, lucky: set[int] | None = None) -> bool:
        group = self.members_of(generation)
        if not group or group[0].step < self.end or any(one.agreed for one in group):
            return False
        for one in group:
            if lucky is not None and one.executor not in lucky:
                continue
            if one is group[0]:
                one.wrote = True
                one.say(m.Saved(step=one.step, path="final.pt", seconds=0.0))
            one.perform(one.core.finish(finished_of(one)))
        return True

    def generations(self) -> list[int]:
        return sorted({one.generation for one in self.executors.values() if one.trains})

    def settle(self) -> None:
        """No more faults: everything that can happen does, until nothing does."""
        self.settle_until(lambda: False)

    def settle_until(self, enough: Callable[[], bool]) -> None:
        idle = 0
        for _ in range(5000):
            if self.outcome is not None or enough():
                return
            lived = [self.live(one) for one in list(self.executors.values())]
            if any(lived) | self.talk():
                idle = 0
                continue
            if self.calm() and self.end == NEVER and not self.membership.goal.plan:
                return
            sealed = [self.seal(g) or self.finish(g) for g in self.generations()]
            idle = 0 if any(sealed) else idle + 1
            self.tick(0.5)
            if idle > 200:  # longer than any pause before another try
                return
        raise AssertionError("it never ends\n" + "\n".join(self.story[-60:]))

    def talk(self) -> bool:
        moved = False
        for one in list(self.executors.values()):
            while one.inbox:
                self.deliver(one)
                moved = True
            while one.outbox:
                self.report(one)
                moved = True
        return moved

    def calm(self) -> bool:
        membership = self.membership
        return (
            membership.phase == "training"
            and membership.sealed
            and membership.attempt is None
            and not membership.pause_s()
            and not any(one.inbox or one.outbox for one in self.executors.values())
            and bool(self.members_of(membership.current))
        )

    def alive(self) -> Iterator[Executor]:
        return (one for one in self.executors.values() if one.alive)


def _is_told_to_leave(one: Executor) -> bool:
    return any(isinstance(message, m.Leave) for message in one.inbox)


def _may_hold(one: Executor) -> bool:
    """Holds the state, as far as the coordinator can know."""
    return one.state in ("member", "leaving", "finished") and not one.buried
