"""The seam between one executor's step and the other executors.

`core` never learns how many processes there are: it hands sums to an `Exchange` and gets them back
complete. `LocalExchange` is the whole of it for one process, which is also the golden reference for
every other implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from isoscale.core.numerics.determinism import flushes_denormals
from isoscale.core.reduction.gradients import FlatBucket, RingBucket, TreeSums
from isoscale.types import Placement

__all__ = ["Exchange", "ExchangeBrokenError", "LocalExchange", "denormals_kept"]


class ExchangeBrokenError(Exception):
    """Another executor is gone, or this exchange was given up: nothing more can be exchanged through it.

    Raised by every method of an `Exchange` from then on. Never leaves the runtime: the step is done again, or taken as
    done, with other executors (`StepEngine.recover`).
    """


class Exchange(Protocol):
    placement: Placement
    #: this executor's position in the placement
    index: int
    #: buckets may be exchanged while backward still runs
    overlaps: bool
    #: nothing more can be exchanged; seen before it is raised
    broken: bool
    #: `all_reduce` sums in ring order over logical ranks: one logical worker per executor, on gloo
    native: bool
    #: the process group under it, for messages from one executor to another; None where there is no other
    group: Any

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Called per bucket, in the same order on all executors; runs beside backward."""

    def all_reduce(self, flat: torch.Tensor) -> Callable[[], None]:
        """Called only where `native`: start the sum in place, return what waits for it."""

    def ring(self, bucket: RingBucket, addends: Mapping[int, FlatBucket], memory: FlatBucket) -> FlatBucket:
        """The sum over all logical workers in ring order, in `memory` or in an addend's."""

    def tree(self, sums: TreeSums, memory: FlatBucket | None, scale: float) -> FlatBucket:
        """The scaled sum over all logical workers in tree order, in `memory` (None in one process) or in a sum's."""

    def sum_int64(self, payload: torch.Tensor) -> None:
        """Sum over executors in place; order does not matter to integers."""

    def start_sum_int64(self, payload: torch.Tensor) -> Callable[[], None]:
        """The same without waiting; returns what waits. `payload` must be left alone until then."""

    def broadcast(self, tensors: Sequence[torch.Tensor], source: int) -> None:
        """Overwrite `tensors` with those of the executor at position `source`."""

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """A few kilobytes from every executor, in placement order; usually one message."""

    def start_gather_bytes(self, data: bytes) -> Callable[[], list[bytes]]:
        """The same without waiting; returns what waits."""

    def gather_text(self, text: str) -> list[str]:
        """One string from every executor, in placement order. For errors and rare agreements, not for every step."""

    def break_off(self) -> None:
        """Make every call raise `ExchangeBrokenError`, those that wait now included. From any thread; without effect
        where there is no other executor to wait for."""

    def retire(self, memory: object) -> None:
        """Close, beside whatever comes next. `memory` is what messages still on the way might be written to."""


class LocalExchange:
    """All logical workers live here: nothing to exchange, only orders to keep."""

    overlaps = False
    native = False
    broken = False
    index = 0
    group = None

    def __init__(self, num_logical_workers: int) -> None:
        self.placement = Placement(shares=(num_logical_workers,))

    def submit(self, work: Callable[[], None]) -> Future[None]:
        raise AssertionError("one process has nothing to overlap")

    def all_reduce(self, flat: torch.Tensor) -> Callable[[], None]:
        raise AssertionError("one process has nothing to reduce")

    def ring(self, bucket: RingBucket, addends: Mapping[int, FlatBucket], memory: FlatBucket) -> FlatBucket:
        return bucket.sum_in_place(addends)

    def tree(self, sums: TreeSums, memory: FlatBucket | None, scale: float) -> FlatBucket:
        total = sums.sums[sums.root]
        total.flat.mul_(scale)
        return total

    def sum_int64(self, payload: torch.Tensor) -> None:
        pass

    def start_sum_int64(self, payload: torch.Tensor) -> Callable[[], None]:
        return lambda: None

    def broadcast(self, tensors: Sequence[torch.Tensor], source: int) -> None:
        pass

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return [data]

    def start_gather_bytes(self, data: bytes) -> Callable[[], list[bytes]]:
        return lambda: [data]

    def gather_text(self, text: str) -> list[str]:
        return [text]

    def break_off(self) -> None:
        pass

    def retire(self, memory: object) -> None:
        pass


@contextmanager
def denormals_kept() -> Iterator[None]:
    """Sums run with flush-to-zero off, as gloo's threads do, even if the user switched it on for kernels."""
    flushing = flushes_denormals()
    if flushing:
        torch.set_flush_denormal(False)
    try:
        yield
    finally:
        if flushing:
            torch.set_flush_denormal(True)
