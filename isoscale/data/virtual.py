"""The virtual workers of all logical workers: what stock PyTorch has as `num_workers` processes of each rank.

Batch b of a pass is made by virtual worker b mod W of its logical worker, whose random streams evolve from batch to
batch as they do in torch. W processes (`data.pool`) serve all logical workers that live here. The streams are known to
all executors once a step is sealed (`core.sharing.Carried`), so any executor can go on at any batch, without making
again what lies before; what was asked for ahead and not used is made again. What a batch consists of is the caller's
business (`data.loader`, `data.stream_batches`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from isoscale.core.streams import rng
from isoscale.data.pool import Pool
from isoscale.data.worker import Failure, Fetch, Parts, merged

__all__ = ["LoaderError", "VirtualWorkers", "WorkerOptions"]

_changes: msgspec.msgpack.Decoder[list[tuple[int, Parts]]] = msgspec.msgpack.Decoder(list[tuple[int, Parts]])
_encode = msgspec.msgpack.Encoder().encode


class LoaderError(RuntimeError):
    """The data set, `collate_fn` or `worker_init_fn` raised in a loader process; the message has its traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """As in torch's DataLoader."""

    num_workers: int
    prefetch_factor: int = 2
    init: Callable[[int], None] | None = None
    timeout: float = 0.0
    persistent: bool = False

    @property
    def ahead(self) -> int:
        """Batches of a logical worker that are asked for before the first of them is used."""
        return self.prefetch_factor * self.num_workers


@dataclass(slots=True)
class _Asked:
    attempt: int
    #: the batch to ask for next
    asked: int


class VirtualWorkers:
    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], object],
        options: WorkerOptions,
        *,
        num_logical_workers: int,
    ) -> None:
        self._dataset, self._collate, self._options = dataset, collate, options
        self._n = num_logical_workers
        self._pool: Pool | None = None
        self._seats: dict[int, _Asked] = {}
        self._attempts = 0
        #: per logical rank, what `iter()` drew; empty before the first pass
        self._seeds: list[int] = []
        #: the present pass began with a draw
        self.is_fresh = False
        #: per logical rank and virtual worker the streams after the last batch of a sealed step, None before the first
        self._streams: list[list[Parts | None]] = []
        #: per local logical rank, what each batch of the present step changed: virtual worker, changes
        self._pending: dict[int, list[tuple[int, Parts]]] = {}

    @property
    def draws(self) -> bool:
        """Whether the next `iter()` draws a base seed: always, but for persistent processes only the first."""
        return not (self._options.persistent and self._seeds)

    def begin(self, seeds: list[int]) -> None:
        """A pass begins. `seeds` is what `iter()` drew, by rank; not used where it does not draw."""
        self.forget()
        self.is_fresh = self.draws
        if self.is_fresh:
            self._renew(seeds)

    def begin_anew(self, seeds: list[int]) -> None:
        """Within a pass, as a new DataLoader: with other processes, which persist from then on if these did."""
        self.forget()
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        self._renew(seeds)
        self.is_fresh = True

    def _renew(self, seeds: list[int]) -> None:
        self.stop()
        self._seeds = seeds
        self._streams = [[None] * self._options.num_workers for _ in range(self._n)]

    def keep_only(self, ranks: Collection[int]) -> None:
        """No other logical workers live here any more."""
        for rank in [rank for rank in self._seats if rank not in ranks]:
            del self._seats[rank]
            if self._pool is not None:
                self._pool.drop(rank)

    def next_of(self, rank: int) -> int | None:
        """Which batch of a logical worker is to be asked for next; None if it has to `sit` down first."""
        seat = self._seats.get(rank)
        return None if seat is None else seat.asked

    def sit(self, rank: int, index: int) -> None:
        """Batches from `index` on will be asked for; loader processes start if there are none."""
        options = self._options
        if self._pool is None:
            self._pool = Pool(self._dataset, self._collate, options.init, options.num_workers, options.timeout)
        self._attempts += 1
        self._seats[rank] = _Asked(self._attempts, index)
        for worker in range(options.num_workers):
            self._pool.reset(worker, rank, self._seeds[rank], self._streams[rank][worker])

    def ask(self, rank: int, samples: list[Any]) -> None:
        """The next batch of a logical worker is to consist of these; without any it has none, and nobody gets it."""
        assert self._pool is not None
        seat = self._seats[rank]
        if samples:
            self._pool.ask(Fetch(seat.attempt, rank, seat.asked, samples))
        seat.asked += 1

    def get(self, rank: int, index: int) -> object:
        """A batch that was asked for. Raises LoaderError, or TimeoutError after the loader's own time-out."""
        assert self._pool is not None
        result = self._pool.get(self._seats[rank].attempt, rank, index)
        worker = index % self._options.num_workers
        if isinstance(result.data, Failure):
            sample = "" if result.data.sample is None else f", sample {result.data.sample}"
            raise LoaderError(
                f"{result.data.kind} in loader process {worker} for logical worker {rank}, batch {index}{sample}\n"
                f"{result.data.traceback_text}"
            )
        self._pending.setdefault(rank, []).append((worker, result.changes))
        return result.data

    def forget(self) -> None:
        """Nothing is wanted of what was asked for; whoever is served next sits down anew."""
        self._pending.clear()
        self.keep_only(())

    def stop(self) -> None:
        """The pass is over: loader processes go, unless they are persistent."""
        self._seats.clear()
        if self._pool is not None and not (self._options.persistent and self._seeds):
            self._pool.close()
            self._pool = None

    # ---- what all executors must know ----

    def mark(self) -> None:
        self._pending.clear()

    def changes_of(self, logical_rank: int) -> bytes:
        pending = self._pending.get(logical_rank)
        return b"" if pending is None else _encode(pending)

    def adopt(self, logical_rank: int, changes: bytes) -> None:
        for worker, parts in _changes.decode(changes):
            self._streams[logical_rank][worker] = merged(self._streams[logical_rank][worker], parts)

    def state(self) -> dict[str, object]:
        streams = [
            [None if one is None else rng.Streams.from_parts(one).to_state() for one in row] for row in self._streams
        ]
        return {"seeds": list(self._seeds), "streams": streams, "fresh": self.is_fresh}

    def load_state(self, state: dict[str, Any]) -> None:
        self.forget()
        self._seeds, self.is_fresh = list(state["seeds"]), bool(state.get("fresh", True))
        self._streams = [
            [None if one is None else rng.Streams.from_state(one).parts() for one in row] for row in state["streams"]
        ]
