"""Do all executors stand at the same place in the script? Asked at every step, before anything is exchanged.

Each step, of training or evaluation, and the end of training begin by announcing a position, which goes
around while the turns run. Only executors that agree go on to exchange gradients: two that do different
things would otherwise wait for each other for ever, or add what does not belong together.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from isoscale.core.reduction.exchange import Exchange
from isoscale.core.seal import short_hash
from isoscale.errors import PositionError

__all__ = ["PositionGate"]


class PositionGate:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._position = ""
        self._hashes = torch.zeros(0, dtype=torch.int64)
        self._wait: Callable[[], None] | None = None
        self._agreed = True

    def announce(self, position: str) -> None:
        """Say where this executor stands; does not wait for the others."""
        if self._exchange.placement.num_executors == 1:
            return
        self._position = position
        hashes = [0] * self._exchange.placement.num_executors
        hashes[self._exchange.index] = short_hash(position)
        self._hashes = torch.tensor(hashes)
        self._wait = self._exchange.start_sum_int64(self._hashes)

    def agrees(self) -> bool:
        """Wait until all have announced. Called before the first exchange of a step, maybe inside backward."""
        if self._wait is not None:
            self._wait()
            self._wait = None
            self._agreed = len(set(self._hashes.tolist())) == 1
        return self._agreed

    def check(self) -> None:
        """Raise on every executor, naming two positions that differ, unless all agree."""
        if self.agrees():
            return
        other = int((self._hashes != self._hashes[0]).nonzero()[0])
        texts = self._exchange.gather_text(self._position)
        raise PositionError(executor=0, position=texts[0], other_executor=other, other_position=texts[other])
