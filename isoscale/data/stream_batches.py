"""Batches out of a stream: samples are decoded, transformed and collated in the turn, or ahead in loader processes.

Without loader processes this happens under the logical worker's own streams. With `num_workers=W` the executor reads
the files, and W processes do the rest under the streams of virtual workers (`data.virtual`): batch b of a pass is made
by virtual worker b mod W, as a stock DataLoader over the same batches would have it. Read ahead is what is certain: a
worker that has enough samples will get them whatever comes, and it is given partitions early enough (`Rule.prefetch`)
to have enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from isoscale.data.readers.source import Source
from isoscale.data.stream import LogicalStream
from isoscale.data.virtual import VirtualWorkers, WorkerOptions

__all__ = ["StreamBatches"]

_changes: msgspec.msgpack.Decoder[tuple[bytes, bytes]] = msgspec.msgpack.Decoder(tuple[bytes, bytes])
_encode = msgspec.msgpack.Encoder().encode


class _Samples:
    """What loader processes take for a map-style data set: its indices are samples as they are stored."""

    def __init__(self, source: Source, transform: Callable[[Any], object] | None) -> None:
        self._source, self._transform = source, transform

    def __getitems__(self, stored: list[object]) -> list[object]:
        samples, transform = self._source.decode(stored), self._transform
        if transform is not None:
            return [transform(sample) for sample in samples]
        return samples if type(samples) is list else list(samples)


class StreamBatches:
    """A stream's state, and the batches of the logical workers that live here."""

    def __init__(
        self,
        stream: LogicalStream,
        transform: Callable[[Any], object] | None,
        collate: Callable[[list[Any]], object],
        processes: WorkerOptions | None,
        *,
        num_logical_workers: int,
    ) -> None:
        self.stream = stream
        self._samples, self._collate = _Samples(stream.source, transform), collate
        self._workers = None
        if processes is not None:
            self._workers = VirtualWorkers(self._samples, collate, processes, num_logical_workers=num_logical_workers)
            self._ahead = processes.ahead
        #: batches of the pass that other loader processes have made, before the last change of the batch size
        self._first = 0

    @property
    def carried(self) -> LogicalStream | StreamBatches:
        """What all executors must know: without loader processes that is the stream's own state."""
        return self.stream if self._workers is None else self

    @property
    def draws(self) -> bool:
        """Whether `iter()` draws a base seed."""
        return self._workers is not None and self._workers.draws

    def begin(self, epoch: int, seeds: list[int]) -> None:
        self.stream.begin(epoch)
        self._first = 0
        if self._workers is not None:
            self._workers.begin(seeds)

    def needs_draw(self, index: int) -> bool:
        """Whether a change of the batch size before batch `index` draws base seeds, as a new DataLoader does."""
        return self._workers is not None and (index > self._first or not self._workers.is_fresh)

    def renew(self, index: int, seeds: list[int]) -> None:
        """From batch `index` on other loader processes make them, from what their `iter()` drew."""
        assert self._workers is not None
        self._first = index
        self._workers.begin_anew(seeds)

    def resize(self, size: int) -> None:
        self.stream.resize(size)
        if self._workers is not None:
            self._workers.forget()

    def count(self) -> None:
        """No full steps are left: what was taken ahead of the turns belongs to the rest, which is dealt anew."""
        self.stream.count()
        if self._workers is not None:
            self._workers.forget()

    def open(self, ranks: Sequence[int], index: int) -> None:
        """Get ready to give these logical workers, and no others, batch `index`."""
        self.stream.open(ranks)
        if self._workers is None:
            return
        index -= self._first
        self._workers.keep_only(ranks)
        for rank in ranks:
            asked = self._workers.next_of(rank)
            if asked is None or asked < index:
                self._workers.sit(rank, index)
        for batch in range(index, index + self._ahead):  # in the order in which turns will need them
            for rank in ranks:
                if self._workers.next_of(rank) == batch and (batch == index or self.stream.is_certain(rank)):
                    self._workers.ask(rank, self.stream.take(rank))

    def fetch(self, logical_rank: int, index: int, default: object, *, here: bool) -> object:
        """A worker's batch of the present step, `default` if it has none; nothing changes if it lives elsewhere."""
        if self._workers is None:
            stored = self.stream.fetch(logical_rank, here=here)
            return self._collate(self._samples.__getitems__(stored)) if stored else default
        index -= self._first
        if here:
            size = self.stream.use(logical_rank)
        else:
            stored = self.stream.fetch(logical_rank, here=False)
            size = len(stored)
            self._workers.sit(logical_rank, index)
            self._workers.ask(logical_rank, stored)
        return self._workers.get(logical_rank, index) if size else default

    def stop(self) -> None:
        self.stream.stop()
        if self._workers is not None:
            self._workers.stop()

    # ---- carried with steps and rounds, where there are loader processes ----

    def mark(self) -> None:
        assert self._workers is not None
        self.stream.mark()
        self._workers.mark()

    def rewind(self) -> None:
        assert self._workers is not None
        self.stream.rewind()
        self._workers.forget()

    def changes_of(self, logical_rank: int) -> bytes:
        assert self._workers is not None
        place, streams = self.stream.changes_of(logical_rank), self._workers.changes_of(logical_rank)
        return _encode((place, streams)) if place or streams else b""

    def adopt(self, logical_rank: int, changes: bytes, *, here: bool) -> None:
        assert self._workers is not None
        place, streams = _changes.decode(changes)
        if place:
            self.stream.adopt(logical_rank, place, here=here)
        if streams:
            self._workers.adopt(logical_rank, streams)

    def state(self) -> dict[str, object]:
        assert self._workers is not None
        return {"stream": self.stream.state(), "workers": self._workers.state(), "first": self._first}

    def load_state(self, state: dict[str, Any]) -> None:
        assert self._workers is not None
        self.stream.load_state(state["stream"])
        self._first = int(state.get("first", 0))
        self._workers.load_state(state["workers"])
