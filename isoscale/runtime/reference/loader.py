"""Loaders of the reference: a stock DataLoader, or batches of a stream by `runtime.reference.stream`, as steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset, default_collate

from isoscale.data.readers import Source
from isoscale.data.readers.samples import checked_source
from isoscale.runtime.reference.rank import Rank, Total
from isoscale.runtime.reference.step import Step
from isoscale.runtime.reference.stream import StreamPlan, read_all

if TYPE_CHECKING:
    from isoscale.runtime.training.stream import StreamOptions

__all__ = ["Loader", "StockLoader", "StreamLoader"]


class Loader(ABC):
    """Steps of this rank; `totals` holds the sums over all ranks of the last (or present) pass."""

    def __init__(self, rank: Rank, *, train: bool) -> None:
        self._rank = rank
        self._train = train
        self.totals: dict[str, Total] = {}

    @abstractmethod
    def _begin(self) -> tuple[Iterator[object], int]:
        """A pass: its batches, and how many steps it has."""

    def __iter__(self) -> Iterator[Step]:
        rank = self._rank
        with rank.own_streams():
            batches, num_steps = self._begin()
        self.totals = {}
        for _ in range(num_steps):
            if self._train and rank.has_ended():
                break
            probe = rank.probe if self._train else None
            if probe is not None:
                probe.before_step(rank.step + 1)
            step = Step(rank, batches, self._train)
            yield step
            if probe is not None:
                probe.after_step(rank.step)
            for name, value in step.totals.items():
                self.totals[name] = self.totals[name] + value if name in self.totals else value


class StockLoader(Loader):
    """Over a stock DataLoader."""

    def __init__(self, rank: Rank, loader: DataLoader[object], *, train: bool, most_samples: int) -> None:
        """`most_samples` is how many of an evaluation's samples the rank with the most of them has."""
        super().__init__(rank, train=train)
        self._loader = loader
        self._most_samples = most_samples

    def __len__(self) -> int:
        if self._train:
            return len(self._loader)
        assert self._loader.batch_size is not None
        return -(-self._most_samples // self._loader.batch_size)

    def _begin(self) -> tuple[Iterator[object], int]:
        orders: list[object] = [self._loader.sampler, self._loader.batch_sampler] if self._train else []
        for order in orders:
            if hasattr(order, "set_epoch"):
                order.set_epoch(self._rank.epoch)
        return iter(self._loader), len(self)


class StreamLoader(Loader):
    """Over all samples of a source, in batches that were worked out beforehand."""

    def __init__(self, rank: Rank, source: object, batch_size: int, options: StreamOptions) -> None:
        train = options.get("train", True)
        super().__init__(rank, train=train)
        names = ("num_workers", "prefetch_factor", "worker_init_fn", "timeout")
        self._processes: dict[str, Any] = {name: value for name, value in options.items() if name in names}
        self._collate = options.get("collate_fn", default_collate)
        checked = checked_source(source)
        stored = read_all(checked)
        self._samples = _StreamSamples(checked, stored, options.get("transform"))
        self._plan = StreamPlan(
            [len(samples) for samples in stored],
            rank.spec.workers,
            batch_size,
            seed=rank.spec.seed,
            shuffle=options.get("shuffle_partitions", train),
            buffer=options.get("shuffle_buffer", 0),
            tail=options.get("tail", "partial"),
            prefetch=self._processes.get("num_workers", 0) * (self._processes.get("prefetch_factor") or 2),
        )

    def _begin(self) -> tuple[Iterator[object], int]:
        steps = self._plan.steps(self._rank.epoch)
        own = [step[self._rank.number] for step in steps if step[self._rank.number]]
        if self._processes.get("num_workers"):
            # What a stock DataLoader makes of these batches; `iter()` draws its base seed.
            loader = DataLoader(self._samples, batch_sampler=own, collate_fn=self._collate, **self._processes)
            return iter(loader), len(steps)
        return (self._collate(self._samples.__getitems__(places)) for places in own), len(steps)


class _StreamSamples(Dataset[object]):
    """All samples of a source, by partition and place in it."""

    def __init__(self, source: Source, stored: list[list[object]], transform: Callable[[Any], Any] | None) -> None:
        self._source, self._stored, self._transform = source, stored, transform

    def __getitem__(self, place: tuple[int, int]) -> object:
        return self.__getitems__([place])[0]

    def __getitems__(self, places: list[tuple[int, int]]) -> list[object]:
        samples = self._source.decode([self._stored[partition][i] for partition, i in places])
        return list(samples) if self._transform is None else [self._transform(s) for s in samples]
