"""A stock pass in which the batch size changes, for `isoscale verify`: at a planned step a rank leaves its loader.

The stock loop gets this in the place of its loader, and of the number of batches in it. At the beginning of every
accumulation window the plan is asked. Where it changes the size, the rank lets go of its loader, one batch ahead as
accelerate's loader is, and goes on with one that the stock class makes: of the new size, over what is left of the list
that all ranks share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import RandomSampler, Sampler

from isoscale.integrations.transformers.live_reading import samples_of
from isoscale.integrations.transformers.passage import Passage
from isoscale.runtime.reference.live import LiveSize

__all__ = ["BatchesInPass", "LivePass", "Rest"]


class Rest(Sampler[int]):
    """What is left of a stock sampler's list."""

    def __init__(self, samples: list[int], sampler: object) -> None:
        self._samples = samples
        if isinstance(sampler, RandomSampler):
            # Which accelerate makes one that listens; it tells a data set of epochs only where its sampler does not.
            self.set_epoch = lambda epoch: None

    def __iter__(self) -> Iterator[int]:
        return iter(self._samples)

    def __len__(self) -> int:
        return len(self._samples)


class BatchesInPass(Passage):
    """Stands for the number that the stock loop calls `steps_in_epoch`, and may change under it."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, done: object) -> bool:
        return done == self.total

    def __rtruediv__(self, done: int) -> float:
        return self.share(done)

    def __mod__(self, other: int) -> int:
        return self.total % other


class LivePass:
    """Iterated once. `loader_over` makes a stock loader of a size over samples; `on_size` is told of a change."""

    def __init__(
        self,
        loader: Any,
        live: LiveSize,
        num_ranks: int,
        loader_over: Callable[[list[int], int], Any],
        on_size: Callable[[LivePass], None],
    ) -> None:
        self._loader, self.live, self._n = loader, live, num_ranks
        self._loader_over, self._on_size = loader_over, on_size
        self._drops_last = bool(loader.batch_sampler.drop_last)
        self._list = samples_of(loader)
        #: of the present loader: its iterator, what it gave, and where in the list it began
        self._batches: Iterator[Any] | None = None
        self._given, self._offset = 0, 0
        self._is_over = False
        #: batches of the pass that a rank has got
        self.done = 0
        if live.size != loader.total_batch_size // num_ranks:
            self._loader = loader_over(self._list, live.size)
        self.count = BatchesInPass(len(self._loader))
        live.begin_pass()

    @property
    def most_steps(self) -> int:
        """More than the pass can have."""
        return len(self._list) + 1

    @property
    def batches_per_pass(self) -> int:
        """Of one rank in a whole pass, with the present size."""
        return self._num_batches(len(self._list), self.live.size)

    def __iter__(self) -> LivePass:
        return self

    def __next__(self) -> Any:
        if self._batches is None or self._is_over:
            raise StopIteration
        batch = next(self._batches)
        self._given, self.done = self._given + 1, self.done + 1
        return batch

    def batches_left(self, size: int) -> int:
        """Of one rank, if they had this size from here on."""
        return self._num_batches(max(0, len(self._list) - self._offset - self._given * self._n * self.live.size), size)

    def _num_batches(self, samples: int, size: int) -> int:
        return samples // (self._n * size) if self._drops_last else -(-samples // (self._n * size))

    def arrive(self) -> None:
        """An accumulation window begins."""
        if self._is_over:
            return
        size = self.live.wanted()
        if not self.batches_left(size):
            self._is_over = True
        elif size != self.live.size:
            self._change(size)
        if self._batches is None and not self._is_over:
            self._batches = iter(self._loader)

    def _change(self, size: int) -> None:
        left = self.batches_left(size)
        self._offset, self._given = self._offset + self._given * self._n * self.live.size, 0
        if self._batches is not None:
            self._batches.close()  # type: ignore[attr-defined]
            self._loader.end()
            self._batches = None
        self.live.change(size)
        self._loader = self._loader_over(self._list[self._offset :], size)
        assert len(self._loader) == left
        self.count.cut(self.done, left=left)
        self._on_size(self)
