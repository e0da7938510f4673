"""Messages between executors: the exchange over gloo.

The virtual ring: chunks of a bucket walk the ring of N logical workers; a hop between two workers of
one executor is an addition, a hop between executors a message. Chunks are grouped by the executor in
which they start; each group goes once around the executors, comes home for the additions that are
left, and is then passed to all. The tree: every executor owns a slice of the bucket, gets everybody's
subtree sums of it, combines them, and passes the result to all. Where every executor hosts one
logical worker, gloo's own all-reduce is the ring, and is used.

The sockets have no authentication: they bind to the given host, loopback unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from isoscale.core.gradients import FlatBucket, RingBucket, TreeSums
from isoscale.core.reduce import Chunk, combine_subtrees, local_subtrees
from isoscale.types import Placement

__all__ = ["GlooExchange", "connect"]

# torch ships no complete type stubs for process groups.
dist: Any = torch.distributed

_TIMEOUT = timedelta(minutes=30)


def connect(store_path: Path, placement: Placement, index: int, *, host: str = "127.0.0.1") -> GlooExchange:
    """Form the process group of one generation. Every member of the placement must call this."""
    store = dist.FileStore(str(store_path), placement.num_executors)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = _TIMEOUT
    group = dist.ProcessGroupGloo(store, index, placement.num_executors, options)
    return GlooExchange(group, placement, index)


class GlooExchange:
    overlaps = True

    def __init__(self, group: Any, placement: Placement, index: int) -> None:
        self.placement = placement
        self.index = index
        self.native = placement.num_executors == placement.num_logical_workers
        self._group = group
        self._sequence = 0
        # Sums keep denormals, as gloo's own threads do, whatever the user set for the main thread.
        self._beside = ThreadPoolExecutor(1, "exchange", initializer=torch.set_flush_denormal, initargs=(False,))
        ranks = range(placement.num_executors)
        n = placement.num_logical_workers
        self._nodes = [local_subtrees(placement.ranks_of(e), n) for e in ranks]

    def submit(self, work: Callable[[], None]) -> Future[None]:
        return self._beside.submit(work)

    def all_reduce(self, flat: torch.Tensor) -> Callable[[], None]:
        work = self._group.allreduce([flat])
        return lambda: _wait(work)

    def ring(self, bucket: RingBucket, addends: Mapping[int, FlatBucket], memory: FlatBucket) -> FlatBucket:
        executors, me, total = self.placement.num_executors, self.index, memory.flat
        groups: list[list[Chunk]] = [[] for _ in range(executors)]
        for chunk in bucket.chunks:
            groups[self.placement.executor_of(bucket.starts_at(chunk))].append(chunk)
        links = _RingLinks(self._group, total, me, executors, self._next_tag(2 * len(bucket.chunks)))
        passing = [chunk for hop in range(1, executors) for chunk in groups[(me + hop) % executors]]
        for chunk in passing:
            links.expect(chunk, 0)
        for chunk in groups[me]:
            bucket.start(chunk, addends, total)
            links.send(chunk, 0)
        for chunk in passing:
            links.receive(chunk, 0)
            bucket.pass_through(chunk, addends, total)
            links.send(chunk, 0)
        for chunk in groups[me]:
            links.expect(chunk, 0)
        for chunk in groups[me]:
            links.receive(chunk, 0)
            bucket.come_home(chunk, addends, total)
            links.send(chunk, 1)
        for chunk in passing:
            links.expect(chunk, 1)
        for chunk in passing:
            links.receive(chunk, 1)
            if chunk not in groups[(me - 1) % executors]:
                links.send(chunk, 1)
        links.flush()
        return memory

    def tree(self, sums: TreeSums, memory: FlatBucket | None, scale: float) -> FlatBucket:
        assert memory is not None
        executors, me, flat = self.placement.num_executors, self.index, memory.flat
        bounds = [flat.numel() * e // executors for e in range(executors + 1)]
        slices = [slice(bounds[e], bounds[e + 1]) for e in range(executors)]
        others = [e for e in range(executors) if e != me]
        mine = {node: total.flat for node, total in sums.sums.items()}
        tag = self._next_tag(self.placement.num_logical_workers + 1)
        arriving = {node: torch.empty_like(flat[slices[me]]) for e in others for node in self._nodes[e]}
        receives = [self._group.recv([arriving[node]], e, tag + node.start) for e in others for node in self._nodes[e]]
        sends = [self._group.send([mine[node][slices[e]]], e, tag + node.start) for e in others for node in mine]
        for work in receives:
            _wait(work)
        parts = {node: value[slices[me]] for node, value in mine.items()} | arriving
        torch.mul(combine_subtrees(parts, sums.root), scale, out=flat[slices[me]])
        last = tag + self.placement.num_logical_workers
        works = [self._group.recv([flat[slices[e]]], e, last) for e in others]
        works += [self._group.send([flat[slices[me]]], e, last) for e in others]
        for work in [*sends, *works]:
            _wait(work)
        return memory

    def sum_int64(self, payload: torch.Tensor) -> None:
        _wait(self._group.allreduce([payload]))

    def start_sum_int64(self, payload: torch.Tensor) -> Callable[[], None]:
        work = self._group.allreduce([payload])
        return lambda: _wait(work)

    def broadcast(self, tensors: Sequence[torch.Tensor], source: int) -> None:
        for tensor in tensors:
            options = dist.BroadcastOptions()
            options.rootRank = source
            _wait(self._group.broadcast([tensor], options))

    def gather_text(self, text: str) -> list[str]:
        data = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        sizes = torch.zeros(self.placement.num_executors, dtype=torch.int64)
        sizes[self.index] = data.numel()
        self.sum_int64(sizes)
        texts = []
        for e, size in enumerate(sizes.tolist()):
            part = data if e == self.index else torch.empty(size, dtype=torch.uint8)
            self.broadcast([part], e)
            texts.append(bytes(part.tolist()).decode().strip())
        return texts

    def close(self) -> None:
        self._beside.shutdown(wait=False, cancel_futures=True)

    def _next_tag(self, count: int) -> int:
        """The first of `count` tags. Executors exchange the same buckets in the same order, so they agree."""
        tag = self._sequence
        self._sequence = (self._sequence + count) % 2**30
        return tag


class _RingLinks:
    """Non-blocking messages of one bucket's walk, from the next executor and to the previous one."""

    def __init__(self, group: Any, flat: torch.Tensor, me: int, executors: int, tag: int) -> None:
        self._group = group
        self._flat = flat
        self._source, self._target = (me + 1) % executors, (me - 1) % executors
        self._tag = tag
        self._sends: dict[int, Any] = {}
        self._receives: dict[tuple[int, int], Any] = {}

    def expect(self, chunk: Chunk, phase: int) -> None:
        """Post a receive into the chunk's own place, once what was there has been sent."""
        if chunk.index in self._sends:
            _wait(self._sends.pop(chunk.index))
        work = self._group.recv([self._part(chunk)], self._source, self._tag + 2 * chunk.index + phase)
        self._receives[chunk.index, phase] = work

    def receive(self, chunk: Chunk, phase: int) -> None:
        _wait(self._receives.pop((chunk.index, phase)))

    def send(self, chunk: Chunk, phase: int) -> None:
        work = self._group.send([self._part(chunk)], self._target, self._tag + 2 * chunk.index + phase)
        self._sends[chunk.index] = work

    def flush(self) -> None:
        for work in self._sends.values():
            _wait(work)

    def _part(self, chunk: Chunk) -> torch.Tensor:
        return self._flat[chunk.start : chunk.stop]


def _wait(work: Any) -> None:
    work.wait()
