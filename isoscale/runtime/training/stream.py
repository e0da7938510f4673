"""`job.stream`: global steps over a source that is given to logical workers partition by partition.

At `next()` all executors compute alike what comes next (`data.stream`): partitions are given out and, where somebody
ran dry, rounds follow, each a seal without turns, after which everybody knows what everybody has. Being seals, rounds
survive lost executors as steps do: they are taken as done, or done again. So every step that begins has a batch for
every logical worker. What becomes of samples, in the turn or in loader processes, is `data.stream_batches`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, cast, get_args

from torch.utils.data import DataLoader, Dataset, default_collate

from isoscale import limits
from isoscale.data.loader import check_processes
from isoscale.data.readers import Source
from isoscale.data.readers.samples import checked_source
from isoscale.data.stream import LogicalStream, PassCounts
from isoscale.data.stream_batches import StreamBatches
from isoscale.data.stream_rule import Rule, Tail
from isoscale.data.virtual import WorkerOptions
from isoscale.errors import UserError
from isoscale.runtime.training.batch_rules import BatchRule
from isoscale.runtime.training.declaring import declare, declared_sizes
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.step import NO_BATCH, Step

if TYPE_CHECKING:
    from isoscale.runtime.training.loop import TrainingLoop
    from isoscale.runtime.training.state import Tree

__all__ = ["StreamLoader", "StreamOptions", "make_stream", "stream_rule"]


class StreamOptions(TypedDict, total=False):
    #: partitions in another order in every epoch; by default when training
    shuffle_partitions: bool
    #: samples of a logical worker that are shuffled among themselves
    shuffle_buffer: int
    tail: Tail
    transform: Callable[[Any], Any]
    collate_fn: Callable[[list[Any]], Any]
    #: loader processes, and how they are used: as in torch's DataLoader
    num_workers: int
    prefetch_factor: int
    worker_init_fn: Callable[[int], None]
    timeout: float
    #: hash what is used, so that the event log proves that every sample was used once
    ledger: bool
    #: False for an evaluation
    train: bool
    #: batch sizes that it may have while the job trains, and what becomes of learning rates then
    batch_sizes: Iterable[int]
    batch_rule: BatchRule


class StreamLoader(Loader):
    def __init__(self, loop: TrainingLoop, name: str, batches: StreamBatches, *, train: bool) -> None:
        super().__init__(loop, name, batches.carried, train=train)
        self._made, self._stream = batches, batches.stream
        #: of the last whole pass with batches of one size, the present one; 0 if there was none
        self._last_num_steps = 0
        self._has_one_size = True
        #: of a size that is tried: the state before, and what is told if it is taken
        self._before: Tree = {}
        self._untold: list[Callable[[], None]] | None = None

    @property
    def batch_size(self) -> int:
        """The present one, of one logical worker."""
        live = self._loop.batches
        return live.size if live is not None and live.loader is self else self._stream.batch_size

    @property
    def counts(self) -> PassCounts:
        """Partitions and samples of the present (or last) pass so far; equal on all executors."""
        return self._stream.counts()

    def _begin_pass(self) -> None:
        self._has_one_size = True
        seeds = self._loop.engine.contexts.draw_base_seeds() if self._made.draws else []
        self._made.begin(self._loop.epoch, seeds)

    def _num_steps(self) -> int:
        return self._last_num_steps

    def _has_next(self) -> bool:
        stream = self._stream
        while True:
            move = stream.next_move()
            if move == "hand out":
                handed = stream.hand_out()
                self._tell("partitions", to=[list(pair) for pair in handed])
                self._seal_round(move)
            elif move == "look":
                stream.look()
                self._seal_round(move)
            elif move == "count":
                self._made.count()
                self._seal_round(move)
            else:
                break
        if move == "end":
            # One that came in mid-pass does not know what sizes its beginning had.
            is_known = self._has_one_size and self._steps_here == self.index
            self._last_num_steps = self.index if is_known else 0
            self._tell("pass_ended", steps=self.index)
        return move == "step"

    def _samples_before(self, index: int) -> int:
        return self._stream.num_used(in_step=index > self.index)

    def try_size(self, size: int) -> bool:
        """The rule runs with it from here on, whether there is a step or not."""
        self._before, self._untold = self.batches.state(), []
        self._has_one_size, self._last_num_steps = False, 0
        self._made.resize(size)
        has_step = self._has_next()
        if not has_step and self.index:
            self._tell_all()  # the pass ends for its sake
        return has_step

    def take_size(self, size: int) -> None:
        self._tell_all()
        if self._made.needs_draw(self.index):
            self._made.renew(self.index, self._loop.engine.contexts.draw_base_seeds())

    def keep_size(self, size: int) -> None:
        self._untold = None
        self.batches.load_state(self._before)
        if self._stream.batch_size != size:
            self._made.resize(size)

    def _tell_all(self) -> None:
        untold, self._untold = self._untold or [], None
        for fact in untold:
            fact()

    def _seal_round(self, why: str) -> None:
        """A seal without turns, by which everybody learns what everybody has."""
        loop, engine = self._loop, self._loop.engine
        engine.carried = self.batches
        handed_out = self.counts.handed_out
        where = (
            f"{self.name} {why} ({handed_out} partitions of {self._stream.source.identity}) before batch {self.index}"
        )
        sealed = engine.seal_end(loop.position(where, training=False), "")
        self._stream.end_round()
        loop.committed_evaluation(sealed)

    def _step(self) -> Iterator[Step]:
        yield from super()._step()
        self._stream.end_step()

    def _settle(self, ranks: range) -> None:
        self._made.open(ranks, self.index)

    def _read(self, logical_rank: int, *, here: bool) -> object:
        return self._made.fetch(logical_rank, self.index, NO_BATCH, here=here)

    def _tell(self, event: str, **fields: object) -> None:
        if not self._train:
            return
        loop, counts = self._loop, self.counts
        told = asdict(counts) | {"content": None if counts.content is None else f"{counts.content:016x}"}
        fact = partial(loop.sink.streamed, event=event, stream=self.name, step=loop.step, fields=told | fields)
        if self._untold is not None:
            self._untold.append(partial(loop.tell, fact))
        else:
            loop.tell(fact)


def make_stream(
    loop: TrainingLoop, source: Source | Dataset[object], batch_size: int, options: StreamOptions
) -> StreamLoader:
    """The command line's batch size, if it gives one, is for training only."""
    name, workers, train = loop.new_loader_name("stream"), loop.spec.workers, options.get("train", True)
    batch = loop.spec.batch or batch_size if train else batch_size
    rule = stream_rule(batch, options, num_logical_workers=workers, seed=loop.spec.seed)
    batch_rule = options.get("batch_rule")
    declared = declared_sizes("job.stream", loop, options.get("batch_sizes"), batch_rule, batch, train=train)
    stream = LogicalStream(
        checked_source(source),
        rule,
        ledger=options.get("ledger", False),
        training=train,
        is_live=bool(declared),
    )
    batches = StreamBatches(
        stream,
        options.get("transform"),
        options.get("collate_fn", default_collate),
        _processes(options),
        num_logical_workers=workers,
    )
    loader = StreamLoader(loop, name, batches, train=train)
    declare(loop, loader, declared, batch, batch_rule)
    return loop.add_loader(loader, source, train=train)


