"""The rule of `job.stream` once more, for the reference: all partitions in memory, everything worked out beforehand.

A second implementation of what `data.stream_rule` states, from the sizes of partitions alone, with nothing of the
elastic path's places, blocks and rounds. Every rank of a stock DDP job computes the whole plan and takes its part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import torch

from isoscale.data.readers import Source

__all__ = ["StreamPlan", "read_all"]

#: partition, place in it
Sample = tuple[int, int]


class StreamPlan:
    """What each of `n` logical workers gets in each step of each pass; `tail="carry"` remembers between passes."""

    def __init__(
        self,
        sizes: Sequence[int],
        n: int,
        batch: int,
        *,
        seed: int,
        shuffle: bool,
        buffer: int,
        tail: str,
        prefetch: int = 0,
    ) -> None:
        self._sizes, self._n, self._batch, self._prefetch = sizes, n, batch, prefetch
        self._seed, self._shuffle, self._buffer, self._tail = seed, shuffle, buffer, tail
        self._given: list[list[Sample]] = [[] for _ in range(n)]
        self._used = [0] * n

    def steps(self, epoch: int) -> list[list[list[Sample]]]:
        """Samples by step and logical rank, of a pass in which the batch size stays what it is."""
        self.begin(epoch)
        steps = []
        while (step := self.next(self._batch)) is not None:
            steps.append(step)
        return steps

    def begin(self, epoch: int) -> None:
        """A pass."""
        if self._tail != "carry":
            self._given, self._used = [[] for _ in range(self._n)], [0] * self._n
        self._pool = list(range(len(self._sizes)))
        if self._shuffle:
            generator = torch.Generator().manual_seed(self._seed + epoch)
            self._pool = torch.randperm(len(self._sizes), generator=generator).tolist()
        self._key = 0 if self._tail == "carry" else epoch
        self._rest: list[Sample] | None = None
        self._parts: list[list[Sample]] = []

    def next(self, batch: int) -> list[list[Sample]] | None:
        """The next step's samples by logical rank, with this batch size from here on; None at the end of the pass."""
        changed, self._batch = batch != self._batch, batch
        if self._rest is None:
            if self._is_full():
                return [self._take(rank, batch, self._key) for rank in range(self._n)]
            if self._tail != "partial":
                return None
            left = self._left()
            self._rest = [sample for rank in range(self._n) for sample in self._take(rank, left[rank], self._key)]
            self._parts = self._dealt(self._rest)
        elif changed:
            self._parts = self._dealt([sample for part in self._parts for sample in part])
        step, self._parts = self._parts[: self._n], self._parts[self._n :]
        return step or None

    def _is_full(self) -> bool:
        """A whole batch for every worker, by the rule."""
        if not self._fill(self._pool) and min(self._left()) < self._batch + (self._tail != "drop"):
            return False
        return self._tail != "carry" or min(self._left()) >= self._batch + max(1, self._buffer)

    def _dealt(self, rest: list[Sample]) -> list[list[Sample]]:
        num = max(1, min(-(-len(rest) // (self._n * self._batch)), len(rest) // self._n)) if rest else 0
        sizes = [len(rest) // (num * self._n) + (i < len(rest) % (num * self._n)) for i in range(num * self._n)]
        return [rest[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(len(sizes))]

    @property
    def _ahead(self) -> int:
        return self._batch * (1 + self._prefetch) + max(1, self._buffer)

    def _left(self) -> list[int]:
        return [len(given) - used for given, used in zip(self._given, self._used, strict=True)]

    def _fill(self, pool: list[int]) -> bool:
        """Partitions to those who have too few, in rounds; True if all have enough then."""
        while pool and min(self._left()) < self._ahead:
            for rank in [rank for rank, left in enumerate(self._left()) if left < self._ahead]:
                if pool:
                    partition = pool.pop(0)
                    self._given[rank] += [(partition, i) for i in range(self._sizes[partition])]
        return min(self._left()) >= self._ahead

    def _take(self, rank: int, count: int, key: int) -> list[Sample]:
        start, self._used[rank] = self._used[rank], self._used[rank] + count
        return [self._at(rank, place, key) for place in range(start, start + count)]

    def _at(self, rank: int, place: int, key: int) -> Sample:
        size = max(1, self._buffer)
        number, within = divmod(place, size)
        block = self._given[rank][number * size : (number + 1) * size]
        if size == 1:
            return block[0]
        return block[_order(f"{self._seed}/{key}/{rank}/{number}", len(block))[within]]


@lru_cache(maxsize=64)
def _order(name: str, size: int) -> list[int]:
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big"))
    order: list[int] = torch.randperm(size, generator=generator).tolist()
    return order


def read_all(source: Source) -> list[list[object]]:
    """Every partition's samples as they are stored."""
    out = []
    for partition in range(source.num_partitions):
        reader, stored = source.open(partition, None), []
        while more := reader.read()[1]:
            stored += more
        reader.close()
        out.append(stored)
    return out
