"""How an executor goes on when its exchange broke: with those whom the coordinator names, from where all agree.

Which order counts is decided by `runtime.executor.state_machine`, what was sealed by `runtime.executor.resync`.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

import torch

from isoscale.clock import Instant
from isoscale.core.engine import Recovery, SuspectedError
from isoscale.core.reduction.exchange import Exchange, ExchangeBrokenError
from isoscale.protocol import messages as m
from isoscale.runtime.executor.instructions import Pause
from isoscale.runtime.executor.orders import Leaving, Orders
from isoscale.runtime.executor.resync import FellBehindError, agree
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.speed import Pace
from isoscale.runtime.transport import groups

__all__ = ["Recoveries"]


class Recoveries:
    """On the training thread. `core.engine.Peers`."""

    def __init__(self, orders: Orders, pace: Pace) -> None:
        self._orders = orders
        self._pace = pace
        self.loop: TrainingLoop
        #: the highest step that any of those who agreed has committed
        self._newest_step = 0

    def recover(self, broken: ExchangeBrokenError) -> Recovery:
        """The exchange broke in a step: with whom, and how, to go on."""
        if isinstance(broken, SuspectedError):
            index, reason = broken.index, broken.reason
            self._orders.tell(lambda state: state.suspects(index, reason))
        self._orders.tell(lambda state: state.broke())
        return self.find_others()

    def find_others(self) -> Recovery:
        left, found = Instant(), None
        while found is None:
            found = self._meet(self._orders.wait(lambda state: state.take_recovery()), left)
        self.loop.audit_after_recovery(self._newest_step)
        self.loop.main_objects.recovered()
        self._pace.restart()
        return found

    def _meet(self, order: m.Recover, left: Instant) -> Recovery | None:
        """None if that did not work, or a newer order has come."""
        try:
            exchange = self.connect_unless_newer(order)
            if exchange is None:
                return None
            self._orders.keep(order.generation, exchange)
            self._orders.tell(lambda state: state.met(order))
            if self._orders.ask(lambda state: state.is_overtaken(order)):
                return None
            vector = self.agree(exchange)
        except ExchangeBrokenError as error:
            reason, apart = str(error), groups.unreachable(order)
            self._orders.tell(lambda state: state.not_recovered(order, reason, apart))
            return None
        pause = Pause(left.unix, left.unix_now())
        self._orders.tell(lambda state: state.recovered(order, pause))
        return Recovery(exchange, vector)

    def connect_unless_newer(self, order: m.Recover) -> Exchange | None:
        """The group of a recovery; None when a newer order came first: one of those who were to form it has died, too,
        and whoever waits for a group with it waits for long."""
        formed: Future[Exchange] = Future()

        def form() -> None:
            try:
                formed.set_result(self._orders.connect(order))
            except Exception as error:
                formed.set_exception(error)
            self._orders.wake()

        threading.Thread(target=form, name="form group", daemon=True).start()
        self._orders.wait(lambda state: True if formed.done() or state.is_overtaken(order) else None)
        if formed.done():
            return formed.result()
        formed.add_done_callback(lambda one: None if one.exception() else groups.break_off(one.result()))
        return None

    def agree(self, exchange: Exchange) -> torch.Tensor | None:
        try:
            agreed = agree(exchange, self.loop.engine, self.loop.step)
        except FellBehindError:
            raise Leaving("the others have gone on") from None
        self._newest_step = agreed.newest_step
        return agreed.vector
