"""A job's map-style data: any batch of any logical worker, as its rank of a stock DDP script would read it.

Without loader processes a batch is read in the turn, under the logical worker's own streams. With `num_workers=W` the
executor has W processes (`data.pool`) whatever number of logical workers it hosts; batch b of a pass is read by the
virtual worker b mod W of its logical worker, whose random streams evolve from batch to batch as they do in torch. Those
streams are known to all executors once a step is sealed (`core.sharing.Carried`), so any executor can go on at any
batch, without reading again what lies before; what was read ahead and not used is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

import msgspec
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

from isoscale.core import rng
from isoscale.data.order import CustomOrder, DistributedOrder, EvaluationOrder, Order
from isoscale.data.pool import Pool
from isoscale.data.worker import Failure, Fetch, Parts, merged
from isoscale.errors import UserError

__all__ = ["EVERY_SAMPLE_ONCE", "LoaderError", "LogicalLoaders", "check_options", "sample_count"]

#: options that mean what they mean in torch's DataLoader
_PASSED = frozenset(
    {
        "collate_fn",
        "drop_last",
        "num_workers",
        "persistent_workers",
        "pin_memory",
        "prefetch_factor",
        "timeout",
        "worker_init_fn",
    }
)
#: options that are called once per logical worker
_FACTORIES = frozenset({"sampler", "batch_sampler"})
_REFUSED = {"generator": "each logical worker draws from its own torch stream"}
EVERY_SAMPLE_ONCE = "train=False visits every sample once, in order"

_changes: msgspec.msgpack.Decoder[tuple[int, Parts]] = msgspec.msgpack.Decoder(tuple[int, Parts])
_encode = msgspec.msgpack.Encoder().encode


class LoaderError(RuntimeError):
    """The data set, `collate_fn` or `worker_init_fn` raised in a loader process; the message has its traceback."""


class _Seat:
    """Where a logical worker that lives here is in its pass."""

    def __init__(self, attempt: int, index: int, batches: Iterator[list[int]]) -> None:
        self.attempt = attempt
        #: the batch it gets next, and, with loader processes, the one to ask for next
        self.index = self.asked = index
        self.batches = batches


class LogicalLoaders:
    """The batches of one loader for all logical workers; those that live here are served."""

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        num_logical_workers: int,
        seed: int,
        batch_size: int,
        shuffle: bool,
        train: bool,
        options: dict[str, Any],
    ) -> None:
        check_options(dataset, batch_size=batch_size, shuffle=shuffle, train=train, options=options)
        stock = _stock(dataset, batch_size, options)
        self._dataset: Any = dataset
        self._n = num_logical_workers
        self._collate: Callable[[Any], Any] = stock.collate_fn
        self._pins = stock.pin_memory and torch.cuda.is_available()
        self._init, self._timeout = stock.worker_init_fn, float(stock.timeout)
        self._num_workers = stock.num_workers
        self._persistent = stock.persistent_workers
        self._ahead = (stock.prefetch_factor or 2) * max(1, stock.num_workers)
        self._order = _order(dataset, num_logical_workers, seed, batch_size, shuffle, train, options)
        self._pool: Pool | None = None
        self._seats: dict[int, _Seat] = {}
        self._attempts = 0
        self._epoch = 0
        #: per logical rank, what `iter()` drew; empty before the first pass
        self._seeds: list[int] = []
        #: per logical rank and virtual worker the streams after the last batch of a sealed step, None before the first
        self._streams: list[list[Parts | None]] = []
        #: per local logical rank, what the batch of the present step changed: virtual worker, changes
        self._pending: dict[int, tuple[int, Parts]] = {}

    @property
    def num_steps(self) -> int:
        """Steps of one pass; rank 0 never has fewer batches than another."""
        return self._order.num_steps

    @property
    def draws(self) -> bool:
        """Whether the next `iter()` draws a base seed: always, but for persistent processes only the first."""
        return not (self._persistent and self._seeds)

    def begin(self, epoch: int, seeds: list[int], under: Callable[[int, Callable[[], None]], None]) -> None:
        """A pass begins. `seeds` is what `iter()` drew, by rank; `under(rank, work)` runs work under its streams."""
        self._epoch = epoch
        self._seats.clear()
        self._pending.clear()
        if self.draws:
            self.stop()
            self._seeds = seeds
            self._streams = [[None] * self._num_workers for _ in range(self._n)]
        if isinstance(self._order, CustomOrder):
            order = self._order
            for rank in range(self._n):
                under(rank, lambda rank=rank: order.take(rank, epoch))  # type: ignore[misc]

    def open(self, ranks: Sequence[int], index: int) -> None:
        """Get ready to give these logical workers, and no others, batch `index`; loader processes start at once."""
        for rank in [rank for rank in self._seats if rank not in ranks]:
            del self._seats[rank]
            if self._pool is not None:
                self._pool.drop(rank)
        late = [rank for rank in ranks if rank not in self._seats or self._seats[rank].index != index]
        for rank in late:
            self._seat(rank, index)
        if self._num_workers:
            for _ in range(self._ahead):  # in the order in which turns will need them
                for rank in late:
                    self._ask(rank)

    def fetch(self, logical_rank: int, index: int, default: Any) -> Any:
        """Batch `index` of a worker in the present pass, or `default` if there is none. With its streams active."""
        if logical_rank not in self._seats or self._seats[logical_rank].index != index:
            self._open_one(logical_rank, index)
        seat = self._seats[logical_rank]
        seat.index = index + 1
        if self._num_workers:
            return self._from_process(logical_rank, index, seat, default)
        samples = next(seat.batches, None)
        if samples is None:
            return default
        return self._finished(_read(self._dataset, samples, self._collate))

    def stop(self) -> None:
        """The pass is over: loader processes go, unless they are persistent."""
        self._seats.clear()
        if self._pool is not None and not (self._persistent and self._seeds):
            self._pool.close()
            self._pool = None

    # ---- what all executors must know ----

    def mark(self) -> None:
        self._pending.clear()

    def rewind(self) -> None:
        self._pending.clear()

    def changes_of(self, logical_rank: int) -> bytes:
        pending = self._pending.get(logical_rank)
        return b"" if pending is None else _encode(pending)

    def adopt(self, logical_rank: int, changes: bytes, *, here: bool) -> None:
        worker, parts = _changes.decode(changes)
        self._streams[logical_rank][worker] = merged(self._streams[logical_rank][worker], parts)

    def state(self) -> dict[str, Any]:
        """What another executor, or a later run, needs to go on with the present pass."""
        streams = [
            [None if one is None else rng.Streams.from_parts(one).to_state() for one in row] for row in self._streams
        ]
        order = self._order.state() if isinstance(self._order, CustomOrder) else None
        return {"epoch": self._epoch, "seeds": list(self._seeds), "streams": streams, "order": order}

    def load_state(self, state: dict[str, Any]) -> None:
        self._seats.clear()
        self._pending.clear()
        self._epoch, self._seeds = int(state["epoch"]), list(state["seeds"])
        self._streams = [
            [None if one is None else rng.Streams.from_state(one).parts() for one in row] for row in state["streams"]
        ]
        if isinstance(self._order, CustomOrder) and state["order"] is not None:
            self._order.load(state["order"])

    # ---- loader processes ----

    def _seat(self, rank: int, index: int) -> None:
        self._attempts += 1
        self._seats[rank] = _Seat(self._attempts, index, self._order.batches(rank, self._epoch, index))
        if not self._num_workers:
            return
        if self._pool is None:
            self._pool = Pool(self._dataset, self._collate, self._init, self._num_workers, self._timeout)
        for worker in range(self._num_workers):
            self._pool.reset(worker, rank, self._seeds[rank], self._streams[rank][worker])

    def _open_one(self, rank: int, index: int) -> None:
        """A worker whose turn is run here only to be compared: nothing is read ahead for it."""
        self._seat(rank, index)
        if self._num_workers:
            self._ask(rank)

    def _ask(self, rank: int) -> None:
        seat = self._seats[rank]
        samples = next(seat.batches, None)
        if samples is not None:
            assert self._pool is not None
            self._pool.ask(Fetch(seat.attempt, rank, seat.asked, samples))
            seat.asked += 1

    def _from_process(self, rank: int, index: int, seat: _Seat, default: Any) -> Any:
        assert self._pool is not None
        if index >= seat.asked:
            return default
        result = self._pool.get(seat.attempt, rank, index)
        self._ask(rank)
        if isinstance(result.data, Failure):
            sample = "" if result.data.sample is None else f", sample {result.data.sample}"
            raise LoaderError(
                f"{result.data.kind} in loader process {index % self._num_workers} for logical worker {rank}, "
                f"batch {index}{sample}\n{result.data.traceback_text}"
            )
        self._pending[rank] = (index % self._num_workers, result.changes)
        return self._finished(result.data)

    def _finished(self, data: Any) -> Any:
        return pin_memory(data) if self._pins else data  # type: ignore[no-untyped-call]


def _read(dataset: Any, samples: list[int], collate: Callable[[Any], Any]) -> Any:
    """As torch's own fetcher does it."""
    if getattr(dataset, "__getitems__", None):
        return collate(dataset.__getitems__(samples))
    return collate([dataset[sample] for sample in samples])


