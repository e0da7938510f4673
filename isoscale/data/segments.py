"""Where batches begin in a logical worker's list of samples when the batch size changes within a pass. Pure arithmetic.

The list of an epoch is read once and in order. A change cuts it: what comes after is read in batches of the new size,
by a loader of its own whose batches are counted from the cut, as a stock DataLoader over the rest of the list would.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Cut", "Segments"]


class Cut(NamedTuple):
    """From batch `first` of the pass on, which begins at sample `offset`, batches have `size` samples."""

    first: int
    offset: int
    size: int


class Segments:
    """The sizes of one pass over lists of `num_samples` each.

    >>> pass_ = Segments(10, 4)
    >>> pass_.num_steps, pass_.offset_of(1)
    (3, 4)
    >>> pass_.cut(1, 2); pass_.num_steps, pass_.offset_of(2), pass_.own_index(2)
    (4, 6, 1)
    """

    def __init__(self, num_samples: int, size: int, *, drop_last: bool = False) -> None:
        self.num_samples, self._drop_last = num_samples, drop_last
        self._cuts = [Cut(0, 0, size)]

    @property
    def size(self) -> int:
        """The present one."""
        return self._cuts[-1].size

    @property
    def cuts(self) -> tuple[Cut, ...]:
        return tuple(self._cuts)

    @property
    def num_steps(self) -> int:
        """Batches before the last cut, and those after it."""
        last = self._cuts[-1]
        return last.first + self._batches(self.num_samples - last.offset, last.size)

    @property
    def steps_per_pass(self) -> int:
        """Of a whole pass with the present size."""
        return self._batches(self.num_samples, self.size)

    def begin(self, num_samples: int | None = None) -> None:
        """A pass begins, with the present size."""
        self._cuts = [Cut(0, 0, self.size)]
        self.num_samples = self.num_samples if num_samples is None else num_samples

    def offset_of(self, index: int) -> int:
        """How many samples lie before batch `index`."""
        cut = self._cut_of(index)
        return min(self.num_samples, cut.offset + (index - cut.first) * cut.size)

    def own_index(self, index: int) -> int:
        """Which batch of its loader it is: counted from the cut."""
        return index - self._cut_of(index).first

    def size_of(self, index: int) -> int:
        """With what size batch `index` is read; the last one may have fewer samples."""
        return self._cut_of(index).size

    def has_left(self, index: int, size: int) -> bool:
        """Would there be a batch if from batch `index` on they had this size?"""
        return self._batches(self.num_samples - self.offset_of(index), size) > 0

    def cut(self, index: int, size: int) -> None:
        """Batches from `index` on, none of which was read, have `size` samples."""
        offset = self.offset_of(index)
        self._cuts = [cut for cut in self._cuts if cut.first < index]
        self._cuts.append(Cut(index, offset, size))

    def state(self) -> list[list[int]]:
        return [[self.num_samples, 0, 0], *(list(cut) for cut in self._cuts)]

    def load(self, state: list[list[int]]) -> None:
        self.num_samples = int(state[0][0])
        self._cuts = [Cut(*map(int, cut)) for cut in state[1:]]

    def _cut_of(self, index: int) -> Cut:
        return next(cut for cut in reversed(self._cuts) if cut.first <= index)

    def _batches(self, samples: int, size: int) -> int:
        return samples // size if self._drop_last else -(-samples // size)
