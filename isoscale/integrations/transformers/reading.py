"""Batches of all logical workers out of one loader that accelerate has prepared, read when a stock rank reads them.

Accelerate's loader is one batch ahead, and `Trainer` reads a whole accumulation window before its first forward. With
a collator that draws (masked language models), that order decides the bits. So a logical worker owns, between steps,
one batch that was read ahead. It travels as the random streams before it was read: whoever hosts the worker next reads
it again. Which samples are in which batch is asked of accelerate's own samplers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import msgspec
import torch
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
from accelerate.utils import send_to_device
from torch.utils.data import SequentialSampler

from isoscale.core.context import ContextSwitch
from isoscale.core.streams import rng
from isoscale.data.loader import read_samples
from isoscale.integrations.transformers.processes import LoaderProcesses

__all__ = ["Reading", "index_batches"]

#: a worker's loss since the last log, its floating point operations, the streams before its batch ahead, and what its
#: loader processes have drawn; of worker 0 also what it logged in its turn
_Change = tuple[float, float, list[bytes | None] | None, bytes, list[dict[str, Any]]]
_encode = msgspec.msgpack.Encoder().encode
_changes: msgspec.msgpack.Decoder[_Change] = msgspec.msgpack.Decoder(_Change)


class Reading:
    """One pass of a loader for all logical workers, and what they carry from step to step."""

    def __init__(self, contexts: ContextSwitch, num_logical_workers: int, device: torch.device) -> None:
        self._contexts = contexts
        self._n = num_logical_workers
        self._device = device
        self._loader: Any = None
        #: by logical rank, the samples of its batches
        self._orders: list[list[list[int]]] = [[] for _ in range(num_logical_workers)]
        self._orders_drawn = False
        #: of all logical workers before each batch; made when it is asked for
        self._samples_until: list[int] = []
        self._per_step = 1
        #: loader processes of this pass, if it has any
        self._processes: LoaderProcesses | None = None
        #: the step of the pass that is read first: not 0 in an epoch that a checkpoint has begun
        self.first = 0
        #: the batch with which the present loader begins: before it nothing was read ahead
        self._begun = 0
        #: by logical rank, the streams before its batch ahead was read; None if reading it draws nothing
        self._ahead: list[rng.Streams | None] = [None] * num_logical_workers
        #: batches ahead that are here: by logical rank, the number and the batch
        self._here: dict[int, tuple[int, Any]] = {}
        #: by logical rank, what `Trainer` calls `_tr_loss` and `current_flos`
        self.losses = torch.zeros(num_logical_workers)
        self.flos = [0.0] * num_logical_workers
        #: what logical worker 0 logged in its turn of the present step
        self.logs: list[dict[str, Any]] = []
        #: a step begins, or begins again
        self.on_mark: Callable[[], None] = lambda: None
        self._marked: tuple[list[rng.Streams | None], dict[int, tuple[int, Any]], torch.Tensor, list[float]]
        self.mark()

    def use(self, loader: Any, *, per_step: int, first: int = 0) -> None:
        """The next pass reads from this loader, so many batches per step."""
        self._loader, self._per_step, self.first = loader, per_step, first
        self._processes = LoaderProcesses(loader, self._n) if loader.num_workers else None

    @property
    def num_steps(self) -> int:
        """Of the pass; 0 if unknown."""
        return self.first + -(-len(self._orders[0]) // self._per_step)

    def has_step(self, step: int) -> bool:
        return self._has((step - self.first) * self._per_step)

    def samples_before(self, step: int) -> int:
        """Of all logical workers, in the steps that this pass has read before `step`."""
        if len(self._samples_until) != len(self._orders[0]) + 1:
            sizes = (sum(map(len, batches)) for batches in zip(*self._orders, strict=True))
            self._samples_until = [0, *accumulate(sizes)]
        return self._samples_until[min((step - self.first) * self._per_step, len(self._orders[0]))]

    @property
    def remainder(self) -> int:
        """Samples of the last step that are not repeats, as accelerate counts them; 0 or less: all of them."""
        loader = self._loader
        if getattr(loader, "_drop_last", False):
            return -1
        try:
            return int(len(loader.dataset) % loader.total_batch_size)
        except (TypeError, AttributeError):
            return -1

    def take_logs(self) -> list[dict[str, Any]]:
        """After the turns of a step, on every executor alike."""
        logs, self.logs = self.logs, []
        return logs

    def _has(self, number: int) -> bool:
        """Does every logical worker have such a batch in this pass?"""
        return number < len(self._orders[0])

    def begin(self) -> None:
        """`iter()` of the loader, for all logical workers, on every executor alike."""
        seeds = self._contexts.draw_base_seeds()
        self._orders, self._orders_drawn = index_batches(self._loader, self._n, self._contexts)
        self._samples_until = []
        if self._processes is not None:
            self._processes.begin(seeds, self._orders)
        self._nothing_ahead(0)

    def _nothing_ahead(self, number: int) -> None:
        """A loader begins with this batch."""
        self._begun = number
        self._ahead = [None] * self._n
        self._here.clear()

    def window(self, logical_rank: int, step: int) -> list[Any]:
        """The batches of a worker in a step, with its streams active; reads one batch ahead, as accelerate does."""
        start = (step - self.first) * self._per_step
        end = next((i for i in range(start, start + self._per_step) if not self._has(i)), start + self._per_step)
        if self._processes is not None:
            # They draw from streams of their own: when they read decides nothing.
            return [send_to_device(self._processes.get(logical_rank, i), self._device) for i in range(start, end)]
        batches = [] if start == self._begun else [self._batch_ahead(logical_rank, start)]
        for i in range(start + len(batches), end):
            batches.append(self._read(logical_rank, i))
        self._here.pop(logical_rank, None)
        self._ahead[logical_rank] = None
        if self._has(end):
            before = rng.capture()
            self._here[logical_rank] = end, self._read(logical_rank, end)
            drew = any(part is not None for part in rng.capture().changes_since(before))
            self._ahead[logical_rank] = before if drew else None
        return batches

    def settle(self, ranks: range) -> None:
        """These logical workers live here now."""
        if self._processes is not None:
            self._processes.workers.keep_only(ranks)

    def _batch_ahead(self, logical_rank: int, number: int) -> Any:
        held = self._here.get(logical_rank)
        if held is not None and held[0] == number:
            return held[1]
        with rng.isolated():
            before = self._ahead[logical_rank]
            if before is not None:
                rng.restore(before)
            return self._read(logical_rank, number)

    def _read(self, logical_rank: int, number: int) -> Any:
        loader = self._loader
        batch = read_samples(loader.dataset, self._orders[logical_rank][number], loader.collate_fn)
        return send_to_device(batch, self._device)

    # ---- what all executors must know ----

    def mark(self) -> None:
        self.logs = []
        self._marked = list(self._ahead), dict(self._here), self.losses.clone(), list(self.flos)
        if self._processes is not None:
            self._processes.workers.mark()
        self.on_mark()

    def rewind(self) -> None:
        self.logs = []
        ahead, here, losses, flos = self._marked
        self._ahead, self._here, self.flos = list(ahead), dict(here), list(flos)
        self.losses.copy_(losses)
        if self._processes is not None:
            self._processes.workers.forget()

    def changes_of(self, logical_rank: int) -> bytes:
        ahead = self._ahead[logical_rank]
        change: _Change = (
            self.losses[logical_rank].item(),
            self.flos[logical_rank],
            None if ahead is None else ahead.parts(),
            b"" if self._processes is None else self._processes.workers.changes_of(logical_rank),
            self.logs if logical_rank == 0 else [],
        )
        return _encode(change)

    def adopt(self, logical_rank: int, changes: bytes, *, here: bool) -> None:
        loss, flos, ahead, drawn, logs = _changes.decode(changes)
        if self._processes is not None and drawn:
            self._processes.workers.adopt(logical_rank, drawn)
        if here:
            return
        if logical_rank == 0:
            self.logs = logs
        self.losses[logical_rank] = loss
        self.flos[logical_rank] = flos
        self._ahead[logical_rank] = None if ahead is None else rng.Streams.from_parts(ahead)
        self._here.pop(logical_rank, None)

    def state(self) -> dict[str, object]:
        """For newcomers and checkpoints."""
        return {
            "ahead": {r: streams.to_state() for r, streams in enumerate(self._ahead) if streams is not None},
            "losses": self.losses.clone(),
            "flos": list(self.flos),
            # In an epoch that a checkpoint began, whoever joins may have found another checkpoint.
            "orders": self._orders if self._orders_drawn or self.first else [],
            "first": self.first,
            "processes": {} if self._processes is None else self._processes.workers.state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        ahead = state["ahead"]
        self._ahead = [rng.Streams.from_state(ahead[r]) if r in ahead else None for r in range(self._n)]
        self.losses.copy_(state["losses"])
        self.flos = list(state["flos"])
        self.first = int(state["first"])
        if state["orders"]:
            self._orders, self._orders_drawn = [list(order) for order in state["orders"]], True
            self._samples_until = []
        self._here.clear()
        if self._processes is not None:
            self._processes.orders = self._orders
            self._processes.workers.load_state(state["processes"])
        self.mark()

    def stop(self) -> None:
        """The pass is over: loader processes go."""
        if self._processes is not None:
            self._processes.workers.stop()


def index_batches(loader: Any, num_logical_workers: int, contexts: ContextSwitch) -> tuple[list[list[list[int]]], bool]:
    """By logical rank, the samples of its batches; and whether drawing them took numbers from its random streams.

    A sampler that seeds itself, or has a generator of its own, gives all ranks one order, which is taken once; another
    is asked under each worker's own streams, as every rank of a stock script asks its own.
    """
    batches = loader.batch_sampler
    shard = _shard_of(batches)
    if shard is None:
        assert num_logical_workers == 1, f"a loader without shards: {type(batches).__name__}"
        found: list[list[list[int]]] = [[]]
        contexts.run_under(0, lambda: found[0].extend(list(samples) for samples in batches))
        return found, True
    before, orders = shard.batch_sampler, []
    sampler = getattr(before, "sampler", None)
    alike = isinstance(sampler, SeedableRandomSampler | SequentialSampler)
    alike = alike or isinstance(getattr(sampler, "generator", None), torch.Generator)
    if alike:
        shard.batch_sampler = _Listed(before)
    try:
        for rank in range(num_logical_workers):
            shard.process_index = rank
            taken: list[list[int]] = []
            contexts.run_under(rank, lambda taken=taken: taken.extend(batches))  # type: ignore[misc]
            orders.append(taken)
    finally:
        shard.batch_sampler = before
    return orders, not alike


class _Listed:
    """The batches of a sampler that gives everybody the same, iterated once."""

    def __init__(self, sampler: Any) -> None:
        self.batch_size, self.drop_last = sampler.batch_size, sampler.drop_last
        self._batches = [list(samples) for samples in sampler]

    def __iter__(self) -> Iterator[list[int]]:
        # Copies: accelerate appends to the last one.
        return (list(samples) for samples in self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def _shard_of(batches: Any) -> BatchSamplerShard | None:
    while batches is not None and not isinstance(batches, BatchSamplerShard):
        batches = getattr(batches, "batch_sampler", None)
    return batches
