"""An executor's state machine under its lock, and the groups that it knows by their generation.

The connection's thread, threads that form groups and the training thread all come here; whatever one of them tells or
asks the state machine happens under one lock, and so does what follows from it: messages leave in the order of the
events. Nothing that waits for another executor is done under it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from isoscale.core.reduction.exchange import Exchange, ExchangeBrokenError
from isoscale.errors import ExecutorLostError
from isoscale.protocol import messages as m
from isoscale.runtime.control.executor_link import Link
from isoscale.runtime.executor.generations import hands_over
from isoscale.runtime.executor.instructions import BreakOff, Form, Instruction, Send
from isoscale.runtime.executor.state_machine import MemberState
from isoscale.runtime.transport import groups
from isoscale.types import Settings

__all__ = ["Formed", "Leaving", "Orders"]

Result = TypeVar("Result")


class Leaving(BaseException):
    """Ends the training function of an executor that is not needed any more; scripts that catch errors let it pass."""


@dataclass(slots=True)
class Formed:
    """What this executor has of a generation's group."""

    exchange: Exchange | None = None
    #: a group of its own for the state, where nobody who has it stays
    handover: Any = None

    def break_off(self) -> None:
        groups.break_off(self.exchange)
        if self.handover is not None:
            groups.break_off_handover(self.handover)


class Orders:
    def __init__(self, state: MemberState, settings: Settings, host: str) -> None:
        """`host` is the address under which the other executors reach this one."""
        self.link: Link
        self.executor = state.executor
        self._settings = settings
        self._host = host
        self._changed = threading.Condition()
        #: only with `_changed` held, as are `_groups`
        self._state = state
        self._groups: dict[int, Formed] = {}

    def tell(self, event: Callable[[MemberState], list[Instruction]]) -> None:
        """Something has happened; what is to be done about it is done, or begun, when this returns."""
        with self._changed:
            for instruction in event(self._state):
                self._perform(instruction)
            past = self._forget_past()
            self._changed.notify_all()
        del past  # forgetting a group joins its threads, which nobody shall wait for with the lock held

    def ask(self, question: Callable[[MemberState], Result]) -> Result:
        with self._changed:
            return question(self._state)

    def wait(self, ready: Callable[[MemberState], Result | None]) -> Result:
        """Until `ready` gives something. Ends if this executor is to leave, or if nobody is there to tell."""
        with self._changed:
            while True:
                found = ready(self._state)
                if found is not None:
                    return found
                if self._state.leave:
                    raise Leaving(self._state.leave)
                if self.link.lost_for() > self._settings.orphan_s:
                    raise ExecutorLostError(
                        executor=self.executor,
                        pid=0,
                        generation=self._state.generation.number,
                        reason=f"no coordinator for {self._settings.orphan_s:.0f} s while it was needed",
                    )
                self._changed.wait(0.5)

    def wake(self) -> None:
        """Something has changed that a `ready` looks at and the state machine does not know."""
        with self._changed:
            self._changed.notify_all()

    # ---- groups ----

    def formed(self, generation: int) -> Formed | None:
        """None if it is not there, or broken off."""
        with self._changed:
            return self._groups.get(generation)

    def keep(self, generation: int, exchange: Exchange) -> None:
        """A group that was formed by the training thread: orders break it off from now on."""
        with self._changed:
            self._groups[generation] = Formed(exchange)

    def connect(self, order: m.Prepare | m.Recover | m.Begin) -> Exchange:
        return groups.connect(order, self._host)

    def form(self, order: m.Prepare) -> None:
        """On a thread of its own: the group of the next generation, beside training."""
        formed = Formed()
        try:
            if order.index >= 0:
                formed.exchange = self.connect(order)
            if hands_over(order, self.executor):
                formed.handover = groups.connect_handover(order, self._host)
        except ExchangeBrokenError as error:
            formed.break_off()
            reason = str(error)
            if self.ask(lambda state: state.awaits(order)):
                apart = groups.unreachable(order)
                self.tell(lambda state: state.not_formed(order, reason, apart))
            return
        with self._changed:
            self._groups[order.generation] = formed
            self.tell(lambda state: state.formed(order))

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case Send(message):
                self.link.send(message)
            case Form(order):
                threading.Thread(target=self.form, args=(order,), name="form group", daemon=True).start()
            case BreakOff(generation):
                formed = self._groups.pop(generation, None)
                if formed is not None:
                    formed.break_off()

    def _forget_past(self) -> list[Any]:
        """Groups of generations that are over, and those through which the present one's newcomers got the state."""
        now = self._state.group
        past: list[Any] = [self._groups.pop(number) for number in list(self._groups) if number < now]
        if now in self._groups:
            past.append(self._groups[now].handover)
            self._groups[now].handover = None
        return past
