"""Batch sizes that change, for the reference: at a planned step a rank leaves its DataLoader and goes on with another.

The new one is a stock DataLoader of the new size over what is left of the rank's list, with all other options as
before. A stream's batches are worked out with the new size from there on (`runtime.reference.stream`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Sampler

from isoscale.batches import due
from isoscale.runtime.reference.loader import Loader, StreamSamples, stream_plan
from isoscale.runtime.reference.rank import Rank
from isoscale.runtime.reference.step import Step
from isoscale.runtime.training.batch_rules import BatchRule, factor_of, scale_rates

if TYPE_CHECKING:
    from isoscale.runtime.training.stream import StreamOptions

__all__ = ["LiveSize", "LiveStockLoader", "LiveStreamLoader"]


class LiveSize:
    """The present size of a rank's batches, and the plan by which it changes."""

    def __init__(self, rank: Rank, size: int, rule: BatchRule | None) -> None:
        self._rank, self.size, self.rule = rank, size, rule
        self._considered = -1
        self._wanted = size
        self._factor: float | None = None
        #: whether what is wanted comes into force, or only ends a pass
        self._is_made = True

    def begin_pass(self) -> None:
        if not self._is_made:
            self._wanted, self._is_made = self.size, True

    def wanted(self) -> int:
        """The size that the next step is to have."""
        entry = due(self._rank.spec.batch_plan, self._considered, self._rank.step)
        self._considered = self._rank.step
        if entry is not None:
            self._wanted, self._factor, self._is_made = entry.size, entry.factor, entry.made
        return self._wanted

    def steps_left(self) -> int | None:
        """Until the plan changes it again; None if it does not."""
        later = (entry.step for entry in self._rank.spec.batch_plan if entry.step > self._rank.step)
        return min((step - self._rank.step for step in later), default=None)

    def change(self, size: int) -> None:
        assert self.rule is not None
        if callable(self.rule):
            self.rule(self.size, size)
        else:
            factor, n = self._factor, self._rank.spec.workers
            if factor is None:
                factor = factor_of(self.rule, self.size, size, num_workers=n, noise_scale=None)
            scale_rates(self._rank.kept.values(), factor)
        self.size = size


class _LiveLoader(Loader):
    def __init__(self, rank: Rank, size: int, rule: BatchRule | None) -> None:
        super().__init__(rank, train=True)
        rank.live = self.live = LiveSize(rank, size, rule)

    @property
    def batch_size(self) -> int:
        return self.live.size

    def __iter__(self) -> Iterator[Step]:
        rank, live = self._rank, self.live
        self.totals, self.position = {}, 0
        self._begin_list()
        live.begin_pass()
        batches: Iterator[object] | None = None
        while not rank.has_ended():
            size, drew = live.wanted(), batches is not None
            has_step = self._has_step(size)
            if has_step and size != live.size:
                live.change(size)
                batches = None
            if batches is None and (has_step or not drew):
                with rank.own_streams():
                    batches = self._batches(live.size)
            if not has_step:
                return
            assert batches is not None
            yield from self._one_step(batches, self.position)
            self._took(live.size)

    def _begin(self) -> tuple[Iterator[object], int]:
        raise AssertionError("a pass has as many steps as its sizes give")

    @abstractmethod
    def _begin_list(self) -> None:
        """A pass begins; nothing is read, or drawn."""

    @abstractmethod
    def _has_step(self, size: int) -> bool:
        """Is there another step with batches of this size?"""

    @abstractmethod
    def _batches(self, size: int) -> Iterator[object]:
        """What is left, in batches of this size."""

    @abstractmethod
    def _took(self, size: int) -> None:
        """A step is done."""


class LiveStockLoader(_LiveLoader):
    def __init__(
        self, rank: Rank, dataset: Any, size: int, sampler: Any, rule: BatchRule | None, options: dict[str, Any]
    ) -> None:
        super().__init__(rank, size, rule)
        self._dataset, self._sampler, self._options = dataset, sampler, options
        self._loader = self._make(size)
        self._list: list[int] | None = None
        self._at, self._steps = 0, 0

    def __len__(self) -> int:
        return self._steps + self._num_left(self.live.size)

    def rest(self) -> Iterator[int]:
        """What is left of the rank's list, which is taken when it is first asked for."""
        if self._list is None:
            self._list = list(self._sampler)
        return iter(self._list[self._at :])

    def _make(self, size: int) -> DataLoader[object]:
        return DataLoader(self._dataset, size, sampler=_Rest(self.rest), **self._options)

    def _begin_list(self) -> None:
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(self._rank.epoch)
        self._list, self._at, self._steps = None, 0, 0

    def _has_step(self, size: int) -> bool:
        return self._num_left(size) > 0

    def _num_left(self, size: int) -> int:
        left = len(self._sampler) - self._at
        return left // size if self._options.get("drop_last") else -(-left // size)

    def _batches(self, size: int) -> Iterator[object]:
        if size != self._loader.batch_size or self._steps:
            self._loader = self._make(size)
        return iter(self._loader)

    def _took(self, size: int) -> None:
        self._at, self._steps = min(len(self._sampler), self._at + size), self._steps + 1


class LiveStreamLoader(_LiveLoader):
    def __init__(self, rank: Rank, source: object, size: int, options: StreamOptions) -> None:
        super().__init__(rank, size, options.get("batch_rule"))
        self._samples = StreamSamples(source, options)
        self._plan = stream_plan(rank, self._samples, size, options)
        #: steps that were worked out and not done yet
        self._ahead: list[list[list[tuple[int, int]]]] = []

    def _begin_list(self) -> None:
        self._plan.begin(self._rank.epoch)
        self._ahead = []

    def _has_step(self, size: int) -> bool:
        if not self._ahead and (step := self._plan.next(size)) is not None:
            self._ahead.append(step)
        return bool(self._ahead)

    def _batches(self, size: int) -> Iterator[object]:
        most = self.live.steps_left()
        while (most is None or len(self._ahead) < most) and self._ahead:
            step = self._plan.next(size)
            if step is None:
                break
            self._ahead.append(step)
        return self._samples.batches([step[self._rank.number] for step in self._ahead])

    def _took(self, size: int) -> None:
        del self._ahead[0]


class _Rest(Sampler[int]):
    def __init__(self, rest: Callable[[], Iterable[int]]) -> None:
        self._rest = rest

    def __iter__(self) -> Iterator[int]:
        return iter(self._rest())
