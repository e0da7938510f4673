"""How an executor goes over into the generation that was prepared: hands the state to newcomers, and goes on or leaves.

When, is decided by `runtime.executor.state_machine`.
"""

from __future__ import annotations

from collections.abc import Callable

from isoscale.clock import Instant
from isoscale.core.reduction.exchange import ExchangeBrokenError
from isoscale.protocol import messages as m
from isoscale.runtime.executor.instructions import GoOver, Pause
from isoscale.runtime.executor.orders import Formed, Orders
from isoscale.runtime.executor.recovery import Recoveries
from isoscale.runtime.executor.state_transfer import send_state
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.speed import Pace

__all__ = ["Switching"]


class Switching:
    """On the training thread, between steps."""

    def __init__(self, orders: Orders, recoveries: Recoveries, pace: Pace) -> None:
        self._orders = orders
        self._recoveries = recoveries
        self._pace = pace
        #: facts of the job that no coordinator may have heard yet, as messages
        self.unheard: Callable[[], list[bytes]] = list

    def hold_for_plan(self, loop: TrainingLoop, loader: Loader, interrupted: Callable[[], bool]) -> None:
        """All wait for the plan's change before the next step. `interrupted`: there is something else to do first."""
        left = Instant()
        self._pace.outside()
        if not self._orders.ask(lambda state: state.has_sealed):
            # Nobody seals a step before the plan's change, which waits for this generation's first seal: this is one.
            try:
                loop.engine.exchange.gather_text("")
            except ExchangeBrokenError as broken:
                loop.engine.use(self._recoveries.recover(broken).exchange)
                return
            self._orders.tell(lambda state: state.sealed(loop.step))
        action = self._orders.wait(lambda state: state.action_in_hold() or (interrupted() or None))
        if isinstance(action, GoOver):
            self.go_over(action.order, loop, loader, left, left.seconds_ago())

    def go_over(self, order: m.Prepare, loop: TrainingLoop, loader: Loader, left: Instant, waited_s: float) -> None:
        formed = self._orders.formed(order.generation)
        if order.index < 0:
            self.hand_over_and_leave(order, loop, loader, formed)
            return
        if formed is None or formed.exchange is None:
            return  # another order has overtaken this one
        targets = [i for i, source in order.senders.items() if source == order.index]
        if targets:
            send_state(formed.exchange.group, targets, loop, loader, self.unheard())
        pause = Pause(left.unix, left.unix_now(), waited_s)
        self._orders.tell(lambda state: state.switched(order, pause))
        loop.engine.use(formed.exchange)
        loop.main_objects.handed_over()
        loop.audit_at = loop.step + 1
        self._pace.restart()

    def hand_over_and_leave(self, order: m.Prepare, loop: TrainingLoop, loader: Loader, formed: Formed | None) -> None:
        """One who leaves stays, with the state, until the others have sealed a step without it."""
        self._orders.tell(lambda state: state.go_out(order))
        if formed is not None and formed.handover is not None:
            send_state(formed.handover, range(1, len(order.senders) + 1), loop, loader, self.unheard())
        loop.main_objects.close()  # the others train on meanwhile
        self._orders.wait(lambda state: state.recover)  # or Leaving