def stream_rule(batch_size: int, options: StreamOptions, *, num_logical_workers: int, seed: int) -> Rule:
    train = options.get("train", True)
    known = StreamOptions.__annotations__
    given = cast("dict[str, object]", options)
    for name in given:
        if name not in known:
            raise _refused(name, given[name], "no such option", f"known: batch_size, {', '.join(known)}")
    tail, buffer = options.get("tail", "partial"), options.get("shuffle_buffer", 0)
    if type(batch_size) is not int or batch_size < 1:
        raise _refused("batch_size", batch_size, "not a positive integer", "give the batch size of one logical worker")
    if type(buffer) is not int or buffer < 0:
        raise _refused("shuffle_buffer", buffer, "not a number of samples", "give 0 or more")
    limits.within(batch_size, "job.stream(batch_size=...)", limits.BATCH)
    limits.within(buffer, "job.stream(shuffle_buffer=...)", limits.Range(0, limits.BATCH.most))
    if tail not in get_args(Tail):
        raise _refused("tail", tail, "unknown", "give 'partial', 'drop' or 'carry'")
    if not train and (tail != "partial" or buffer or options.get("shuffle_partitions")):
        raise _refused("train", False, "visits every sample once, in order", "leave tail and shuffles out")
    processes = _processes(options)
    return Rule(
        num_logical_workers=num_logical_workers,
        batch_size=batch_size,
        seed=seed,
        shuffle_partitions=options.get("shuffle_partitions", train),
        shuffle_buffer=buffer,
        tail=tail,
        prefetch=0 if processes is None else processes.ahead,
    )


def _processes(options: StreamOptions) -> WorkerOptions | None:
    """Checked by torch's own loader, which is never iterated."""
    names = ("num_workers", "prefetch_factor", "worker_init_fn", "timeout")
    given: dict[str, Any] = {name: value for name, value in options.items() if name in names}
    check_processes(given.get("num_workers", 0), "job.stream(num_workers=...)")
    try:
        stock = DataLoader(cast("Dataset[int]", [0]), **given)
    except (ValueError, TypeError) as error:
        raise UserError(
            field="job.stream", value=given, problem=str(error), remedy="give options that torch's DataLoader takes"
        ) from None
    if not stock.num_workers:
        return None
    return WorkerOptions(
        num_workers=stock.num_workers,
        prefetch_factor=stock.prefetch_factor or 2,
        init=stock.worker_init_fn,
        timeout=float(stock.timeout),
    )


def _refused(name: str, value: object, problem: str, remedy: str) -> UserError:
    return UserError(field=f"job.stream({name}=...)", value=value, problem=problem, remedy=remedy)
