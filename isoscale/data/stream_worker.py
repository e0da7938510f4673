"""One logical worker's part of a stream: its place, which everybody knows, and its samples, where it lives.

A worker's sequence is its partitions one after the other, as they are read. It is used in blocks of the shuffle
buffer's size, each in an order of its own; so where the present block begins (the anchor), which partitions come
after that and how many samples were used is all there is to know. Bringing a worker to a place takes reading again from
the anchor: at most two blocks, or what a reader gives at a time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from isoscale.data.readers.source import Position, Reader, Source
from isoscale.data.stream_rule import Rule, block_order

__all__ = ["Place", "WorkerSamples"]


class Place(NamedTuple):
    """Where a logical worker stands; never changed, only replaced, which named tuples do fastest."""

    #: samples used of its sequence
    used: int = 0
    #: unused samples it is known to have; at most as many as it looks ahead, unless they were counted
    left: int = 0
    #: the sample of its sequence from which reading begins again: in partitions[0], at `position` (None: beginning)
    anchor: int = 0
    position: Position = None
    #: partitions of its sequence that are read to their end before the anchor, and those from there on
    num_before: int = 0
    partitions: tuple[int, ...] = ()
    #: sum of the hashes of all samples it used, where a ledger is kept
    content: int = 0

    def to_state(self) -> list[object]:
        used, left, anchor, position, num_before, partitions, content = self
        # What torch.load and MessagePack take for an integer is signed.
        return [used, left, anchor, position, num_before, list(partitions), content.to_bytes(8, "little")]

    @classmethod
    def from_state(cls, state: list[Any]) -> Place:
        used, left, anchor, position, num_before, partitions, content = state
        return cls(used, left, anchor, position, num_before, tuple(partitions), int.from_bytes(content, "little"))


@dataclass(slots=True)
class _Chunk:
    """What a reader gave in one go."""

    #: place in the sequence of its first sample, and of the first one after it
    first: int
    end: int
    samples: list[object]
    #: of `WorkerSamples.partitions`
    partition: int
    position: Position


class WorkerSamples:
    """The samples of one worker from its place on. Not shared, not sent: made again from the place where needed."""

    def __init__(self, source: Source, rule: Rule, epoch: int, logical_rank: int, place: Place) -> None:
        self._source, self._rule = source, rule
        self._epoch, self._rank = epoch, logical_rank
        self._size, self._need, self._ahead = max(1, rule.shuffle_buffer), rule.need, rule.ahead
        self._used = place.used
        self._partitions = list(place.partitions)
        self._num_before = place.num_before
        self._chunks: deque[_Chunk] = deque()
        #: samples of the sequence that were read
        self._read = place.anchor
        #: partition that is read, and its reader; without one it has not been opened
        self._current = 0
        self._reader: Reader | None = None
        self._position = place.position
        #: the present block in the order of its use, and its number
        self._block: list[object] = []
        self._block_number = -1

    def extend(self, partition: int) -> None:
        """Another partition was given to this worker."""
        self._partitions.append(partition)

    def look_ahead(self, limit: int) -> int:
        """Read until `limit` unused samples are known, or all of them; how many there are, at most `limit`."""
        while self._read - self._used < limit and self._read_on():
            pass
        return min(limit, self._read - self._used)

    def left_after(self, used: int) -> int:
        """Unused samples after so many used ones, at most as many as a worker looks ahead; more may have been taken."""
        self.look_ahead(self._ahead - (self._used - used))
        return min(self._ahead, self._read - used)

    def count(self) -> int:
        """All unused samples. Reads to the end, but holds nothing of it."""
        total = self._read - self._used
        position = self._reader.position if self._reader is not None else self._position
        for partition in self._partitions[self._current :]:
            reader = self._source.open(partition, position)
            while stored := reader.read()[1]:
                total += len(stored)
            reader.close()
            position = None
        return total

    def take(self, count: int) -> list[object]:
        """The next samples, as they are stored. There must be as many, and the last block must be whole or final."""
        if self._read - self._used < self._need + count:
            self.look_ahead(self._need + count)
        give = self._from_block if self._size > 1 else self._from_chunks
        out = give(count)
        self._used += len(out)
        while len(out) < count:
            more = give(count - len(out))
            assert more, f"logical worker {self._rank} has fewer samples than it was believed to have"
            self._used += len(more)
            out = out + more
        # What lies before the anchor is not needed any more.
        needed = self._used - self._used % self._size
        while self._chunks and self._chunks[0].end <= needed:
            self._chunks.popleft()
        return out

    def place(self, before: Place) -> Place:
        """Where the worker stands now, after it has looked ahead."""
        left = self._read - self._used
        left = self._ahead if left >= self._ahead else self.left_after(self._used)
        if self._chunks:
            chunk = self._chunks[0]
            anchor, current, position = chunk.first, chunk.partition, chunk.position
        else:
            anchor, current = self._read, self._current
            position = self._reader.position if self._reader is not None else self._position
        num_before, partitions = self._num_before + current, before.partitions
        if num_before != before.num_before:
            partitions = tuple(self._partitions[current:])
        return Place(self._used, left, anchor, position, num_before, partitions, before.content)

    def settled(self, place: Place) -> Place:
        """A place that was passed, with what was given to the worker since."""
        partitions = tuple(self._partitions[place.num_before - self._num_before :])
        return place._replace(left=self.left_after(place.used), partitions=partitions)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _read_on(self) -> bool:
        """One more chunk; False if all partitions so far are read."""
        while self._current < len(self._partitions):
            if self._reader is None:
                self._reader = self._source.open(self._partitions[self._current], self._position)
            position, samples = self._reader.read()
            if samples:
                end = self._read + len(samples)
                self._chunks.append(_Chunk(self._read, end, samples, self._current, position))
                self._read = end
                return True
            self.close()
            self._current, self._position = self._current + 1, None
        return False

    def _from_chunks(self, wanted: int) -> list[object]:
        while self._chunks and self._chunks[0].end <= self._used:
            self._chunks.popleft()
        if not self._chunks:
            return []
        at = self._used - self._chunks[0].first
        return self._chunks[0].samples[at : at + wanted]

    def _from_block(self, wanted: int) -> list[object]:
        number, at = divmod(self._used, self._size)
        if number != self._block_number:
            self._open_block(number)
        return self._block[at : at + wanted]

    def _open_block(self, number: int) -> None:
        start, stop = number * self._size, (number + 1) * self._size
        raw: list[object] = []
        for chunk in self._chunks:
            if chunk.end > start and chunk.first < stop:
                raw += chunk.samples[max(0, start - chunk.first) : stop - chunk.first]
        order = block_order(len(raw), self._rule.seed, self._epoch, self._rank, number)
        self._block, self._block_number = [raw[i] for i in order], number
