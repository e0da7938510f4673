"""What all logical workers have left when partitions are used up, rank after rank, as one list to be dealt out.

Each executor walks through the list and takes the slices of its own workers. Whole workers are passed over by their
counts; within one, samples that others get are read and thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from isoscale.data.stream_worker import Place, WorkerSamples

__all__ = ["Rest"]

_STRIDE = 1024


class Rest:
    def __init__(self, places: Sequence[Place], opened: Callable[[int, Place], WorkerSamples]) -> None:
        self._places, self._opened = places, opened
        self._starts = [0, *accumulate(place.left for place in places)]
        #: whose samples are read, and up to where in the list
        self._rank = -1
        self._samples: WorkerSamples | None = None
        self._at = 0

    def slice(self, start: int, stop: int) -> list[object]:
        """Samples `start` to `stop` of the list; cheapest if it lies behind the last slice."""
        out: list[object] = []
        while start < stop:
            rank = next(r for r, end in enumerate(self._starts[1:]) if start < end)
            part = min(stop, self._starts[rank + 1]) - start
            out += self._read(rank, start, part)
            start += part
        return out

    def _read(self, rank: int, start: int, count: int) -> list[object]:
        if self._samples is None or rank != self._rank or start < self._at:
            if self._samples is not None:
                self._samples.close()
            self._rank, self._at = rank, self._starts[rank]
            self._samples = self._opened(rank, self._places[rank])
        while self._at < start:
            self._at += len(self._samples.take(min(_STRIDE, start - self._at)))
        self._at += count
        return self._samples.take(count)
