"""A map-style data set in ranges: partitions of so many samples, which are fetched in the turn that uses them.

What `dataset[i]` draws comes from the streams of the logical worker that uses sample i. Positions are indices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Sized
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from isoscale.data.readers.source import Source, is_source
from isoscale.errors import UserError

__all__ = ["RangeReader", "Samples", "checked_source", "samples"]

_CHUNK_SAMPLES = 1024


def samples(dataset: object, *, partition_samples: int = 256) -> Samples:
    """The samples of a map-style data set, cut into ranges of `partition_samples`."""
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise UserError(
            field="samples(dataset)",
            value=type(dataset).__name__,
            problem="not a map-style data set",
            remedy="give one with __getitem__ and __len__, or use isoscale.iterable",
        )
    if partition_samples < 1:
        raise UserError(
            field="samples(partition_samples=...)", value=partition_samples, problem="not positive", remedy="give 1 up"
        )
    return Samples(dataset, len(dataset), partition_samples)


class Samples:
    def __init__(self, dataset: Any, size: int, partition_samples: int) -> None:
        self._dataset = dataset
        self._bounds = [*range(0, size, partition_samples), size]
        self.num_partitions = len(self._bounds) - 1
        text = f"samples {size} {partition_samples}"
        self.identity = hashlib.sha256(text.encode()).hexdigest()[:16]

    def open(self, partition: int, position: int | None) -> RangeReader:
        start, stop = self._bounds[partition], self._bounds[partition + 1]
        return RangeReader(start if position is None else position, stop)

    def label(self, partition: int) -> str:
        return f"samples {self._bounds[partition]} to {self._bounds[partition + 1] - 1}"

    def decode(self, stored: list[int]) -> Sequence[object]:
        return [self._dataset[index] for index in stored]


class RangeReader:
    def __init__(self, position: int, stop: int) -> None:
        self.position, self._stop = position, stop

    def read(self) -> tuple[int, list[int]]:
        before = self.position
        self.position = min(self._stop, before + _CHUNK_SAMPLES)
        return before, list(range(before, self.position))

    def close(self) -> None:
        pass


def checked_source(source: object) -> Source:
    """A source, or a map-style data set, which is one in ranges."""
    if is_source(source):
        if source.num_partitions < 1:
            raise UserError(
                field="job.stream(source)", value="0 partitions", problem="nothing to read", remedy="give some data"
            )
        return source
    if isinstance(source, Dataset) and not isinstance(source, IterableDataset) and hasattr(source, "__len__"):
        return samples(source)
    raise UserError(
        field="job.stream(source)",
        value=type(source).__name__,
        problem="not a source",
        remedy="wrap it: isoscale.iterable(dataset, partitions=16), isoscale.text_lines('*.txt'), ...",
    )
