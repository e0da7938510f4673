"""One bucket of a model over a step: contributions in, the average over all logical workers out.

One class per way of summing. Calls come in this order: `begin_step`; `take` for each turn that is over;
then either `reduce`, or, while the last turn's backward still runs, `stage` per parameter and `launch`.
Then `result` holds one tensor per parameter of the bucket, valid until the next step begins; they lie in `memory`,
parts of which may be lent to whoever wants the result (`FlatBucket.lend`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch

from isoscale.core.reduction.buckets import Bucket
from isoscale.core.reduction.exchange import Exchange, denormals_kept
from isoscale.core.reduction.gradients import FlatBucket, RingBucket, TreeSums
from isoscale.core.reduction.prefixes import PrefixRing
from isoscale.types import Order

__all__ = ["BucketSync", "bucket_sync"]


#: buckets of more bytes are summed along the ring as turns end; below, calls cost more than memory is worth
_PREFIXES_FROM_BYTES = 2**20


class BucketSync(Protocol):
    #: parameter indices, in bucket order
    members: tuple[int, ...]
    result: Sequence[torch.Tensor]
    #: where the result lies; None where it is the gradients of a turn
    memory: FlatBucket | None

    def begin_step(self) -> None: ...

    def take(self, logical_rank: int, grads: Sequence[torch.Tensor]) -> None:
        """A finished turn's gradients of this bucket; they are only read."""

    def stage(self, logical_rank: int, place: int, grad: torch.Tensor) -> None:
        """One gradient of the last local turn is complete. On the user's thread, inside backward."""

    def launch(self, logical_rank: int) -> Callable[[], None]:
        """All gradients are staged: start the exchange beside backward, return what waits for it."""

    def reduce(self) -> None:
        """Exchange now, everything having been taken."""


def bucket_sync(
    bucket: Bucket,
    params: Sequence[torch.Tensor],
    exchange: Exchange,
    order: Order,
    *,
    prefixes_from_bytes: int = _PREFIXES_FROM_BYTES,
) -> BucketSync:
    n = exchange.placement.num_logical_workers
    num_local = len(exchange.placement.ranks_of(exchange.index))
    if n == 1:
        return _AloneSync(bucket)
    make = partial(FlatBucket, bucket, params)
    if exchange.native and (order == "ddp" or n == 2):
        # gloo's ring; or two numbers, whose sum does not ask which comes first.
        return _NativeSync(bucket, make(), exchange, order)
    if order == "tree":
        return _TreeSync(bucket, make, exchange)
    first = params[bucket.params[0]]
    if num_local > 1 and bucket.numel * first.element_size() > prefixes_from_bytes:
        return _PrefixSync(bucket, params, make(), exchange)
    return _RingSync(bucket, make, exchange)


class _AloneSync:
    """A job of one logical worker: its gradients are the average."""

    def __init__(self, bucket: Bucket) -> None:
        self.members = bucket.params
        self.memory: FlatBucket | None = None
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


class _NativeSync:
    """One logical worker per executor, and gloo's own all-reduce gives the order: as long a path as stock DDP's."""

    def __init__(self, bucket: Bucket, memory: FlatBucket, exchange: Exchange, order: Order) -> None:
        scale = 1.0 / exchange.placement.num_logical_workers
        first = order == "ddp" or memory.flat.dtype == torch.float16
        self.members = bucket.params
        self.memory: FlatBucket | None = memory
        self.result: Sequence[torch.Tensor] = memory.views
        self._flat = memory
        self._exchange = exchange
        #: of contributions, and of the sum; None where it is left as it is
        self._before: float | None = scale if first else None
        self._after: float | None = None if first else scale
        self._staged: list[torch.Tensor] = []

    def begin_step(self) -> None:
        self._staged = list(self.result)

    def take(self, logical_rank: int, grads: Sequence[torch.Tensor]) -> None:
        if self._before is None:
            self._flat.set(grads)
        else:
            self._flat.set_scaled(grads, self._before)

    def stage(self, logical_rank: int, place: int, grad: torch.Tensor) -> None:
        self._staged[place] = grad
        self._flat.set_large(place, grad, self._before)

    def launch(self, logical_rank: int) -> Callable[[], None]:
        self._flat.set_small(self._staged, self._before)
        self._staged = []
        return self._start()

    def reduce(self) -> None:
        self._start()()

    def _start(self) -> Callable[[], None]:
        wait = self._exchange.all_reduce(self._flat.flat)
        return wait if self._after is None else partial(self._scale, wait, self._after)

    def _scale(self, wait: Callable[[], None], factor: float) -> None:
        wait()
        with denormals_kept():
            self._flat.flat.mul_(factor)


