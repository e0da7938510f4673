"""One executor's part in changes of the job's executors, as a state machine: events in, instructions out. Pure.

Events are the coordinator's orders, what became of groups that were to be formed, and how far the training thread has
come. The training thread also asks what it shall do next (`next_action` and its kind). Knows no thread, socket, clock
or tensor: groups go by the number of their generation, and whoever owns a `MemberState` sees to it that one thread
uses it at a time (`runtime.executor.orders`). The coordinator's side of the protocol is `membership.state_machine`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from isoscale.protocol import messages as m
from isoscale.runtime.executor.generations import Generation, Next, Phase, takes_part
from isoscale.runtime.executor.instructions import (
    Action,
    BreakOff,
    Form,
    GoOver,
    HoldForPlan,
    Instruction,
    Meet,
    Pause,
    Quit,
    Send,
    Train,
)

__all__ = ["MemberState"]


class MemberState:
    def __init__(self, executor: int, term: int = 0) -> None:
        """`term` is the coordinator's."""
        self.executor = executor
        self.term = term
        self.phase: Phase = "warm"
        self.generation = Generation()
        #: committed steps
        self.step = 0
        #: the generation whose group the training thread uses: its own, or that of a recovery in which it agrees
        self.group = 0
        #: the highest generation that it has heard of
        self.highest = 0
        #: the highest generation of its own that has sealed a step
        self.sealed_in = 0
        self.first: m.Begin | m.Approach | None = None
        self.next: Next | None = None
        self.recover: m.Recover | None = None
        #: the newest request for another batch size
        self.rebatch: m.Rebatch | None = None
        #: the exchange is broken, and it waits to be told how to go on
        self.is_broken = False
        #: why it is to end; "" while it is not
        self.leave = ""
        #: whoever waits at a last checkpoint for the end of the job shall not any more
        self.goes_on = False
        self.finished: m.Finished | None = None
        self._save_result = self._dismissed = False

    # ---- what the coordinator says ----

    def on_order(self, message: m.FromCoordinator) -> list[Instruction]:
        match message:
            case m.Begin() | m.Approach():
                self.first = message
            case m.Prepare():
                return self._on_prepare(message)
            case m.Switch():
                if self.next is not None and message.generation == self.next.order.generation:
                    self.next.switch = message
            case m.Rebatch():
                if self.rebatch is None or message.id > self.rebatch.id:
                    self.rebatch = message
            case m.Recover():
                return self._on_recover(message)
            case m.Leave():
                return self._on_leave(message.reason)
            case m.GoOn():
                self.goes_on = True
            case m.Welcome():
                # A successor knows nothing of an end that was asked of the coordinator before it.
                self.goes_on |= message.term > self.term
                self.term = max(self.term, message.term)
            case m.SaveResult():
                self._save_result = True
            case m.Dismiss():
                self._dismissed = True
        return []

    def on_refused(self, reason: str) -> list[Instruction]:
        """The others have gone on without this one, which was taken for dead: end, wherever it is."""
        self.leave = reason
        return [*self._drop_next(), BreakOff(self.group)]

    def _on_prepare(self, order: m.Prepare) -> list[Instruction]:
        if order.generation <= self.highest:
            return []
        self.highest = order.generation
        dropped = self._drop_next()
        self.next = Next(order)
        return [*dropped, Form(order)]

    def _on_recover(self, order: m.Recover) -> list[Instruction]:
        if order.generation <= self.generation.number:
            return []
        self.highest = max(self.highest, order.generation)
        self.recover = order
        return [*self._drop_next(), BreakOff(self.group)]

    def _on_leave(self, reason: str) -> list[Instruction]:
        self.leave = reason
        # Nobody may ever come to a generation that has not sealed a step.
        waits = self.phase == "member" and (self.is_broken or not self.has_sealed)
        return [*([BreakOff(self.group)] if waits else []), *self._drop_next()]

    def _drop_next(self) -> list[Instruction]:
        dropped, self.next = self.next, None
        return [] if dropped is None else [BreakOff(dropped.order.generation)]

    # ---- what became of the next generation's group ----

    def formed(self, order: m.Prepare) -> list[Instruction]:
        if not self.awaits(order):
            return [BreakOff(order.generation)]
        assert self.next is not None
        self.next.formed = True
        return [Send(m.Prepared(generation=order.generation))] if takes_part(order, self.executor) else []

    def not_formed(self, order: m.Prepare, reason: str, unreachable: tuple[int, ...] = ()) -> list[Instruction]:
        if not self.awaits(order):
            return []
        self.next = None
        return [Send(m.Broken(generation=order.generation, reason=reason, unreachable=unreachable))]

    def awaits(self, order: m.Prepare) -> bool:
        """Is this still the generation that is being prepared?"""
        return self.next is not None and self.next.order is order

    # ---- beginning, and newcomers ----

    def begin(self, order: m.Begin) -> list[Instruction]:
        """A member of the first generation, whose group is about to be formed."""
        assert self.phase == "warm"
        self._enter(order, 0)
        return []

    def approach(self) -> list[Instruction]:
        assert self.phase == "warm"
        self.phase = "approaching"
        return []

    def hold(self) -> list[Instruction]:
        """A newcomer has come to where it waits for the job's state."""
        assert self.phase == "approaching"
        self.phase = "held"
        return [Send(m.Held())]

    def incoming(self) -> m.Prepare | None:
        """The generation with which a newcomer gets the state, once its group is there."""
        return self.next.order if self.next is not None and self.next.formed else None

    def received(self, order: m.Prepare, step: int) -> list[Instruction]:
        """A newcomer has the state of so many steps; without effect if another order has come meanwhile."""
        if not self.awaits(order):
            return []
        self.step = step
        self._enter(order, step)
        return [Send(m.Received(generation=order.generation))]

    def not_received(self, order: m.Prepare) -> list[Instruction]:
        if self.awaits(order):
            self.next = None
        return []

    def landed(self) -> list[Instruction]:
        """A newcomer has loaded the state."""
        return [Send(m.Landed(generation=self.generation.number))]

    # ---- between steps ----

    def arrived(self, step: int) -> list[Instruction]:
        """Where executors may join, switch and leave, with so many steps committed."""
        self.step, self.goes_on = step, False
        return []

    def next_action(self) -> Action:
        if self.recover is not None:
            return Meet(self.recover)
        if self.leave:
            return Quit(self.leave)
        if self.next is not None and self.next.agreed:
            return GoOver(self.next.order)
        hold_at = self.generation.hold_at
        return HoldForPlan() if hold_at is not None and self.step >= hold_at else Train()

    def action_in_hold(self) -> Meet | GoOver | None:
        """Of one that holds for a plan's change; None: wait on. Any switch will do, also one that was meant for the
        next seal: all stand at the same step."""
        if self.recover is not None:
            return Meet(self.recover)
        return GoOver(self.next.order) if self.next is not None and self.next.switch is not None else None

    def go_out(self, order: m.Prepare) -> list[Instruction]:
        """It is no member of the next generation: stay, with the state, until the others have sealed a step."""
        self.phase = "leaving"
        if self.next is not None and self.next.order is order:
            self.next.agreed = False
        return []

    def switched(self, order: m.Prepare, pause: Pause) -> list[Instruction]:
        """It has handed the state to newcomers and goes on as a member of the next generation. If a later order has
        overtaken that one, that is found at once: in the group, or between steps."""
        self._enter(order, self.step)
        return [self._say_switched(pause)]

    # ---- seals ----

    def is_ready(self) -> bool:
        """To switch after the next seal."""
        switch = self.next.switch if self.next is not None else None
        # A plan's step may be over: an earlier coordinator ordered that change, and its successor does not know.
        return switch is not None and (switch.at_step is None or self.step > switch.at_step)

    def wish(self) -> m.Rebatch | None:
        """The newest request for another batch size that can be met after the next seal."""
        switch = self.next.switch if self.next is not None and self.is_ready() else None
        known = [one for one in (self.rebatch, switch.batch if switch is not None else None) if one is not None]
        return max(known, key=lambda one: one.id, default=None)

    def sealed(self, step: int, *, all_ready: bool = False) -> list[Instruction]:
        """After every seal; the first one of a generation is news."""
        self.step = step
        if all_ready and self.next is not None and self.next.switch is not None:
            self.next.agreed = True
        if self.has_sealed:
            return []
        now = self.generation
        self.sealed_in = now.number
        return [Send(m.Sealed(generation=now.number, step=now.began_at, members=now.members, shares=now.shares))]

    @property
    def has_sealed(self) -> bool:
        """The present generation has sealed a step."""
        return self.sealed_in == self.generation.number

    # ---- failures ----

    def broke(self) -> list[Instruction]:
        """The exchange broke in a step."""
        self.is_broken = True
        if self.recover is not None:
            return []
        reason = "a peer is gone or cannot be reached"
        return [Send(m.Broken(generation=self.generation.number, reason=reason))]

    def suspects(self, index: int, reason: str) -> list[Instruction]:
        """The member at this position computes other bits."""
        return [Send(m.Suspect(executor=self.generation.members[index], reason=reason))]

    def take_recovery(self) -> m.Recover | None:
        """With whom to go on, once that is known; whoever was on the way out is a member again."""
        if self.recover is not None:
            self.is_broken = True
            self.phase = "member"
        return self.recover

    def is_overtaken(self, order: m.Recover) -> bool:
        return self.recover is not order

    def met(self, order: m.Recover) -> list[Instruction]:
        """The group of a recovery is there; to be given up at once if the order is overtaken."""
        self.group = order.generation
        return [BreakOff(order.generation)] if self.is_overtaken(order) else []

    def not_recovered(self, order: m.Recover, reason: str, unreachable: tuple[int, ...] = ()) -> list[Instruction]:
        """The group was not formed, or broke before all agreed: wait for another order."""
        if not self.is_overtaken(order):
            self.recover = None
        here = order.generation, order.members, order.shares
        self.generation = replace(self.generation, number=here[0], members=here[1], shares=here[2])
        return [Send(m.Broken(generation=order.generation, reason=reason, unreachable=unreachable))]

    def recovered(self, order: m.Recover, pause: Pause) -> list[Instruction]:
        """All have agreed on how far they have come."""
        self._enter(order, self.step)
        return [self._say_switched(pause)]

    # ---- the end ----

    def finish(self, finished: m.Finished) -> list[Instruction]:
        """The training function has returned."""
        self.phase, self.finished = "finished", finished
        return [Send(finished)]

    def take_last_word(self) -> Literal["save", "end"] | None:
        """What one that has finished shall do; None: wait on."""
        if self._save_result:
            self._save_result = False
            return "save"
        return "end" if self._dismissed or self.leave else None

    # ---- a new coordinator ----

    def rejoin(self, hello: m.Hello, noticed: str) -> m.Rejoin:
        """`noticed`: it was told to go, and why."""
        return m.Rejoin(
            hello=hello,
            state=self.phase,
            generation=self.generation.number,
            members=self.generation.members,
            shares=self.generation.shares,
            step=self.step,
            highest=self.highest,
            waiting=self.is_broken,
            sealed=self.has_sealed,
            finished=self.finished,
            noticed=noticed,
        )

    def _enter(self, order: m.Begin | m.Prepare | m.Recover, step: int) -> None:
        number = order.generation
        self.generation = Generation(number, order.members, order.shares, order.hold_at, step)
        self.highest = max(self.highest, number)
        self.phase, self.group, self.is_broken = "member", number, False
        if self.next is not None and self.next.order.generation <= number:
            self.next = None
        if self.recover is not None and self.recover.generation <= number:
            self.recover = None

    def _say_switched(self, pause: Pause) -> Send:
        return Send(
            m.Switched(
                generation=self.generation.number,
                step=self.step,
                left_at=pause.left_at,
                started_at=pause.started_at,
                waited_s=pause.waited_s,
            )
        )
