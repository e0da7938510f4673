"""One stock DataLoader per logical worker, built exactly as a DDP script builds it for that rank.

Exact and simple: what a logical worker reads is what its DDP rank would read, including the draws
from its random streams, provided the caller makes that worker's streams active around `start` and
`next`. Costs `num_workers` processes per logical worker that lives here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from isoscale.errors import UserError

__all__ = ["EVERY_SAMPLE_ONCE", "LogicalLoaders", "check_options", "sample_count"]

#: options that are handed to every DataLoader as they are
_PASSED = frozenset(
    {
        "collate_fn",
        "drop_last",
        "num_workers",
        "persistent_workers",
        "pin_memory",
        "prefetch_factor",
        "timeout",
        "worker_init_fn",
    }
)
_REFUSED = {
    "sampler": "the order is DistributedSampler's, by seed, epoch and logical rank",
    "batch_sampler": "the order is DistributedSampler's, by seed, epoch and logical rank",
    "generator": "each logical worker draws from its own torch stream",
}
EVERY_SAMPLE_ONCE = "train=False visits every sample once, in order"


class _Share(Sampler[int]):
    """Logical worker r's samples of an evaluation: r, r + N, ... without padding."""

    def __init__(self, size: int, num_logical_workers: int, logical_rank: int) -> None:
        self._indices = range(logical_rank, size, num_logical_workers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


class LogicalLoaders:
    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        num_logical_workers: int,
        seed: int,
        batch_size: int,
        shuffle: bool,
        train: bool,
        options: dict[str, Any],
    ) -> None:
        check_options(dataset, batch_size=batch_size, shuffle=shuffle, train=train, options=options)
        self._make: Callable[[int], DataLoader[Any]] = lambda rank: DataLoader(
            dataset, batch_size=batch_size, sampler=self._sampler(rank), **options
        )
        self._dataset_size = len(dataset)  # type: ignore[arg-type]
        self._n, self._seed, self._shuffle, self._train = num_logical_workers, seed, shuffle, train
        self._dataset = dataset
        self._loaders: dict[int, DataLoader[Any]] = {}
        self._iterators: dict[int, Iterator[Any]] = {}
        #: steps of one epoch; rank 0 never has fewer batches than another
        self.num_steps = len(self._loader(0))

    def start(self, logical_rank: int, epoch: int) -> None:
        """Called with the worker's streams active: making the iterator draws its base seed from them."""
        loader = self._loader(logical_rank)
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        self._iterators[logical_rank] = iter(loader)

    def next(self, logical_rank: int, default: Any) -> Any:
        """The worker's next batch, or `default` if it has none left. Called with its streams active."""
        return next(self._iterators[logical_rank], default)

    def stop(self) -> None:
        """Let go of iterators, and so of their processes unless they are persistent."""
        self._iterators.clear()

    def _loader(self, logical_rank: int) -> DataLoader[Any]:
        if logical_rank not in self._loaders:
            self._loaders[logical_rank] = self._make(logical_rank)
        return self._loaders[logical_rank]

    def _sampler(self, logical_rank: int) -> Sampler[int]:
        if self._train:
            return DistributedSampler(
                self._dataset, num_replicas=self._n, rank=logical_rank, shuffle=self._shuffle, seed=self._seed
            )
        return _Share(self._dataset_size, self._n, logical_rank)


def check_options(dataset: Any, *, batch_size: int, shuffle: bool, train: bool, options: dict[str, Any]) -> None:
    """Refuse what could not be reproduced, with the field, the value and the remedy."""
    for name, value in options.items():
        if name in _REFUSED:
            raise UserError(field=f"job.loader({name}=...)", value=value, problem=_REFUSED[name], remedy="leave it out")
        if name not in _PASSED:
            raise UserError(
                field="job.loader",
                value=name,
                problem="no such option",
                remedy=f"known: batch_size, shuffle, train, {', '.join(sorted(_PASSED))}",
            )
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise UserError(
            field="job.loader(dataset)",
            value=type(dataset).__name__,
            problem="not a map-style data set",
            remedy="give a data set with __getitem__ and __len__",
        )
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UserError(
            field="job.loader(batch_size=...)",
            value=batch_size,
            problem="not a positive integer",
            remedy="give the batch size of one logical worker",
        )
    if len(dataset) == 0:
        raise UserError(
            field="job.loader(dataset)",
            value="0 samples",
            problem="nothing to iterate",
            remedy="give a non-empty data set",
        )
    if shuffle and not train:
        raise UserError(field="job.loader(shuffle=...)", value=True, problem=EVERY_SAMPLE_ONCE, remedy="leave it out")
    if not train and options.get("drop_last"):
        raise UserError(field="job.loader(drop_last=...)", value=True, problem=EVERY_SAMPLE_ONCE, remedy="leave it out")


def sample_count(batch: Any) -> int:
    """How many samples a batch holds, for display: the length of its first tensor."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, dict):
        return max((sample_count(value) for value in batch.values()), default=0)
    if isinstance(batch, list | tuple) and batch:
        return sample_count(batch[0])
    return 0
