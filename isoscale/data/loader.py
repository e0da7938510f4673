"""A job's map-style data: any batch of any logical worker, as its rank of a stock DDP script would read it.

Without loader processes a batch is read in the turn, under the logical worker's own streams. With `num_workers=W` the
executor has W processes whatever number of logical workers it hosts, and reads ahead (`data.virtual`). Either way any
executor can go on at any batch, without reading again what lies before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

from isoscale import limits
from isoscale.data import live_order
from isoscale.data.live_order import LiveOrder
from isoscale.data.order import CustomOrder, DistributedOrder, EvaluationOrder, Order
from isoscale.data.virtual import VirtualWorkers, WorkerOptions
from isoscale.errors import UserError

__all__ = ["EVERY_SAMPLE_ONCE", "LogicalLoaders", "check_options", "check_processes", "read_samples", "sample_count"]

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


@dataclass(slots=True)
class _PlaceInPass:
    """Where a logical worker that lives here is in its pass."""

    #: the batch it gets next
    index: int
    #: those that were not read, or asked for, yet
    batches: Iterator[list[int]]
    #: samples of those that were asked for and not fetched
    sizes: deque[int] = field(default_factory=deque)


class LogicalLoaders:
    """The batches of one loader for all logical workers; those that live here are served."""

    def __init__(
        self,
        dataset: Dataset[object],
        *,
        num_logical_workers: int,
        seed: int,
        batch_size: int,
        shuffle: bool,
        train: bool,
        options: dict[str, Any],
        is_live: bool = False,
    ) -> None:
        """`is_live`: the batch size may change between two batches."""
        check_options(dataset, batch_size=batch_size, shuffle=shuffle, train=train, options=options)
        stock = _stock(dataset, batch_size, options)
        self._dataset: Any = dataset
        self._n = num_logical_workers
        self._collate: Callable[[list[Any]], object] = stock.collate_fn
        self._pins = stock.pin_memory and torch.cuda.is_available()
        self._order: Order | LiveOrder
        if is_live:
            self._order = _live_order(dataset, num_logical_workers, seed, batch_size, shuffle, options)
        else:
            self._order = _order(dataset, num_logical_workers, seed, batch_size, shuffle, train, options)
        #: batches of the pass that another loader has read, before the last change of the batch size
        self._first = 0
        self._workers, self._ahead = None, 0
        if stock.num_workers:
            processes = WorkerOptions(
                num_workers=stock.num_workers,
                prefetch_factor=stock.prefetch_factor or 2,
                init=stock.worker_init_fn,
                timeout=float(stock.timeout),
                persistent=stock.persistent_workers,
            )
            self._workers = VirtualWorkers(dataset, self._collate, processes, num_logical_workers=num_logical_workers)
            self._ahead = processes.ahead
        self._seats: dict[int, _PlaceInPass] = {}
        self._epoch = 0
        #: of the batch that was fetched last
        self.num_samples = 0

    @property
    def num_steps(self) -> int:
        """Steps of one pass; rank 0 never has fewer batches than another."""
        return self._order.num_steps

    @property
    def draws(self) -> bool:
        """Whether the next `iter()` draws a base seed."""
        return self._workers is None or self._workers.draws

    def begin(self, epoch: int, seeds: list[int], under: Callable[[int, Callable[[], None]], None]) -> None:
        """A pass begins. `seeds` is what `iter()` drew, by rank; `under(rank, work)` runs work under its streams."""
        self._epoch = epoch
        self._seats.clear()
        self._first = 0
        if self._workers is not None:
            self._workers.begin(seeds)
        if isinstance(self._order, LiveOrder):
            self._order.begin()
        if self._order.draws:
            order = self._order
            assert isinstance(order, CustomOrder | LiveOrder)
            for rank in range(self._n):
                under(rank, lambda rank=rank: order.take(rank, epoch))  # type: ignore[misc]

    # ---- a change of the batch size, on all executors alike ----

    def samples_before(self, index: int) -> int:
        """How many samples all logical workers together read before batch `index` of the present pass."""
        return self._order.samples_before(index)

    @property
    def steps_per_pass(self) -> int:
        """Of a whole pass with the present size."""
        return self._order.segments.steps_per_pass if isinstance(self._order, LiveOrder) else self.num_steps

    def has_left(self, index: int, size: int) -> bool:
        """Would there be a batch if from batch `index` on they had this size?"""
        assert isinstance(self._order, LiveOrder)
        return self._order.segments.has_left(index, size)

    def needs_draw(self, index: int) -> bool:
        """Whether a change before batch `index` draws base seeds: as a new DataLoader does, unless this pass's `iter()`
        drew some and nothing was read since."""
        return index > self._first or not self.draws_each_pass

    @property
    def draws_each_pass(self) -> bool:
        """Whether the present pass began with a draw."""
        return self._workers is None or self._workers.is_fresh

    def resize(self, index: int, size: int, seeds: list[int] | None) -> None:
        """Batches from `index` on have this size. `seeds` is what the new loader's `iter()` drew, if it did."""
        assert isinstance(self._order, LiveOrder)
        self._order.segments.cut(index, size)
        self._seats.clear()
        if seeds is None:
            return
        self._first = index
        if self._workers is not None:
            self._workers.begin_anew(seeds)

    # ---- in steps ----

    def open(self, ranks: Sequence[int], index: int) -> None:
        """Get ready to give these logical workers, and no others, batch `index`; loader processes start at once."""
        for rank in [rank for rank in self._seats if rank not in ranks]:
            del self._seats[rank]
        if self._workers is not None:
            self._workers.keep_only(ranks)
        late = [rank for rank in ranks if rank not in self._seats or self._seats[rank].index != index]
        for rank in late:
            self._seat(rank, index)
        for _ in range(self._ahead):  # in the order in which turns will need them
            for rank in late:
                self._ask(rank)

    def fetch(self, logical_rank: int, index: int, default: object) -> object:
        """Batch `index` of a worker in the present pass, or `default` if there is none. With its streams active."""
        if logical_rank not in self._seats or self._seats[logical_rank].index != index:
            # A worker whose turn is run here only to be compared: nothing is read ahead for it.
            self._seat(logical_rank, index)
            self._ask(logical_rank)
        seat = self._seats[logical_rank]
        seat.index = index + 1
        if self._workers is not None:
            asked, own = self._workers.next_of(logical_rank), index - self._first
            if asked is None or own >= asked:
                return default
            data = self._workers.get(logical_rank, own)
            self.num_samples = seat.sizes.popleft() if seat.sizes else 0
            self._ask(logical_rank)
        else:
            samples = next(seat.batches, None)
            if samples is None:
                return default
            data, self.num_samples = read_samples(self._dataset, samples, self._collate), len(samples)
        return pin_memory(data) if self._pins else data  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """The pass is over: loader processes go, unless they are persistent."""
        self._seats.clear()
        if self._workers is not None:
            self._workers.stop()

    # ---- what all executors must know ----

    def mark(self) -> None:
        if self._workers is not None:
            self._workers.mark()

    def rewind(self) -> None:
        """Whoever is served again begins with another seat, whose batches are asked for again."""
        self.mark()

    def changes_of(self, logical_rank: int) -> bytes:
        return b"" if self._workers is None else self._workers.changes_of(logical_rank)

    def adopt(self, logical_rank: int, changes: bytes, *, here: bool) -> None:
        assert self._workers is not None
        self._workers.adopt(logical_rank, changes)

    def state(self) -> dict[str, object]:
        """What another executor, or a later run, needs to go on with the present pass."""
        order = self._order.state() if isinstance(self._order, CustomOrder | LiveOrder) else None
        workers = {} if self._workers is None else self._workers.state()
        state: dict[str, object] = {"epoch": self._epoch, "order": order, "workers": workers}
        return state | {"first": self._first} if isinstance(self._order, LiveOrder) else state

    def load_state(self, state: dict[str, Any]) -> None:
        self._seats.clear()
        self._epoch = int(state["epoch"])
        if self._workers is not None:
            self._workers.load_state(state["workers"])
        self._first = int(state.get("first", 0))
        if isinstance(self._order, CustomOrder | LiveOrder) and state["order"] is not None:
            self._order.load(state["order"])

    def _seat(self, rank: int, index: int) -> None:
        self._seats[rank] = _PlaceInPass(index, self._order.batches(rank, self._epoch, index))
        if self._workers is not None:
            self._workers.sit(rank, index - self._first)

    def _ask(self, rank: int) -> None:
        if self._workers is not None:
            samples = next(self._seats[rank].batches, None)
            if samples is not None:
                self._seats[rank].sizes.append(len(samples))
                self._workers.ask(rank, samples)


