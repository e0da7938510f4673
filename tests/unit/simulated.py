"""Several executors in one process: what `runtime.transport.gloo` does with messages, done with copies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from isoscale.core.reduction.buckets import Bucket
from isoscale.core.reduction.gradients import FlatBucket, RingBucket, TreeSums
from isoscale.core.reduction.orders import Subtree, combine_subtrees
from isoscale.core.reduction.prefixes import PrefixRing
from isoscale.types import Placement

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as integers, so that NaNs, signs of zero and denormals compare exactly."""
    return tensor.contiguous().view(INTEGERS[tensor.element_size()])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def one_bucket(params: Sequence[torch.Tensor]) -> Bucket:
    sizes = [p.numel() for p in params]
    return Bucket(tuple(range(len(sizes))), tuple(sum(sizes[:i]) for i in range(len(sizes))), sum(sizes))


def addends_of(
    grads: dict[int, list[torch.Tensor]], ranks: range, scale: float = 1.0, params: Sequence[torch.Tensor] | None = None
) -> dict[int, FlatBucket]:
    """Each rank's scaled contribution; odd ranks come parameter by parameter, as an overlapped turn's do."""
    layout = params or grads[ranks[0]]
    slots = {rank: FlatBucket(one_bucket(layout), layout) for rank in ranks}
    for rank, slot in slots.items():
        if rank % 2:
            for view, grad in zip(slot.views, grads[rank], strict=True):
                torch.mul(grad, scale, out=view)
        else:
            slot.set_scaled(grads[rank], scale)
    return slots


def prefixes_of(
    grads: dict[int, list[torch.Tensor]], ranks: range, num_logical_workers: int, scale: float
) -> tuple[PrefixRing, FlatBucket]:
    """A ring whose turns are over; that of its last rank, if odd, came parameter by parameter."""
    params = grads[ranks[0]]
    total = FlatBucket(one_bucket(params), params)
    ring = PrefixRing(one_bucket(params), params, ranks, num_logical_workers, total)
    ring.begin()
    for rank in ranks:
        if rank == ranks[-1] and rank % 2 and len(ranks) < num_logical_workers:
            for place in reversed(range(len(params))):
                ring.stage(rank, place, grads[rank][place], scale)
            ring.sum_staged(rank)
        else:
            ring.take(rank, grads[rank], scale)
    return ring, total


def ring_of(params: Sequence[torch.Tensor], ranks: range, num_logical_workers: int) -> RingBucket:
    return RingBucket(one_bucket(params), params[0].element_size(), ranks, num_logical_workers)


def walk_ring(
    placement: Placement, grads: dict[int, list[torch.Tensor]], scale: float = 1.0, *, prefixes: bool = False
) -> list[torch.Tensor]:
    """The sum on every executor after all chunks walked the ring and were passed to all."""
    params, n = grads[0], placement.num_logical_workers
    executors = range(placement.num_executors)
    rings: list[RingBucket] = [ring_of(params, placement.ranks_of(e), n) for e in executors]
    mine = [addends_of(grads, placement.ranks_of(e), scale) for e in executors]
    totals = [FlatBucket(one_bucket(params), params).flat for _ in executors]
    if prefixes:
        made = [prefixes_of(grads, placement.ranks_of(e), n, scale) for e in executors]
        rings, totals, mine = [ring for ring, _ in made], [total.flat for _, total in made], [{} for _ in executors]
    for chunk in rings[0].chunks:
        here = slice(chunk.start, chunk.stop)
        home = at = placement.executor_of(rings[0].starts_at(chunk))
        rings[home].start(chunk, mine[home], totals[home])
        for hop in range(1, placement.num_executors):
            source, at = at, (home - hop) % placement.num_executors
            totals[at][here] = totals[source][here]
            rings[at].pass_through(chunk, mine[at], totals[at])
        totals[home][here] = totals[at][here]
        rings[home].come_home(chunk, mine[home], totals[home])
        for e in executors:
            totals[e][here] = totals[home][here]
    return totals


