"""Messages between executors: the exchange over gloo.

The virtual ring: chunks of a bucket walk the ring of N logical workers; a hop between two workers of
one executor is an addition, a hop between executors a message. Chunks are grouped by the executor in
which they start; each group goes once around the executors, comes home for the additions that are
left, and is then passed to all. The tree: every executor owns a slice of the bucket, gets everybody's
subtree sums of it, combines them, and passes the result to all. Where every executor hosts one
logical worker, gloo's own all-reduce is the ring, and is used.

When a peer is lost, or the coordinator says so, the exchange breaks: every call that waits in it, in any
thread, and every later one raises `ExchangeBrokenError`, and its sockets are closed, so that a peer that was only
stopped can write nothing into memory that is in use again. The sockets have no authentication: they bind to
the given host, loopback unless told otherwise.
"""

from __future__ import annotations

import functools
import gc
import os
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from isoscale.core.reduction.exchange import ExchangeBrokenError
from isoscale.core.reduction.gradients import FlatBucket, RingBucket, TreeSums
from isoscale.core.reduction.orders import Chunk, combine_subtrees, local_subtrees
from isoscale.runtime.transport.group import TIMEOUT, Group
from isoscale.runtime.transport.rendezvous import open_store
from isoscale.types import Placement

__all__ = ["GlooExchange", "connect", "form_group", "receive_blob", "send_blob"]

# torch ships no complete type stubs for process groups.
dist: Any = torch.distributed

#: how long a member waits for the others when a group is formed; one that never comes blocks a thread as long as this
_FORMING_TIMEOUT = timedelta(seconds=20)
#: how many bytes of a message of `gather_bytes` count
_SIZE = struct.Struct("<q")
#: tags of `send_blob` lie above those of buckets
_BLOB_TAG = 2**30
#: bytes of the pieces in which it is sent
_PIECE = 2**22


def connect(place: str, placement: Placement, index: int, *, host: str = "127.0.0.1") -> GlooExchange:
    """Form the process group of one generation at a `place` (`runtime.transport.rendezvous`).

    Every member must call this.
    """
    return GlooExchange(form_group(place, index, placement.num_executors, host), placement, index)


def form_group(place: str, index: int, size: int, host: str) -> Group:
    _freeze_in_forks()
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = _FORMING_TIMEOUT
    try:
        store = open_store(place, size, _FORMING_TIMEOUT)
        group = dist.ProcessGroupGloo(store, index, size, options)
        group._set_default_timeout(TIMEOUT)
    except RuntimeError as error:
        raise ExchangeBrokenError(f"the group was not formed: {_first_line(error)}") from error
    return Group(group, index, size)


@functools.cache
def _freeze_in_forks() -> None:
    """Groups of earlier generations lie about until garbage is collected, which joins their threads. A fork (a loader
    process, a copy that saves) has the group and none of its threads: it would wait for them for ever."""
    os.register_at_fork(after_in_child=gc.freeze)


def send_blob(
    group: Group, blob: torch.Tensor, *targets: int, fill: Callable[[Callable[[int], None]], object] | None = None
) -> None:
    """A large message of a size that the receivers do not know.

    `fill` writes it from its beginning on, and tells how far it has come: what is there is sent meanwhile.
    """
    works: list[Any] = []
    sent = 0

    def there(end: int) -> None:
        nonlocal sent
        with _Breaking():
            while end - sent >= _PIECE or sent < end == blob.numel():
                piece = blob[sent : sent + _PIECE]
                works.extend(group.send([piece], target, _BLOB_TAG + 1) for target in targets)
                sent += piece.numel()

    with _Breaking():
        size = torch.tensor([blob.numel()])
        works.extend(group.send([size], target, _BLOB_TAG) for target in targets)
    if fill is not None:
        fill(there)
    there(blob.numel())

    def wait() -> None:
        with _Breaking():
            for work in works:
                _wait(work)

    group.run(wait)


