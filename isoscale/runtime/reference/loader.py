"""Loaders of the reference: a stock DataLoader, or batches of a stream by `runtime.reference.stream`, as steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset, default_collate

from isoscale.data.loader import sample_count
from isoscale.data.readers.samples import checked_source
from isoscale.runtime.reference.rank import Rank, Total
from isoscale.runtime.reference.step import Step
from isoscale.runtime.reference.stream import StreamPlan, read_all

if TYPE_CHECKING:
    from isoscale.runtime.training.stream import StreamOptions

__all__ = ["Loader", "StockLoader", "StreamLoader", "StreamSamples", "TurnLoader", "stream_plan"]


class Loader(ABC):
    """Steps of this rank; `totals` holds the sums over all ranks of the last (or present) pass."""

    def __init__(self, rank: Rank, *, train: bool) -> None:
        self._rank = rank
        self._train = train
        #: steps of the present (or last) pass that lie behind
        self.position = 0
        self.totals: dict[str, Total] = {}

    @abstractmethod
    def _begin(self) -> tuple[Iterator[object], int]:
        """A pass: its batches, and how many steps it has."""

    def __iter__(self) -> Iterator[Step]:
        rank = self._rank
        with rank.own_streams():
            batches, num_steps = self._begin()
        self.totals, self.position = {}, 0
        for index in range(num_steps):
            if self._train and rank.has_ended():
                break
            yield from self._one_step(batches, index)

    def _num_samples(self, batch: object) -> int:
        return sample_count(batch)

    def _one_step(self, batches: Iterator[object], index: int) -> Iterator[Step]:
        rank = self._rank
        probe = rank.probe if self._train else None
        if probe is not None:
            probe.before_step(rank.step + 1)
        step = Step(rank, batches, self._train, index, self._num_samples)
        yield step
        if probe is not None:
            probe.after_step(rank.step)
        for name, value in step.totals.items():
            self.totals[name] = self.totals[name] + value if name in self.totals else value
        self.position += 1


class StockLoader(Loader):
    """Over a stock DataLoader."""

    def __init__(self, rank: Rank, loader: DataLoader[object], *, train: bool, most_samples: int) -> None:
        """`most_samples` is how many of an evaluation's samples the rank with the most of them has."""
        super().__init__(rank, train=train)
        self._loader = loader
        self._most_samples = most_samples

    @property
    def batch_size(self) -> int | None:
        return self._loader.batch_size

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


class TurnLoader(Loader):
    """Nothing but turns, of this rank or of one that is not this."""

    def __init__(self, rank: Rank, steps: int, samples: int, only: int | None, *, train: bool) -> None:
        super().__init__(rank, train=train)
        self._steps, self._samples = steps, samples
        self._takes_part = only in (None, rank.number)

    def __len__(self) -> int:
        return self._steps

    def _begin(self) -> tuple[Iterator[object], int]:
        return repeat(self._rank.number, self._steps if self._takes_part else 0), self._steps

    def _num_samples(self, batch: object) -> int:
        return self._samples


class StreamLoader(Loader):
    """Over all samples of a source, in batches that were worked out beforehand."""

    def __init__(self, rank: Rank, source: object, batch_size: int, options: StreamOptions) -> None:
        super().__init__(rank, train=options.get("train", True))
        self.batch_size = batch_size
        self._samples = StreamSamples(source, options)
        self._plan = stream_plan(rank, self._samples, batch_size, options)

    def _begin(self) -> tuple[Iterator[object], int]:
        steps = self._plan.steps(self._rank.epoch)
        own = [step[self._rank.number] for step in steps if step[self._rank.number]]
        return self._samples.batches(own), len(steps)


def stream_plan(rank: Rank, samples: StreamSamples, batch_size: int, options: StreamOptions) -> StreamPlan:
    return StreamPlan(
        samples.sizes,
        rank.spec.workers,
        batch_size,
        seed=rank.spec.seed,
        shuffle=options.get("shuffle_partitions", options.get("train", True)),
        buffer=options.get("shuffle_buffer", 0),
        tail=options.get("tail", "partial"),
        prefetch=samples.prefetch,
    )


class StreamSamples(Dataset[object]):
    """All samples of a source, by partition and place in it, and batches of them."""

    def __init__(self, source: object, options: StreamOptions) -> None:
        self._source = checked_source(source)
        self._stored = read_all(self._source)
        self._transform = options.get("transform")
        self._collate = options.get("collate_fn", default_collate)
        names = ("num_workers", "prefetch_factor", "worker_init_fn", "timeout")
        self._processes: dict[str, Any] = {name: value for name, value in options.items() if name in names}

    @property
    def sizes(self) -> list[int]:
        return [len(samples) for samples in self._stored]

    @property
    def prefetch(self) -> int:
        """Batches of a rank that are made ahead."""
        count: int = self._processes.get("num_workers", 0) * (self._processes.get("prefetch_factor") or 2)
        return count

    def batches(self, own: list[list[tuple[int, int]]]) -> Iterator[object]:
        if self._processes.get("num_workers"):
            # What a stock DataLoader makes of these batches; `iter()` draws its base seed.
            return iter(DataLoader(self, batch_sampler=own, collate_fn=self._collate, **self._processes))
        return (self._collate(self.__getitems__(places)) for places in own)

    def __getitem__(self, place: tuple[int, int]) -> object:
        return self.__getitems__([place])[0]

    def __getitems__(self, places: list[tuple[int, int]]) -> list[object]:
        samples = self._source.decode([self._stored[partition][i] for partition, i in places])
        transform: Callable[[Any], Any] | None = self._transform
        return list(samples) if transform is None else [transform(s) for s in samples]
