"""One stock DataLoader per logical worker, built exactly as a DDP script builds it for that rank.

Exact and simple: what a logical worker reads is what its DDP rank would read, including the draws
from its random streams, provided the caller makes that worker's streams active around `fetch`. Any batch
of a pass can be asked for: the next one is simply read; for another one the worker's DataLoader is opened
anew and brought there, without touching the data set where no loader processes are involved, else by
reading again what lies before. Costs `num_workers` processes per logical worker that lives here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from itertools import islice
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


class _From(Sampler[int]):
    """A sampler's order without its first samples."""

    def __init__(self, sampler: Sampler[int], skipped: int) -> None:
        self._sampler = sampler
        self._skipped = skipped

    def __iter__(self) -> Iterator[int]:
        return islice(iter(self._sampler), self._skipped, None)


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
        self._dataset, self._batch_size, self._options = dataset, batch_size, options
        self._dataset_size = len(dataset)  # type: ignore[arg-type]
        self._n, self._seed, self._shuffle, self._train = num_logical_workers, seed, shuffle, train
        self._has_processes = options.get("num_workers", 0) > 0
        self._persistent = bool(options.get("persistent_workers"))
        self._loaders: dict[int, DataLoader[Any]] = {}
        #: per logical worker its iterator and the batch that it gives next
        self._iterators: dict[int, tuple[Iterator[Any], int]] = {}
        #: logical workers whose persistent processes have read all passes so far
        self._passes_read: set[int] = set()
        #: epochs of the passes begun so far; persistent loader processes live through all of them
        self.epochs: list[int] = []
        #: per logical rank the torch state from which `iter()` of the present pass draws its base seed
        self.starts: list[torch.Tensor] = []
        #: steps of one epoch; rank 0 never has fewer batches than another
        self.num_steps = len(self._loader(0))

    @property
    def draws(self) -> bool:
        """Whether the next `iter()` draws a base seed: always, but for persistent processes only the first."""
        return not (self._persistent and self._has_processes and self.epochs)

    def begin(self, epoch: int, starts: list[torch.Tensor]) -> None:
        """A pass begins. `starts` is what `iter()` draws from; empty if it draws nothing."""
        self.epochs.append(epoch)
        self.starts = starts or self.starts
        self._iterators.clear()

    def open(self, ranks: Sequence[int], index: int) -> None:
        """Get ready to give these logical workers, and no others, batch `index`; loader processes start at once."""
        for rank in [rank for rank in self._iterators if rank not in ranks]:
            self._forget(rank)
        for rank in ranks:
            if rank not in self._iterators or self._iterators[rank][1] != index:
                self._open(rank, index)

    def fetch(self, logical_rank: int, index: int, default: Any) -> Any:
        """Batch `index` of a worker in the present pass, or `default` if there is none. With its streams active."""
        if logical_rank not in self._iterators or self._iterators[logical_rank][1] != index:
            self._open(logical_rank, index)
        iterator, _ = self._iterators[logical_rank]
        self._iterators[logical_rank] = (iterator, index + 1)
        return next(iterator, default)

    def stop(self) -> None:
        """Let go of iterators, and so of their processes unless they are persistent."""
        self._iterators.clear()

    def _open(self, rank: int, index: int) -> None:
        # The worker's torch stream must not move: what iter() draws was drawn when the pass began.
        before = torch.default_generator.get_state()
        if self._has_processes:
            self._iterators[rank] = (self._replayed(rank, index), index)
        else:
            loader = self._make(rank, skipped=index * self._batch_size)
            self._set_epoch(loader, self.epochs[-1])
            self._iterators[rank] = (iter(loader), index)
        torch.default_generator.set_state(before)

    def _replayed(self, rank: int, index: int) -> Iterator[Any]:
        """Loader processes have streams of their own, which only reading moves."""
        continues = self._persistent and rank in self._loaders and rank in self._passes_read
        if not continues:
            self._forget(rank)
        loader = self._loader(rank)
        first = len(self.epochs) - 1 if continues or not self._persistent else 0
        for number in range(first, len(self.epochs)):
            self._set_epoch(loader, self.epochs[number])
            torch.default_generator.set_state(self.starts[rank])
            iterator = iter(loader)
            last = number == len(self.epochs) - 1
            for _ in range(index if last else self.num_steps):
                next(iterator, None)
        self._passes_read.add(rank)
        return iterator

    def _forget(self, rank: int) -> None:
        self._iterators.pop(rank, None)
        self._loaders.pop(rank, None)
        self._passes_read.discard(rank)

    def _set_epoch(self, loader: DataLoader[Any], epoch: int) -> None:
        sampler = loader.sampler
        while isinstance(sampler, _From):
            sampler = sampler._sampler
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)

    def _loader(self, logical_rank: int) -> DataLoader[Any]:
        if logical_rank not in self._loaders:
            self._loaders[logical_rank] = self._make(logical_rank)
        return self._loaders[logical_rank]

    def _make(self, logical_rank: int, *, skipped: int = 0) -> DataLoader[Any]:
        sampler = self._sampler(logical_rank)
        if skipped:
            sampler = _From(sampler, skipped)
        return DataLoader(self._dataset, batch_size=self._batch_size, sampler=sampler, **self._options)

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