def read_samples(dataset: Any, samples: list[int], collate: Callable[[list[Any]], object]) -> object:
    """As torch's own fetcher does it."""
    if getattr(dataset, "__getitems__", None):
        return collate(dataset.__getitems__(samples))
    return collate([dataset[sample] for sample in samples])


def _stock(dataset: Dataset[object], batch_size: int, options: dict[str, Any]) -> DataLoader[object]:
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


def _live_order(dataset: Any, n: int, seed: int, batch_size: int, shuffle: bool, options: dict[str, Any]) -> LiveOrder:
    drop_last = bool(options.get("drop_last"))
    if "sampler" in options:
        return live_order.listed(options["sampler"], n, batch_size=batch_size, drop_last=drop_last)
    return live_order.distributed(dataset, n, seed=seed, shuffle=shuffle, batch_size=batch_size, drop_last=drop_last)


def check_options(dataset: object, *, batch_size: int, shuffle: bool, train: bool, options: dict[str, Any]) -> None:
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
    limits.within(batch_size, "job.loader(batch_size=...)", limits.BATCH)
    check_processes(options.get("num_workers", 0), "job.loader(num_workers=...)")
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


def check_processes(count: object, field: str) -> None:
    """Before torch is asked, which only warns. What is no number is for torch to refuse."""
    if isinstance(count, int):
        limits.within(count, field, limits.LOADER_PROCESSES)


def sample_count(batch: object) -> int:
    """How many samples a batch holds, for display: the length of its first tensor."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, dict):
        return max((sample_count(value) for value in batch.values()), default=0)
    if isinstance(batch, list | tuple) and batch:
        return sample_count(batch[0])
    return 0