class Meeting:
    """Where the threads of simulated executors meet."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self._barrier = threading.Barrier(placement.num_executors, timeout=20)
        self._board: list[Any] = [None] * placement.num_executors

    def everybody(self, index: int, value: Any) -> list[Any]:
        """What each executor brought; nobody leaves before all have read."""
        self._board[index] = value
        self._barrier.wait()
        every = list(self._board)
        self._barrier.wait()
        return every

    def run(self, work: Callable[[SimulatedExchange], Any], *, overlaps: bool = False) -> list[Any]:
        """Call `work` on every executor's own thread; results (or the errors raised) in placement order."""
        results: list[Any] = [None] * self.placement.num_executors

        def one(index: int) -> None:
            try:
                results[index] = work(SimulatedExchange(self, index, overlaps=overlaps))
            except Exception as error:
                results[index] = error
                if not self._all_alike(error):
                    self._barrier.abort()

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return results

    @staticmethod
    def _all_alike(error: Exception) -> bool:
        """An error that every executor meets at the same place leaves no one waiting."""
        return type(error).__module__ == "isoscale.errors"


class SimulatedExchange:
    native = False
    broken = False
    group = None

    def __init__(self, meeting: Meeting, index: int, *, overlaps: bool) -> None:
        self.placement = meeting.placement
        self.index = index
        self.overlaps = overlaps
        self._meeting = meeting
        #: buckets that were handed to `submit`
        self.submitted = 0

    def submit(self, work: Callable[[], None]) -> Future[None]:
        self.submitted += 1
        done: Future[None] = Future()
        work()
        done.set_result(None)
        return done

    def all_reduce(self, flat: torch.Tensor) -> Callable[[], None]:
        raise AssertionError("not native")

    def ring(self, bucket: RingBucket, addends: Mapping[int, FlatBucket], memory: FlatBucket) -> FlatBucket:
        executors = self.placement.num_executors
        for chunk in bucket.chunks:
            home = self.placement.executor_of(bucket.starts_at(chunk))
            here = memory.flat[chunk.start : chunk.stop]
            for hop in range(executors + 1):
                at = (home - hop) % executors
                if at == self.index:
                    walk = bucket.start if hop == 0 else bucket.come_home if hop == executors else bucket.pass_through
                    walk(chunk, addends, memory.flat)
                here.copy_(self._meeting.everybody(self.index, here.clone())[at])
        return memory

    def tree(self, sums: TreeSums, memory: FlatBucket | None, scale: float) -> FlatBucket:
        assert memory is not None
        nodes: dict[Subtree, torch.Tensor] = {}
        mine = {node: total.flat.clone() for node, total in sums.sums.items()}
        for theirs in self._meeting.everybody(self.index, mine):
            nodes |= {node: value.clone() for node, value in theirs.items()}
        torch.mul(combine_subtrees(nodes, sums.root), scale, out=memory.flat)
        return memory

    def start_sum_int64(self, payload: torch.Tensor) -> Callable[[], None]:
        return lambda: self.sum_int64(payload)

    def sum_int64(self, payload: torch.Tensor) -> None:
        every = self._meeting.everybody(self.index, payload.clone())
        payload.copy_(torch.stack(every).sum(0))

    def broadcast(self, tensors: Sequence[torch.Tensor], source: int) -> None:
        every = self._meeting.everybody(self.index, [t.clone() for t in tensors])
        for tensor, value in zip(tensors, every[source], strict=True):
            tensor.copy_(value)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return self._meeting.everybody(self.index, data)

    def start_gather_bytes(self, data: bytes) -> Callable[[], list[bytes]]:
        found = self.gather_bytes(data)
        return lambda: found

    def break_off(self) -> None:
        raise AssertionError("nobody breaks it off here")

    def retire(self, memory: object) -> None:
        pass

    def gather_text(self, text: str) -> list[str]:
        return self._meeting.everybody(self.index, text)