def _stock(dataset: Dataset[Any], batch_size: int, options: dict[str, Any]) -> DataLoader[Any]:
    """torch's own loader, to check the options and to know its defaults; it is never iterated."""
    passed = {name: value for name, value in options.items() if name not in _FACTORIES}
    try:
        return DataLoader(dataset, batch_size=batch_size, **passed)
    except (ValueError, TypeError) as error:
        raise UserError(
            field="job.loader", value=passed, problem=str(error), remedy="give options that torch's DataLoader takes"
        ) from None


def _order(
    dataset: Any, n: int, seed: int, batch_size: int, shuffle: bool, train: bool, options: dict[str, Any]
) -> Order:
    drop_last = bool(options.get("drop_last"))
    if "batch_sampler" in options:
        factory = options["batch_sampler"]
        return CustomOrder(
            factory, num_logical_workers=n, batch_size=None, drop_last=False, field="job.loader(batch_sampler=...)"
        )
    if "sampler" in options:
        return CustomOrder(
            options["sampler"],
            num_logical_workers=n,
            batch_size=batch_size,
            drop_last=drop_last,
            field="job.loader(sampler=...)",
        )
    if not train:
        return EvaluationOrder(len(dataset), num_logical_workers=n, batch_size=batch_size)
    return DistributedOrder(
        dataset, num_logical_workers=n, seed=seed, shuffle=shuffle, batch_size=batch_size, drop_last=drop_last
    )


