"""Any iterable data set as a source: brought back to a place by its own state, by `seek(n)`, or by reading it again.

Partition p of P is the data set as loader process p of P would see it: `torch.utils.data.get_worker_info()` says so
while it is read, which is how such data sets divide themselves. Each partition gets a copy of the data set.

What is brought back must be what was there. Samples are hashed as they are read; where a place is returned to, the next
sample's hash must be the one that was seen before. A data set that draws from the global random streams, or that gives
other samples the second time, has state that nobody can see, and is refused.
"""

from __future__ import annotations

import copy
import hashlib
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from isoscale.data.stream_ledger import content_hash
from isoscale.errors import UserError

__all__ = ["IterableReader", "Iterables", "iterable"]

_CHUNK_SAMPLES = 64
_MASK = 2**64 - 1


def iterable(dataset: IterableDataset[object], *, partitions: int) -> Iterables:
    """The samples of an iterable data set that divides itself by `get_worker_info()`, as with so many loader processes.

    It is brought back to a place by `state_dict`/`load_state_dict` of its iterator or of itself, by `seek(n)` of its
    own, or else by reading it again from the beginning, which is said aloud.
    """
    if not hasattr(dataset, "__iter__"):
        raise UserError(
            field="iterable(dataset)", value=type(dataset).__name__, problem="not iterable", remedy="define __iter__"
        )
    if partitions < 1:
        raise UserError(
            field="iterable(partitions=...)",
            value=partitions,
            problem="not positive",
            remedy="give a few times the number of logical workers",
        )
    return Iterables(dataset, partitions)


class Iterables:
    def __init__(self, dataset: IterableDataset[object], partitions: int) -> None:
        self._dataset = dataset
        self.num_partitions = partitions
        self.identity = hashlib.sha256(f"iterable {type(dataset).__qualname__} {partitions}".encode()).hexdigest()[:16]
        self._is_proven = False

    def open(self, partition: int, position: Any) -> IterableReader:
        if not self._is_proven:
            self._prove(partition)
            self._is_proven = True
        return IterableReader(self._dataset, partition, self.num_partitions, position)

    def label(self, partition: int) -> str:
        return f"partition {partition} of {type(self._dataset).__name__}"

    def decode(self, stored: list[object]) -> Sequence[object]:
        return stored

    def _prove(self, partition: int) -> None:
        """Once per process, before it matters: the first samples must be the same when they are read again."""
        first, second = (IterableReader(self._dataset, partition, self.num_partitions, None) for _ in range(2))
        first.read()
        second.read()
        if first.digest != second.digest:
            raise _not_repeatable(partition, "the first samples are others when it is read again")


class IterableReader:
    """A position is [samples before it, hash of them, hash of the next one or None, state or None]."""

    def __init__(self, dataset: Any, partition: int, partitions: int, position: Any) -> None:
        self._partition = partition
        self._dataset = copy.deepcopy(dataset)
        self._info = torch_worker.WorkerInfo(
            id=partition, num_workers=partitions, seed=partition, dataset=self._dataset
        )
        self._count: int
        self.digest: int
        self._next: int | None
        self._count, self.digest, self._next, state = (0, 0, None, None) if position is None else position
        with self._as_worker():
            self._iterator = self._start(state)

    @property
    def position(self) -> Any:
        return [self._count, self.digest, None, self._state()]

    def read(self) -> tuple[Any, list[object]]:
        before = self.position
        with self._as_worker():
            samples = list(islice(self._iterator, _CHUNK_SAMPLES))
        hashes = [content_hash(sample) for sample in samples]
        before[2] = hashes[0] if hashes else None
        if self._next is not None and before[2] != self._next:
            raise _not_repeatable(self._partition, f"sample {self._count} is another one than before")
        self._next = None
        self._add(hashes)
        return before, samples

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()

    def _add(self, hashes: list[int]) -> None:
        for one in hashes:
            self.digest = (self.digest * 0x9E3779B97F4A7C15 + one + 1) & _MASK
        self._count += len(hashes)

    def _start(self, state: Any) -> Any:
        if self._count == 0:
            return iter(self._dataset)
        if state is not None:
            # Its owner may keep what it is given.
            state = copy.deepcopy(state)
            if hasattr(self._dataset, "load_state_dict"):
                self._dataset.load_state_dict(state)
                return iter(self._dataset)
            iterator = iter(self._dataset)
            iterator.load_state_dict(state)
            return iterator
        if hasattr(self._dataset, "seek"):
            self._dataset.seek(self._count)
            return iter(self._dataset)
        return self._replayed()

    def _replayed(self) -> Iterator[object]:
        wanted, expected, began = self._count, self.digest, time.perf_counter()
        self._count = self.digest = 0
        iterator: Iterator[object] = iter(self._dataset)
        while self._count < wanted:
            hashes = [content_hash(sample) for sample in islice(iterator, min(_CHUNK_SAMPLES, wanted - self._count))]
            if not hashes:
                break
            self._add(hashes)
        if (self._count, self.digest) != (wanted, expected):
            raise _not_repeatable(self._partition, f"the first {wanted} samples are others when they are read again")
        print(
            f"isoscale: read {wanted} samples of partition {self._partition} of {type(self._dataset).__name__} again, "
            f"in {time.perf_counter() - began:.2f} s; state_dict() and load_state_dict(), or seek(n), would save that",
            file=sys.stderr,
        )
        return iterator

    def _state(self) -> Any:
        for owner in (self._dataset, self._iterator):
            if hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict"):
                return copy.deepcopy(owner.state_dict())
        return None

    @contextmanager
    def _as_worker(self) -> Iterator[None]:
        """As in a loader process; and nothing may be drawn, for nobody would know how to draw it again."""
        before, torch_worker._worker_info = torch_worker._worker_info, self._info
        streams = random.getstate(), np.random.get_state(), torch.get_rng_state()
        try:
            yield
        finally:
            torch_worker._worker_info = before
        if random.getstate() != streams[0] or not torch.equal(torch.get_rng_state(), streams[2]) or _moved(streams[1]):
            raise _not_repeatable(self._partition, "it draws from the global random streams while it is read")


def _moved(before: Any) -> bool:
    now: Any = np.random.get_state()
    return bool(now[2] != before[2] or (now[1] != before[1]).any())


def _not_repeatable(partition: int, how: str) -> UserError:
    return UserError(
        field="iterable(dataset)",
        value=f"partition {partition}",
        problem=f"cannot be read twice with the same samples: {how}",
        remedy="keep what it depends on in state_dict(), draw from a generator that it seeds itself, "
        "or draw in transform= of job.stream",
    )
