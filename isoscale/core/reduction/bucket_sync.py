"""One bucket of a model over a step: contributions in, the average over all logical workers out.

One class per way of summing. Calls come in this order: `begin_step`; `take` for each turn that is over;
then either `reduce`, or, while the last turn's backward still runs, `stage` per parameter and `launch`.
Then `result` holds one tensor per parameter of the bucket, valid until the next step begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch

from isoscale.core.reduction.buckets import Bucket
from isoscale.core.reduction.exchange import Exchange, denormals_kept
from isoscale.core.reduction.gradients import FlatBucket, RingBucket, TreeSums
from isoscale.types import Order

__all__ = ["BucketSync", "bucket_sync"]


class BucketSync(Protocol):
    #: parameter indices, in bucket order
    members: tuple[int, ...]
    result: Sequence[torch.Tensor]

    def begin_step(self) -> None: ...

    def take(self, logical_rank: int, grads: Sequence[torch.Tensor]) -> None:
        """A finished turn's gradients of this bucket; they are only read."""

    def stage(self, logical_rank: int, place: int, grad: torch.Tensor) -> None:
        """One gradient of the last local turn is complete. On the user's thread, inside backward."""

    def launch(self, logical_rank: int) -> Callable[[], None]:
        """All gradients are staged: start the exchange beside backward, return what waits for it."""

    def reduce(self) -> None:
        """Exchange now, everything having been taken."""


def bucket_sync(bucket: Bucket, params: Sequence[torch.Tensor], exchange: Exchange, order: Order) -> BucketSync:
    if exchange.placement.num_logical_workers == 1:
        return _AloneSync(bucket)
    kind = _RingSync if order == "ddp" else _TreeSync
    return kind(bucket, partial(FlatBucket, bucket, params), exchange)


class _AloneSync:
    """A job of one logical worker: its gradients are the average."""

    def __init__(self, bucket: Bucket) -> None:
        self.members = bucket.params
        self.result: Sequence[torch.Tensor] = ()

    def begin_step(self) -> None:
        self.result = ()

    def take(self, logical_rank: int, grads: Sequence[torch.Tensor]) -> None:
        self.result = grads

    def stage(self, logical_rank: int, place: int, grad: torch.Tensor) -> None:
        raise AssertionError("one logical worker has nobody to exchange with")

    def launch(self, logical_rank: int) -> Callable[[], None]:
        raise AssertionError("one logical worker has nobody to exchange with")

    def reduce(self) -> None:
        pass


class _RingSync:
    """Order `ddp`: every local logical worker's scaled bucket is held until the ring has come past."""

    def __init__(self, bucket: Bucket, make: Callable[[], FlatBucket], exchange: Exchange) -> None:
        placement = exchange.placement
        ranks = placement.ranks_of(exchange.index)
        self.members = bucket.params
        self.result: Sequence[torch.Tensor] = ()
        self._exchange = exchange
        self._scale = 1.0 / placement.num_logical_workers
        self._slots = {rank: make() for rank in ranks}
        first = self._slots[ranks[0]]
        # gloo's own sum and the sum within one process work in the slots themselves.
        self._total = first if exchange.native or placement.num_executors == 1 else make()
        self._ring = RingBucket(bucket, first.flat.element_size(), ranks, placement.num_logical_workers)

    def begin_step(self) -> None:
        pass

    def take(self, logical_rank: int, grads: Sequence[torch.Tensor]) -> None:
        self._slots[logical_rank].set_scaled(grads, self._scale)

    def stage(self, logical_rank: int, place: int, grad: torch.Tensor) -> None:
        torch.mul(grad, self._scale, out=self._slots[logical_rank].views[place])

    def launch(self, logical_rank: int) -> Callable[[], None]:
        if self._exchange.native:
            self.result = self._total.views
            return self._exchange.all_reduce(self._total.flat)
        return self._exchange.submit(self.reduce).result

    def reduce(self) -> None:
        if self._exchange.native:
            self._exchange.all_reduce(self._total.flat)()
            self.result = self._total.views
        else:
            self.result = self._exchange.ring(self._ring, self._slots, self._total).views


class _TreeSync:
    """Order `tree`: turns are summed into subtrees as they finish."""

    def __init__(self, bucket: Bucket, make: Callable[[], FlatBucket], exchange: Exchange) -> None:
        placement = exchange.placement
        self.members = bucket.params
        self.result: Sequence[torch.Tensor] = ()
        self._exchange = exchange
        self._scale = 1.0 / placement.num_logical_workers
        self._sums = TreeSums(make, placement.ranks_of(exchange.index), placement.num_logical_workers)
        self._total = make() if placement.num_executors > 1 else None
        self._staged: dict[int, torch.Tensor] = {}

    def begin_step(self) -> None:
        self._sums.reset()
        self._staged.clear()

    def take(self, logical_rank: int, grads: Sequence[torch.Tensor]) -> None:
        with denormals_kept():
            self._put(logical_rank, grads)

    def stage(self, logical_rank: int, place: int, grad: torch.Tensor) -> None:
        self._staged[place] = grad

    def launch(self, logical_rank: int) -> Callable[[], None]:
        grads = [self._staged[place] for place in range(len(self.members))]

        def beside() -> None:
            self._put(logical_rank, grads)
            self.reduce()

        return self._exchange.submit(beside).result

    def reduce(self) -> None:
        self.result = self._exchange.tree(self._sums, self._total, self._final_scale()).views

    def _put(self, logical_rank: int, grads: Sequence[torch.Tensor]) -> None:
        if grads[0].dtype == torch.float16:
            grads = [grad * self._scale for grad in grads]
        self._sums.put(logical_rank, grads)

    def _final_scale(self) -> float:
        half = next(iter(self._sums.sums.values())).flat.dtype == torch.float16
        return 1.0 if half else self._scale