def check_options(dataset: Any, *, batch_size: int, shuffle: bool, train: bool, options: dict[str, Any]) -> None:
    """Refuse what could not be reproduced, with the field, the value and the remedy."""
    for name, value in options.items():
        if name in _REFUSED:
            raise UserError(field=f"job.loader({name}=...)", value=value, problem=_REFUSED[name], remedy="leave it out")
        if name not in _PASSED | _FACTORIES:
            raise UserError(
                field="job.loader",
                value=name,
                problem="no such option",
                remedy=f"known: batch_size, shuffle, train, {', '.join(sorted(_PASSED | _FACTORIES))}",
            )
        if name in _FACTORIES and (not callable(value) or shuffle or not train or len(_FACTORIES & set(options)) > 1):
            raise UserError(
                field=f"job.loader({name}=...)",
                value=type(value).__name__,
                problem="a sampler of one's own is made per logical worker, and for training",
                remedy=f"give {name}=lambda logical_rank, num_logical_workers: ..., without shuffle",
            )
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise UserError(
            field="job.loader(dataset)",
            value=type(dataset).__name__,
            problem="not a map-style data set",
            remedy="give a data set with __getitem__ and __len__",
        )
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UserError(
            field="job.loader(batch_size=...)",
            value=batch_size,
            problem="not a positive integer",
            remedy="give the batch size of one logical worker",
        )
    if len(dataset) == 0:
        raise UserError(
            field="job.loader(dataset)",
            value="0 samples",
            problem="nothing to iterate",
            remedy="give a non-empty data set",
        )
    if shuffle and not train:
        raise UserError(field="job.loader(shuffle=...)", value=True, problem=EVERY_SAMPLE_ONCE, remedy="leave it out")
    if not train and options.get("drop_last"):
        raise UserError(field="job.loader(drop_last=...)", value=True, problem=EVERY_SAMPLE_ONCE, remedy="leave it out")


def sample_count(batch: Any) -> int:
    """How many samples a batch holds, for display: the length of its first tensor."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, dict):
        return max((sample_count(value) for value in batch.values()), default=0)
    if isinstance(batch, list | tuple) and batch:
        return sample_count(batch[0])
    return 0
