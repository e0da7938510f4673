"""Which samples a logical worker reads in a pass, batch by batch: what its rank of a stock DDP script would read.

`DistributedSampler` for training, every N-th sample for evaluation, or a sampler of the user's own per logical worker.
Pure index arithmetic: the data set is never touched, so any place of a pass is reached at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, Dataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from isoscale.errors import UserError

__all__ = ["CustomOrder", "DistributedOrder", "EvaluationOrder", "Fixed", "Order", "SamplerFactory"]

#: called with logical rank and number of logical workers; gives samples, or batches of them
SamplerFactory = Callable[[int, int], Iterable[Any]]


class DistributedOrder:
    """Training: stock DDP's `DistributedSampler` with `set_epoch`."""

    #: the order is known without drawing from anybody's streams
    draws = False

    def __init__(
        self,
        dataset: Dataset[object],
        *,
        num_logical_workers: int,
        seed: int,
        shuffle: bool,
        batch_size: int,
        drop_last: bool,
    ) -> None:
        self._batch_size, self._drop_last = batch_size, drop_last
        self._make: Callable[[int], DistributedSampler[int]] = lambda rank: DistributedSampler(
            dataset, num_replicas=num_logical_workers, rank=rank, shuffle=shuffle, seed=seed
        )
        self._n, self._list_length = num_logical_workers, len(self._make(0))
        self.num_steps = _num_batches(self._list_length, batch_size, drop_last)

    def batches(self, logical_rank: int, epoch: int, index: int) -> Iterator[list[int]]:
        """Batches `index`, `index + 1`, ... of this worker's pass."""
        sampler = self._make(logical_rank)
        sampler.set_epoch(epoch)
        samples = islice(iter(sampler), index * self._batch_size, None)
        return iter(BatchSampler(Fixed(samples), self._batch_size, self._drop_last))

    def samples_before(self, index: int) -> int:
        """How many samples all logical workers together read before batch `index` of a pass."""
        return self._n * min(self._list_length, index * self._batch_size)


class EvaluationOrder:
    """Evaluation: logical worker r reads r, r + N, ...: every sample once, without padding."""

    draws = False

    def __init__(self, size: int, *, num_logical_workers: int, batch_size: int) -> None:
        self._size, self._n, self._batch_size = size, num_logical_workers, batch_size
        self.num_steps = _num_batches(len(range(0, size, num_logical_workers)), batch_size, False)

    def batches(self, logical_rank: int, epoch: int, index: int) -> Iterator[list[int]]:
        mine = range(logical_rank, self._size, self._n)
        for start in range(index * self._batch_size, len(mine), self._batch_size):
            yield list(mine[start : start + self._batch_size])

    def samples_before(self, index: int) -> int:
        mine = (len(range(rank, self._size, self._n)) for rank in range(self._n))
        return sum(min(length, index * self._batch_size) for length in mine)


class CustomOrder:
    """A sampler, or batch sampler, of the user's own for each logical worker.

    It may draw from the worker's streams when a pass begins, as torch's `RandomSampler` does, so that is when its
    whole order is taken, for all logical workers on every executor.
    """

    draws = True

    def __init__(
        self, factory: SamplerFactory, *, num_logical_workers: int, batch_size: int | None, drop_last: bool, field: str
    ) -> None:
        self._samplers = [factory(rank, num_logical_workers) for rank in range(num_logical_workers)]
        self._batch_size, self._drop_last, self._field = batch_size, drop_last, field
        self._orders: list[list[list[int]]] = []
        self.num_steps = self._length(self._samplers[0])

    def take(self, logical_rank: int, epoch: int) -> None:
        """With the worker's streams active, when a pass begins."""
        sampler = self._samplers[logical_rank]
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        if self._batch_size is None:
            batches = [list(batch) for batch in sampler]
        else:
            batches = list(BatchSampler(Fixed(iter(sampler)), self._batch_size, self._drop_last))
        if logical_rank == 0:
            self._orders, self.num_steps = [], len(batches)
        if len(batches) != self.num_steps:
            raise UserError(
                field=self._field,
                value=f"{len(batches)} batches for logical worker {logical_rank}",
                problem=f"logical worker 0 has {self.num_steps}",
                remedy="give every logical worker as many batches as the others",
            )
        self._orders.append(batches)

    def batches(self, logical_rank: int, epoch: int, index: int) -> Iterator[list[int]]:
        return iter(self._orders[logical_rank][index:])

    def samples_before(self, index: int) -> int:
        return sum(len(batch) for batches in self._orders for batch in batches[:index])

    def state(self) -> list[list[list[int]]]:
        return self._orders

    def load(self, orders: Sequence[Sequence[Sequence[int]]]) -> None:
        self._orders = [[list(batch) for batch in one] for one in orders]
        self.num_steps = len(self._orders[0]) if self._orders else self.num_steps

    def _length(self, sampler: Any) -> int:
        try:
            return (
                len(sampler)
                if self._batch_size is None
                else _num_batches(len(sampler), self._batch_size, self._drop_last)
            )
        except TypeError:
            raise UserError(
                field=self._field,
                value=type(sampler).__name__,
                problem="has no length",
                remedy="give it a __len__: the number of samples (or batches) of one logical worker",
            ) from None


Order = DistributedOrder | EvaluationOrder | CustomOrder


class Fixed(Sampler[int]):
    """What an iterator gives, as a sampler."""

    def __init__(self, samples: Iterator[int]) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[int]:
        return self._samples


def _num_batches(samples: int, batch_size: int, drop_last: bool) -> int:
    return samples // batch_size if drop_last else -(-samples // batch_size)