class _RingSync:
    """Order `ddp`, a small bucket: every local logical worker's scaled bucket is held until the ring has come past."""

    def __init__(self, bucket: Bucket, make: Callable[[], FlatBucket], exchange: Exchange) -> None:
        placement = exchange.placement
        ranks = placement.ranks_of(exchange.index)
        self.members = bucket.params
        self.result: Sequence[torch.Tensor] = ()
        self._exchange = exchange
        self._scale = 1.0 / placement.num_logical_workers
        self._slots = {rank: make() for rank in ranks}
        first = self._slots[ranks[0]]
        # The sum within one process works in the slots themselves.
        self.memory: FlatBucket | None = first if placement.num_executors == 1 else make()
        self._ring = RingBucket(bucket, first.flat.element_size(), ranks, placement.num_logical_workers)

    def begin_step(self) -> None:
        pass

    def take(self, logical_rank: int, grads: Sequence[torch.Tensor]) -> None:
        self._slots[logical_rank].set_scaled(grads, self._scale)

    def stage(self, logical_rank: int, place: int, grad: torch.Tensor) -> None:
        torch.mul(grad, self._scale, out=self._slots[logical_rank].views[place])

    def launch(self, logical_rank: int) -> Callable[[], None]:
        return self._exchange.submit(self.reduce).result

    def reduce(self) -> None:
        assert self.memory is not None
        self.result = self._exchange.ring(self._ring, self._slots, self.memory).views


class _PrefixSync:
    """Order `ddp`, a large bucket: sums along the ring are made as turns end."""

    def __init__(self, bucket: Bucket, params: Sequence[torch.Tensor], memory: FlatBucket, exchange: Exchange) -> None:
        placement = exchange.placement
        self.members = bucket.params
        self.memory: FlatBucket | None = memory
        self.result: Sequence[torch.Tensor] = ()
        self._total = memory
        self._exchange = exchange
        self._scale = 1.0 / placement.num_logical_workers
        ranks = placement.ranks_of(exchange.index)
        self._ring = PrefixRing(bucket, params, ranks, placement.num_logical_workers, memory)
        memory.note_uses()

    def begin_step(self) -> None:
        self._ring.begin()

    def take(self, logical_rank: int, grads: Sequence[torch.Tensor]) -> None:
        self._ring.take(logical_rank, grads, self._scale)

    def stage(self, logical_rank: int, place: int, grad: torch.Tensor) -> None:
        self._ring.stage(logical_rank, place, grad, self._scale)

    def launch(self, logical_rank: int) -> Callable[[], None]:
        def beside() -> None:
            self._ring.sum_staged(logical_rank)
            self.reduce()

        return self._exchange.submit(beside).result

    def reduce(self) -> None:
        self.result = self._exchange.ring(self._ring, {}, self._total).views


class _TreeSync:
    """Order `tree`: turns are summed into subtrees as they finish."""

    def __init__(self, bucket: Bucket, make: Callable[[], FlatBucket], exchange: Exchange) -> None:
        placement = exchange.placement
        self.members = bucket.params
        self.result: Sequence[torch.Tensor] = ()
        self.memory: FlatBucket | None = None
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
        self.memory = self._exchange.tree(self._sums, self._total, self._final_scale())
        self.result = self.memory.views

    def _put(self, logical_rank: int, grads: Sequence[torch.Tensor]) -> None:
        if grads[0].dtype == torch.float16:
            grads = [grad * self._scale for grad in grads]
        self._sums.put(logical_rank, grads)

    def _final_scale(self) -> float:
        half = next(iter(self._sums.sums.values())).flat.dtype == torch.float16
        return 1.0 if half else self._scale
