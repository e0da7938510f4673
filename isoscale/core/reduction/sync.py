"""From the gradients of local turns to the average over all logical workers, for one model.

Keeps the bucket layout, holds contributions until they may be summed, and starts the exchange of a
bucket as soon as the last local turn has filled it. How one bucket is summed is `core.reduction.bucket_sync`'s;
turns' rules, buffers and random streams are no business of this module. Scaling is stock DDP's: every
contribution times 1/N in order `ddp`; the finished sum times 1/N in order `tree` (float16, which would
overflow, is scaled before).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from isoscale.core.reduction.bucket_sync import BucketSync, bucket_sync
from isoscale.core.reduction.buckets import BucketCaps, Layout, first_layout, rebuilt_layout
from isoscale.core.reduction.exchange import Exchange, ExchangeBrokenError, denormals_kept
from isoscale.types import Order

__all__ = ["GradientSync"]


class GradientSync:
    def __init__(
        self,
        params: Sequence[torch.nn.Parameter],
        caps: BucketCaps,
        *,
        find_unused: bool,
        order: Order,
        exchange: Exchange,
    ) -> None:
        self._params = params
        self._caps = caps
        self._exchange = exchange
        self._order = order
        self._waits: list[Callable[[], None]] = []
        self._buckets: list[BucketSync] = []
        self._broken: ExchangeBrokenError | None = None
        #: False once somebody kept what was lent beyond a step: copies cost less than memory of one's own
        self._lends = True
        self.layout = first_layout(params, caps, find_unused=find_unused)
        self._prepare()

    def use(self, layout: Layout) -> None:
        self.layout = layout
        self._prepare()

    def move(self, exchange: Exchange) -> object:
        """Go on with another exchange. Returns what the one before may still write to: keep it until that is closed."""
        before, self._exchange = self._buckets, exchange
        self._prepare()
        return before

    def rebuild(self, ready_order: Sequence[int]) -> None:
        """Adopt the layout that stock DDP builds from rank 0's order of readiness."""
        if not self.layout.final:
            self.use(rebuilt_layout(self._params, ready_order, self._caps))

    def begin_step(self) -> None:
        self._waits = []
        self._armed = False
        self._broken = None
        for b, bucket in enumerate(self._buckets):
            if bucket.memory is not None and bucket.memory.is_borrowed:
                # What the last step gave is still in use, by gradients that were not cleared or by whoever kept them.
                self._buckets[b] = bucket_sync(self.layout.buckets[b], self._params, self._exchange, self._order)
                self._lends = False
        for bucket in self._buckets:
            bucket.begin_step()

    def lend(self, index: int, like: torch.Tensor) -> torch.Tensor | None:
        """A parameter's result as memory that is the caller's, in place of a copy into `like`; None: copy it.

        The memory is taken back when nobody has it any more; as long as somebody does, other memory is used.
        """
        b, place = self._place_of[index]
        memory = self._buckets[b].memory
        if memory is None or not self._lends or self._exchange.broken:
            return None
        return memory.lend(place, like)

    def take(self, logical_rank: int, grads: list[torch.Tensor]) -> None:
        """A finished turn's gradients, one per parameter; they are only read."""
        for bucket in self._buckets:
            bucket.take(logical_rank, [grads[i] for i in bucket.members])

    def arm(self, logical_rank: int, launch_if: Callable[[], bool]) -> bool:
        """Before the last local turn: exchange buckets from `ready` on. False if the order of things forbids it.

        `launch_if` is asked before the first bucket leaves; if it says no, none does, and the caller must not finish.
        """
        self._armed = self._exchange.overlaps
        if self._armed:
            self._last_rank = logical_rank
            self._launch_if = launch_if
            self._missing = [len(bucket.members) for bucket in self._buckets]
            self._next = 0
        return self._armed

    def ready(self, index: int, grad: torch.Tensor) -> None:
        """Called inside backward when a parameter's gradient of the armed turn is complete."""
        b, place = self._place_of[index]
        self._buckets[b].stage(self._last_rank, place, grad)
        self._missing[b] -= 1
        if self._missing[b] or self._broken is not None:
            return
        try:
            while self._next < len(self._buckets) and self._missing[self._next] == 0 and self._launch_if():
                self._waits.append(self._buckets[self._next].launch(self._last_rank))
                self._next += 1
        except ExchangeBrokenError as error:
            self._broken = error  # must not leave from inside autograd: `finish` raises it

    def complete(self, rest: Mapping[int, torch.Tensor]) -> None:
        """After backward of the armed turn: the contributions of parameters that it did not reach."""
        for index, contribution in rest.items():
            self.ready(index, contribution)

    def finish(self) -> list[torch.Tensor]:
        """Wait for all buckets. Returns a tensor per parameter, valid until the next step begins."""
        if self._broken is not None:
            raise self._broken
        if not self._armed:
            # On the user's thread, unlike buckets that are exchanged beside backward.
            with denormals_kept():
                for bucket in self._buckets:
                    bucket.reduce()
        for wait in self._waits:
            wait()
        results: list[torch.Tensor] = [torch.empty(0)] * len(self._params)
        for bucket in self._buckets:
            for i, value in zip(bucket.members, bucket.result, strict=True):
                results[i] = value
        return results

    def _prepare(self) -> None:
        """Memory and walking plans for the present layout and placement."""
        buckets = self.layout.buckets
        # What the layout before this one held must be free before as much again is asked for.
        self._waits = []
        self._broken = None
        self._buckets = []
        self._buckets = [bucket_sync(bucket, self._params, self._exchange, self._order) for bucket in buckets]
        places = {i: (b, place) for b, bucket in enumerate(buckets) for place, i in enumerate(bucket.params)}
        self._place_of = [places[i] for i in range(len(self._params))]