def receive_blob(group: Group, source: int) -> torch.Tensor:
    def receive() -> torch.Tensor:
        with _Breaking():
            size = torch.zeros(1, dtype=torch.int64)
            _wait(group.recv([size], source, _BLOB_TAG))
            blob = torch.empty(int(size), dtype=torch.uint8)
            pieces = (blob[start : start + _PIECE] for start in range(0, blob.numel(), _PIECE))
            for work in [group.recv([piece], source, _BLOB_TAG + 1) for piece in pieces]:
                _wait(work)
            return blob

    return group.run(receive)


class GlooExchange:
    overlaps = True

    def __init__(self, group: Group | None, placement: Placement, index: int) -> None:
        """Without a group it is broken from the beginning."""
        self.placement = placement
        self.index = index
        self.native = placement.num_executors == placement.num_logical_workers
        self.broken = group is None
        self.group: Any = group
        self._sequence = 0
        #: bytes that a message of `gather_bytes` has room for
        self._room = 0
        ranks = range(placement.num_executors)
        n = placement.num_logical_workers
        self._nodes = [local_subtrees(placement.ranks_of(e), n) for e in ranks]

    def break_off(self) -> None:
        """Make every call raise `ExchangeBrokenError`, those that wait now included. From any thread."""
        self.broken = True
        group = self.group
        if group is not None:
            group.break_off()

    def submit(self, work: Callable[[], None]) -> Future[None]:
        if self.broken:
            raise ExchangeBrokenError("given up")
        future: Future[None] = self.group.submit(work)
        return future

    def all_reduce(self, flat: torch.Tensor) -> Callable[[], None]:
        with _Breaking(self):
            work = self.group.allreduce([flat])
        return lambda: self._finish(work)

    def ring(self, bucket: RingBucket, addends: Mapping[int, FlatBucket], memory: FlatBucket) -> FlatBucket:
        with _Breaking(self):
            done: FlatBucket = self.group.run(lambda: self._ring(bucket, addends, memory))
            return done

    def _ring(self, bucket: RingBucket, addends: Mapping[int, FlatBucket], memory: FlatBucket) -> FlatBucket:
        executors, me, total = self.placement.num_executors, self.index, memory.flat
        groups: list[list[Chunk]] = [[] for _ in range(executors)]
        for chunk in bucket.chunks:
            groups[self.placement.executor_of(bucket.starts_at(chunk))].append(chunk)
        links = _RingLinks(self.group, total, me, executors, self._next_tag(2 * len(bucket.chunks)))
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
        with _Breaking(self):
            done: FlatBucket = self.group.run(lambda: self._tree(sums, memory, scale))
            return done

    def _tree(self, sums: TreeSums, memory: FlatBucket | None, scale: float) -> FlatBucket:
        assert memory is not None
        executors, me, flat = self.placement.num_executors, self.index, memory.flat
        bounds = [flat.numel() * e // executors for e in range(executors + 1)]
        slices = [slice(bounds[e], bounds[e + 1]) for e in range(executors)]
        others = [e for e in range(executors) if e != me]
        mine = {node: total.flat for node, total in sums.sums.items()}
        tag = self._next_tag(self.placement.num_logical_workers + 1)
        arriving = {node: sums.arriving(node, flat[slices[me]]) for e in others for node in self._nodes[e]}
        receives = [self.group.recv([arriving[node]], e, tag + node.start) for e in others for node in self._nodes[e]]
        sends = [self.group.send([mine[node][slices[e]]], e, tag + node.start) for e in others for node in mine]
        for work in receives:
            _wait(work)
        parts = {node: value[slices[me]] for node, value in mine.items()} | arriving
        torch.mul(combine_subtrees(parts, sums.root), scale, out=flat[slices[me]])
        last = tag + self.placement.num_logical_workers
        works = [self.group.recv([flat[slices[e]]], e, last) for e in others]
        works += [self.group.send([flat[slices[me]]], e, last) for e in others]
        for work in [*sends, *works]:
            _wait(work)
        return memory

    def sum_int64(self, payload: torch.Tensor) -> None:
        with _Breaking(self):
            self.group.wait(self.group.allreduce([payload]))

    def start_sum_int64(self, payload: torch.Tensor) -> Callable[[], None]:
        with _Breaking(self):
            work = self.group.allreduce([payload])
        return lambda: self._finish(work)

    def broadcast(self, tensors: Sequence[torch.Tensor], source: int) -> None:
        with _Breaking(self):
            for tensor in tensors:
                options = dist.BroadcastOptions()
                options.rootRank = source
                self.group.wait(self.group.broadcast([tensor], options))

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return self.start_gather_bytes(data)()

    def start_gather_bytes(self, data: bytes) -> Callable[[], list[bytes]]:
        # Everybody knows everybody's last sizes, so all have made the same room; who needs more only says so.
        room, executors = self._room, self.placement.num_executors
        message = bytearray(_SIZE.size + room)
        _SIZE.pack_into(message, 0, len(data))
        if len(data) <= room:
            message[_SIZE.size : _SIZE.size + len(data)] = data
        received = torch.empty((executors, len(message)), dtype=torch.uint8)
        with _Breaking(self):
            work = self.group.allgather([list(received.unbind(0))], [torch.frombuffer(message, dtype=torch.uint8)])

        def wait() -> list[bytes]:
            self._finish(work)
            rows = [row.tobytes() for row in received.numpy()]
            sizes = [_SIZE.unpack_from(row)[0] for row in rows]
            self._room = max(sizes)
            if self._room > room:
                return self.gather_bytes(data)
            return [row[_SIZE.size : _SIZE.size + size] for row, size in zip(rows, sizes, strict=True)]

        return wait

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

    def retire(self, memory: object) -> None:
        """Close beside whatever comes next; `memory` lives until no message can arrive in it any more."""
        if self.broken:
            self.break_off()
        remains = [self.group, memory]
        self.group = None
        # Forgetting a group joins its threads.
        threading.Thread(target=remains.clear, name="retire", daemon=True).start()

    def _finish(self, work: Any) -> None:
        with _Breaking(self):
            self.group.wait(work)

    def _next_tag(self, count: int) -> int:
        """The first of `count` tags. Executors exchange the same buckets in the same order, so they agree."""
        tag = self._sequence
        self._sequence = (self._sequence + count) % 2**30
        return tag


class _RingLinks:
    """Non-blocking messages of one bucket's walk, from the next executor and to the previous one."""

    def __init__(self, group: Any, flat: torch.Tensor, me: int, executors: int, tag: int) -> None:
        self.group = group
        self._flat = flat
        self._source, self._target = (me + 1) % executors, (me - 1) % executors
        self._tag = tag
        self._sends: dict[int, Any] = {}
        self._receives: dict[tuple[int, int], Any] = {}

    def expect(self, chunk: Chunk, phase: int) -> None:
        """Post a receive into the chunk's own place, once what was there has been sent."""
        if chunk.index in self._sends:
            _wait(self._sends.pop(chunk.index))
        work = self.group.recv([self._part(chunk)], self._source, self._tag + 2 * chunk.index + phase)
        self._receives[chunk.index, phase] = work

    def receive(self, chunk: Chunk, phase: int) -> None:
        _wait(self._receives.pop((chunk.index, phase)))

    def send(self, chunk: Chunk, phase: int) -> None:
        work = self.group.send([self._part(chunk)], self._target, self._tag + 2 * chunk.index + phase)
        self._sends[chunk.index] = work

    def flush(self) -> None:
        for work in self._sends.values():
            _wait(work)

    def _part(self, chunk: Chunk) -> torch.Tensor:
        return self._flat[chunk.start : chunk.stop]


class _Breaking:
    """Around calls of gloo, which says only by a RuntimeError that a peer is gone; the exchange is broken then.

    A class, since some ten of them are entered in every step, and generators cost several times as much.
    """

    __slots__ = ("_exchange",)

    def __init__(self, exchange: GlooExchange | None = None) -> None:
        self._exchange = exchange

    def __enter__(self) -> None:
        if self._exchange is not None and self._exchange.broken:
            raise ExchangeBrokenError("given up")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, RuntimeError | ExchangeBrokenError):
            return
        if self._exchange is not None:
            self._exchange.broken = True
        if isinstance(error, RuntimeError):
            raise ExchangeBrokenError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _wait(work: Any) -> None:
    """For a message, on the group's thread."""
    # Said each time: messages from one to another know no limit but the one that the group was formed with.
    work.wait(TIMEOUT)
