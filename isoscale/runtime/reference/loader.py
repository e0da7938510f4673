"""Loaders of the reference: a stock DataLoader, or batches of a stream by `runtime.reference.stream`, as steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

from isoscale.data.readers.samples import checked_source
from isoscale.runtime.reference.rank import Rank
from isoscale.runtime.reference.step import Step
from isoscale.runtime.reference.stream import StreamPlan, read_all

__all__ = ["Loader", "StreamLoader"]


class Loader:
    def __init__(self, rank: Rank, loader: Any, train: bool, smallest: int) -> None:
        self._rank = rank
        self._loader = loader
        self._train = train
        self._smallest = smallest
        self.totals: dict[str, Any] = {}

    def __len__(self) -> int:
        if self._train:
            return len(self._loader)
        assert self._loader.batch_size is not None
        return int(-(-self._smallest // self._loader.batch_size))

    def _begin(self) -> tuple[Iterator[Any], int]:
        """A pass: its batches, and how many steps it has."""
        orders: list[Any] = [self._loader.sampler, self._loader.batch_sampler] if self._train else []
        for order in orders:
            if hasattr(order, "set_epoch"):
                order.set_epoch(self._rank.epoch)
        return iter(self._loader), len(self)

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


class StreamLoader(Loader):
    def __init__(
        self, rank: Rank, source: Any, batch_size: int, transform: Any, collate: Any, rule: dict[str, Any]
    ) -> None:
        train = rule.get("train", True)
        super().__init__(rank, None, train, 0)
        names = ("num_workers", "prefetch_factor", "worker_init_fn", "timeout")
        self._processes: dict[str, Any] = {name: value for name, value in rule.items() if name in names}
        checked = checked_source(source)
        stored = read_all(checked)
        self._samples, self._collate = _StreamSamples(checked, stored, transform), collate
        self._plan = StreamPlan(
            [len(samples) for samples in stored],
            rank.spec.workers,
            batch_size,
            seed=rank.spec.seed,
            shuffle=rule.get("shuffle_partitions", train),
            buffer=rule.get("shuffle_buffer", 0),
            tail=rule.get("tail", "partial"),
            prefetch=self._processes.get("num_workers", 0) * (self._processes.get("prefetch_factor") or 2),
        )

    def _begin(self) -> tuple[Iterator[Any], int]:
        steps = self._plan.steps(self._rank.epoch)
        own = [step[self._rank.number] for step in steps if step[self._rank.number]]
        if self._processes.get("num_workers"):
            # What a stock DataLoader makes of these batches; `iter()` draws its base seed.
            loader = DataLoader(self._samples, batch_sampler=own, collate_fn=self._collate, **self._processes)
            return iter(loader), len(steps)
        return (self._collate(self._samples.__getitems__(places)) for places in own), len(steps)


class _StreamSamples(Dataset[Any]):
    """All samples of a source, by partition and place in it."""

    def __init__(self, source: Any, stored: list[list[Any]], transform: Any) -> None:
        self._source, self._stored, self._transform = source, stored, transform

    def __getitem__(self, place: tuple[int, int]) -> Any:
        return self.__getitems__([place])[0]

    def __getitems__(self, places: list[tuple[int, int]]) -> list[Any]:
        samples = self._source.decode([self._stored[partition][i] for partition, i in places])
        return list(samples) if self._transform is None else [self._transform(s) for s in samples]
