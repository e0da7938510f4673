"""A job's data loader: global steps out of per-worker batches.

Joins `data` (which sample) with `core` (whose turn). Joins of executors, switches and checkpoints
happen only at `next()` of a training loader; evaluation is no such point. `Loader` is what all loaders share,
`MapLoader` the one over map-style data; the one over streams is in `runtime.training.stream`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch.utils.data import Dataset

from isoscale.core.numerics.determinism import settle
from isoscale.core.sharing import Carried
from isoscale.core.totals import Tally, Total, add_totals
from isoscale.data.loader import LogicalLoaders, sample_count
from isoscale.errors import UserError
from isoscale.runtime.training.declaring import declare, declared_sizes
from isoscale.runtime.training.given_batch import check_sampler
from isoscale.runtime.training.step import NO_BATCH, Step

if TYPE_CHECKING:
    from isoscale.core.seal import Sealed
    from isoscale.runtime.training.loop import TrainingLoop
    from isoscale.runtime.training.state import Tree

__all__ = ["Batches", "Loader", "MapLoader", "Place", "make_loader"]


class Place(NamedTuple):
    """Which batch of a pass a step is of, and how many the pass has, 0 if unknown."""

    loader: str
    batch: int
    of: int


class Batches(Carried, Protocol):
    """What a loader hands out, with the state in which it stands between steps."""

    def state(self) -> Tree: ...

    def load_state(self, state: Tree) -> None: ...

    def stop(self) -> None:
        """Let go of readers and processes; they come back when they are needed."""


class Loader(ABC):
    """Iterate it for global steps; `totals` holds the sums of the last (or present) pass."""

    #: turns leave nothing but what `core.turn_end` keeps
    keeps_turns = True

    def __init__(self, loop: TrainingLoop, name: str, batches: Batches, *, train: bool) -> None:
        self._loop = loop
        self.name = name
        self.batches = batches
        self._train = train
        #: batch of the present step, and how many passes were begun in the present epoch
        self.index = 0
        self.pass_in_epoch = 0
        #: between the first `next()` of a pass and its end
        self.is_open = False
        #: nothing more of the present pass is to be read
        self._is_over = False
        #: steps of the present pass that this process has done
        self._steps_here = 0
        self._epoch = -1
        self.totals: dict[str, Total] = {}
        #: samples of all logical workers in passes that are over
        self.samples_of_passes = 0
        #: until the code after its inner loop is over
        self._present: Step | None = None

    @property
    def num_samples(self) -> int:
        """Samples of all logical workers in all passes, committed steps only."""
        return self.samples_of_passes + (self._samples_before(self._num_committed) if self.is_open else 0)

    @property
    def _num_committed(self) -> int:
        """Batches of the present pass in committed steps; the one whose code after the inner loop runs is."""
        return self.index + (self._present is not None and self._present.complete)

    def __iter__(self) -> Iterator[Step]:
        loop, engine = self._loop, self._loop.engine
        engine.check_not_broken()
        if engine.turn.logical_rank is not None:
            raise engine.turn.error("a loader was iterated inside a turn", "iterate loaders outside the inner loop")
        settle(loop.spec.determinism)
        engine.contexts.start()
        live = loop.batches if loop.batches is not None and loop.batches.loader is self else None
        if live is not None:
            live.begin()
        self._close_pass()
        self.pass_in_epoch = self.pass_in_epoch + 1 if self._epoch == loop.epoch else 1
        self._epoch, self.index, self.totals = loop.epoch, 0, {}
        self._steps_here = 0
        if self._train:
            loop.numbers.begin_pass()
        self._begin_pass()
        self.is_open, self._is_over = True, False
        try:
            while True:
                if self._train:
                    loop.arrive(self)
                if self._is_over or (self._train and loop.at_end()):
                    break
                if (live is not None and not live.arrive()) or not self._has_next():
                    break
                yield from self._step()
                self._present = None
                self.index += 1
                self._steps_here += 1
            self._close_pass()
        finally:
            self.batches.stop()

    def _close_pass(self) -> None:
        """Whatever was read of it counts, also where the script has left the loop."""
        if self.is_open:
            self.samples_of_passes += self._samples_before(self._num_committed)
        self.is_open, self._present = False, None

    @property
    def position(self) -> int:
        """Steps of the present (or last) pass that lie behind, also where this executor joined or resumed in it."""
        return self.index

    def end_pass(self) -> None:
        """Nothing of this pass is to be read: whoever runs the script is on the way to another place."""
        self._is_over = True

    @abstractmethod
    def _begin_pass(self) -> None:
        """Called with nothing read yet, on all executors alike."""

    @abstractmethod
    def _has_next(self) -> bool:
        """Is there another step in this pass? Asked on all executors at the same place."""

    @abstractmethod
    def _samples_before(self, index: int) -> int:
        """Of all logical workers, in the present pass before batch `index`."""

    # ---- another batch size, for a loader that declares some; called between steps, on all executors alike ----

    def try_size(self, size: int) -> bool:
        """Would there be another step in this pass with batches of this size? `take_size` or `keep_size` follows if
        so; if not, `keep_size` at the beginning of a pass, else the pass ends."""
        raise NotImplementedError

    def take_size(self, size: int) -> None:
        raise NotImplementedError

    def steps_per_pass(self) -> int:
        """Of a whole pass with the present size; 0 if unknown."""
        return 0

    def keep_size(self, size: int) -> None:
        """It stays what it was."""
        raise NotImplementedError

    @abstractmethod
    def _num_steps(self) -> int:
        """Steps of a pass, 0 if unknown."""

    @abstractmethod
    def _read(self, logical_rank: int, *, here: bool) -> object:
        """The batch of a worker in the present step. `here` is False if it lives elsewhere and is only compared."""

    def _num_samples(self, batch: object) -> int:
        """Of the batch that was read last."""
        return sample_count(batch)

    @abstractmethod
    def _settle(self, ranks: range) -> None:
        """A step begins, or begins again, with these logical workers here."""

    def _step(self) -> Iterator[Step]:
        loop, engine = self._loop, self._loop.engine
        engine.carried = self.batches
        if self._train:
            loop.before_step(Place(self.name, self.index, self._num_steps()), self._steps_here)
        probe = loop.probe if self._train else None
        if probe is not None:
            probe.before_step(loop.step + 1)
        step = Step(
            engine,
            self._fetch,
            self._commit,
            loop.committed if self._train else loop.committed_evaluation,
            training=self._train,
            position=loop.position(f"{self.name} batch {self.index}", training=self._train),
            committed=loop.step,
            index=self.index,
            carried=self.batches,
            keeps_turns=self.keeps_turns,
        )
        self._present = step
        yield step
        if not step.complete:
            engine.check_not_broken()
            raise engine.turn.error(
                "a step of the loader was not iterated", "run the inner loop 'for batch in step:' in every step"
            )
        add_totals(self.totals, step.totals)
        if probe is not None:
            probe.after_step(loop.step)

    def _commit(self, tally: Tally) -> Sealed:
        """All local turns of a step are done."""
        if self._present is not None and self._present.num_kept:
            self._loop.pace.leave_out()
        return self._loop.commit(tally) if self._train else self._loop.commit_evaluation(tally)

    def _fetch(self, logical_rank: int) -> object:
        loop, ranks = self._loop, self._loop.engine.ranks
        loop.pace.turn(loop.step, logical_rank, training=self._train)
        if logical_rank not in ranks:
            return self._read(logical_rank, here=False)  # to be compared with its own executor's turn
        if logical_rank == ranks[0]:
            loop.batch_samples = 0
            loop.pace.turns_begin()
            self._settle(ranks)
        if logical_rank == ranks[-1]:
            loop.pace.last_turn_begins()
        batch = self._read(logical_rank, here=True)
        if batch is NO_BATCH and self._train:
            raise AssertionError(f"{self.name}: logical worker {logical_rank} ran out of batches")
        if batch is not NO_BATCH:
            loop.turn_samples = self._num_samples(batch)
            loop.batch_samples += loop.turn_samples
            if self._train and loop.noise is not None:
                loop.noise.reads(logical_rank, loop.turn_samples)
        if self._train and loop.probe is not None:
            loop.probe.turn_begins(logical_rank, batch)
        return batch


class MapLoader(Loader):
    """Over a map-style data set."""

    def __init__(
        self, loop: TrainingLoop, name: str, loaders: LogicalLoaders, *, train: bool, batch_size: int | None
    ) -> None:
        super().__init__(loop, name, loaders, train=train)
        self._loaders = loaders
        self._batch_size = batch_size

    @property
    def batch_size(self) -> int | None:
        """The present one, of one logical worker; None where a batch sampler decides."""
        live = self._loop.batches
        return live.size if live is not None and live.loader is self else self._batch_size

    def __len__(self) -> int:
        """Global steps of one pass; where the batch size has changed, those done and those left at the present one."""
        return self._loaders.num_steps

    def _begin_pass(self) -> None:
        contexts = self._loop.engine.contexts
        seeds = contexts.draw_base_seeds() if self._loaders.draws else []
        self._loaders.begin(self._loop.epoch, seeds, contexts.run_under)

    def _has_next(self) -> bool:
        return self.index < len(self)

    def _num_steps(self) -> int:
        return len(self)

    def _samples_before(self, index: int) -> int:
        return self._loaders.samples_before(index)

    def try_size(self, size: int) -> bool:
        return self._loaders.has_left(self.index, size)

    def take_size(self, size: int) -> None:
        contexts = self._loop.engine.contexts
        seeds = contexts.draw_base_seeds() if self._loaders.needs_draw(self.index) else None
        self._loaders.resize(self.index, size, seeds)

    def keep_size(self, size: int) -> None:
        pass

    def steps_per_pass(self) -> int:
        return self._loaders.steps_per_pass

    def _settle(self, ranks: range) -> None:
        self._loaders.open(ranks, self.index)

    def _read(self, logical_rank: int, *, here: bool) -> object:
        return self._loaders.fetch(logical_rank, self.index, NO_BATCH)

    def _num_samples(self, batch: object) -> int:
        return self._loaders.num_samples


def make_loader(
    loop: TrainingLoop,
    dataset: Dataset[object],
    *,
    batch_size: int,
    shuffle: bool,
    train: bool,
    options: dict[str, object],
    batch_sizes: object = None,
    batch_rule: object = None,
) -> MapLoader:
    """`options` are DataLoader's. The command line's batch size, if it gives one, is for training only."""
    if train:
        check_sampler(loop.spec.batch, options)
    size = loop.spec.batch or batch_size if train else batch_size
    declared = declared_sizes("job.loader", loop, batch_sizes, batch_rule, size, train=train)
    if declared and "batch_sampler" in options:
        raise UserError(
            field="job.loader(batch_sizes=...)",
            value=batch_sizes,
            problem="a batch_sampler decides the size of every batch itself",
            remedy="give a sampler instead, or leave batch_sizes out",
        )
    loaders = LogicalLoaders(
        dataset,
        num_logical_workers=loop.spec.workers,
        seed=loop.spec.seed,
        batch_size=size,
        shuffle=shuffle,
        train=train,
        options=options,
        is_live=bool(declared),
    )
    shown = None if "batch_sampler" in options else size
    loader = MapLoader(loop, loop.new_loader_name("loader"), loaders, train=train, batch_size=shown)
    declare(loop, loader, declared, size, batch_rule)
    return loop.add_loader(loader, dataset, train=train)
