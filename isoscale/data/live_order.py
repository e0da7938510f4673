"""Which samples a logical worker reads where the batch size may change while it trains: one list, read once, in order.

The list is the worker's own of the epoch: stock DDP's `DistributedSampler` with its padding, or a sampler of the
user's. How it is cut into batches is `data.segments`'s business, and the same for all logical workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, Dataset
from torch.utils.data.distributed import DistributedSampler

from isoscale.data.order import Fixed, SamplerFactory
from isoscale.data.segments import Segments
from isoscale.errors import UserError

__all__ = ["LiveOrder", "distributed", "listed"]


class LiveOrder:
    """The lists of all logical workers, and how they are cut in the present pass."""

    def __init__(
        self, samplers: list[Any], num_samples: int, batch_size: int, *, drop_last: bool, draws: bool, field: str
    ) -> None:
        self.segments = Segments(num_samples, batch_size, drop_last=drop_last)
        #: samplers draw from their worker's streams when a pass begins, which is when their lists are taken
        self.draws = draws
        self._samplers, self._drop_last, self._field = samplers, drop_last, field
        self._lists: list[list[int]] = []

    @property
    def num_steps(self) -> int:
        return self.segments.num_steps

    def take(self, logical_rank: int, epoch: int) -> None:
        """With the worker's streams active, when a pass begins. Raises UserError if lists differ in length."""
        sampler = self._samplers[logical_rank]
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        samples = list(sampler)
        if logical_rank == 0:
            self._lists = []
            self.segments.begin(len(samples))
        if len(samples) != self.segments.num_samples:
            raise UserError(
                field=self._field,
                value=f"{len(samples)} samples for logical worker {logical_rank}",
                problem=f"logical worker 0 has {self.segments.num_samples}, and with batch_sizes all need as many",
                remedy="give every logical worker as many samples as the others, or leave batch_sizes out",
            )
        self._lists.append(samples)

    def begin(self) -> None:
        """A pass begins; where samplers draw, `take` follows."""
        self.segments.begin()

    def batches(self, logical_rank: int, epoch: int, index: int) -> Iterator[list[int]]:
        """Batches `index`, `index + 1`, ... of this worker's pass, as it is cut now."""
        offset, size = self.segments.offset_of(index), self.segments.size_of(index)
        if self.draws:
            samples = iter(self._lists[logical_rank][offset:])
        else:
            sampler = self._samplers[logical_rank]
            sampler.set_epoch(epoch)
            samples = islice(iter(sampler), offset, None)
        return iter(BatchSampler(Fixed(samples), size, self._drop_last))

    def samples_before(self, index: int) -> int:
        """How many samples all logical workers together read before batch `index` of the pass."""
        return len(self._samplers) * self.segments.offset_of(index)

    def state(self) -> dict[str, object]:
        return {"segments": self.segments.state(), "lists": self._lists}

    def load(self, state: dict[str, Any]) -> None:
        self.segments.load(state["segments"])
        self._lists = [list(samples) for samples in state["lists"]]


def distributed(
    dataset: Dataset[object], n: int, *, seed: int, shuffle: bool, batch_size: int, drop_last: bool
) -> LiveOrder:
    """Stock DDP's lists."""
    samplers: list[Any] = [DistributedSampler(dataset, n, rank, shuffle, seed=seed) for rank in range(n)]
    return LiveOrder(samplers, len(samplers[0]), batch_size, drop_last=drop_last, draws=False, field="job.loader")


def listed(factory: SamplerFactory, n: int, *, batch_size: int, drop_last: bool) -> LiveOrder:
    """Those of the user's samplers."""
    field = "job.loader(sampler=...)"
    samplers: list[Any] = [factory(rank, n) for rank in range(n)]
    try:
        sizes = [len(sampler) for sampler in samplers]
    except TypeError:
        problem, remedy = "has no length", "give it a __len__: the number of samples of one logical worker"
        raise UserError(field=field, value=type(samplers[0]).__name__, problem=problem, remedy=remedy) from None
    if len(set(sizes)) > 1:
        problem = "logical workers have different numbers of samples, which batch_sizes does not allow"
        remedy = "give every logical worker as many samples as the others, or leave batch_sizes out"
        raise UserError(field=field, value=", ".join(map(str, sizes[:8])), problem=problem, remedy=remedy)
    return LiveOrder(samplers, sizes[0], batch_size, drop_last=drop_last, draws=True, field=field)
