"""How an executor that comes later gets the job's state, and where it loads it.

It runs the script alone, to no effect, to the place where newcomers wait; takes the state from one who has it; and
goes on to the place in the script at which that was taken. Members that begin from a checkpoint land in the same way.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from isoscale.backends.system import restore_priority
from isoscale.core.reduction.exchange import Exchange, ExchangeBrokenError
from isoscale.errors import IsoscaleError
from isoscale.protocol import messages as m
from isoscale.runtime.executor.orders import Orders
from isoscale.runtime.executor.state_transfer import receive_state
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.snapshot import epoch_of, is_place_of, load_snapshot, position_of
from isoscale.runtime.training.speed import Pace

__all__ = ["Newcomer"]

#: bytes that are used at once, less than the allocator gives back, and in all; how many times the parameters' bytes
_BLOCK, _MOST, _USES = 2**24, 2**30, 3


class Newcomer:
    """On the training thread."""

    def __init__(self, orders: Orders, pace: Pace) -> None:
        self._orders = orders
        self._pace = pace
        self.loop: TrainingLoop
        #: the job's state, received or read but not loaded yet
        self.staged: dict[str, Any] | None = None
        #: facts of the job before it came, which no coordinator may have heard yet
        self._unheard: list[bytes] = []
        #: with whom to go on when it is loaded
        self._landing: Exchange | None = None

    def hold(self) -> int | None:
        """Wait for the job's state, if this executor comes later; the epoch to go on in."""
        if self._orders.ask(lambda state: state.phase) == "approaching":
            self._use_memory()
            self._orders.tell(lambda state: state.hold())
            while self.staged is None:
                self.receive_state()
        return epoch_of(self.staged) if self.staged is not None else None

    def _use_memory(self) -> None:
        """As much as gradients, buckets and an optimizer need is used once now: the first use of memory takes longer
        than what is done with it, and the others would wait. The allocator keeps it (`backends.local.ALLOCATOR`)."""
        params = [param for model in self.loop.engine.models for param in model.params if param.device.type == "cpu"]
        size = sum(param.nbytes for param in params if param.nbytes < _BLOCK)
        blocks = [torch.empty(_BLOCK, dtype=torch.uint8) for _ in range(min(_USES * size, _MOST) // _BLOCK)]
        for block in blocks:
            block.zero_()

    def receive_state(self) -> None:
        """Once; it is tried again with the next generation that is prepared."""
        order = self._orders.wait(lambda state: state.incoming())
        formed = self._orders.formed(order.generation)
        if formed is None or formed.exchange is None:
            return
        source = order.senders[order.index]
        group = formed.handover if source < 0 else formed.exchange.group
        restore_priority()  # the others are about to wait for this one
        try:
            staged, unheard = receive_state(group, max(source, 0))
        except ExchangeBrokenError:
            self._orders.tell(lambda state: state.not_received(order))
            return
        step = int(staged["step"])
        self._orders.tell(lambda state: state.received(order, step))
        if self._orders.ask(lambda state: state.generation.number) != order.generation:
            return
        self.staged, self._unheard, self._landing = staged, unheard, formed.exchange
        self.loop.audit_at = step + 1
        self._pace.restart()

    def not_come_by(self) -> IsoscaleError:
        """The script is past the place at which the state was taken, or has ended."""
        place = position_of(self.staged or {})
        return self.loop.engine.turn.error(
            f"the job's state is of {place['loader']} in epoch {place['epoch']}, which this start does not come by",
            "make loaders before the loop over epochs, so that every start has the same ones",
        )

    def land(self, loader: Loader) -> bool:
        """At a training loader with the state in hand: load it, if this is the place it was taken at."""
        loop = self.loop
        assert self.staged is not None
        if not is_place_of(self.staged, loader):
            loader.end_pass()
            return False
        if loop.epoch != epoch_of(self.staged):
            raise self.not_come_by()
        load_snapshot(loop, loader, self.staged)
        self.staged = None
        loop.approaching = False
        for frame in self._unheard:
            # In case that it is the first one before anybody was told.
            loop.facts.tell(partial(self._orders.link.send_fact, m.decode_from_executor(frame)), is_main=False)
        self._unheard = []
        if self._landing is not None:
            loop.engine.use(self._landing)
            self._landing = None
            self._orders.tell(lambda state: state.landed())
        return True
