"""A job's data loader: global steps out of per-worker batches.

Joins `data` (which sample) with `core` (whose turn). Joins of executors, switches and checkpoints
happen only at `next()` of a training loader; evaluation is no such point.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from isoscale.core.step import NO_BATCH, Step
from isoscale.core.totals import Total, add_totals
from isoscale.data.loader import LogicalLoaders, sample_count

if TYPE_CHECKING:
    from isoscale.runtime.job import Job

__all__ = ["Loader"]


class Loader:
    """Iterate it for global steps; `totals` holds the sums of the last (or present) pass."""

    def __init__(self, job: Job, name: str, loaders: LogicalLoaders, *, train: bool) -> None:
        self._job = job
        self.name = name
        self.batches = loaders
        self._train = train
        #: batch of the present step, and how many passes were begun in the present epoch
        self.index = 0
        self.pass_in_epoch = 0
        #: between the first `next()` of a pass and its end
        self.is_open = False
        self._epoch = -1
        self.totals: dict[str, Total] = {}

    def __len__(self) -> int:
        """Global steps of one pass."""
        return self.batches.num_steps

    def __iter__(self) -> Iterator[Step]:
        job, engine = self._job, self._job._engine
        engine.check_not_broken()
        if engine.turn.logical_rank is not None:
            raise engine.turn.error("a loader was iterated inside a turn", "iterate loaders outside the inner loop")
        job._start_streams()
        self.pass_in_epoch = self.pass_in_epoch + 1 if self._epoch == job.epoch else 1
        self._epoch, self.index, self.totals = job.epoch, 0, {}
        seeds = engine.contexts.draw_base_seeds() if self.batches.draws else []
        self.batches.begin(job.epoch, seeds, engine.contexts.run_under)
        self.is_open = True
        try:
            while True:
                if self._train:
                    # May change everything, this loader's place and totals included.
                    job._arrive(self)
                if self.index >= len(self) or (self._train and job._at_end()):
                    break
                yield from self._step()
                self.index += 1
            self.is_open = False
        finally:
            self.batches.stop()

    def end_pass(self) -> None:
        """Nothing of this pass is to be read: whoever runs the script is on the way to another place."""
        self.index = len(self)

    def _step(self) -> Iterator[Step]:
        job, engine = self._job, self._job._engine
        engine.carried = self.batches
        if self._train:
            job._before_step(len(self))
        probe = job._probe if self._train else None
        if probe is not None:
            probe.before_step(job.step + 1)
        step = Step(
            engine,
            self._fetch,
            job._commit if self._train else job._commit_evaluation,
            job._committed if self._train else job._committed_evaluation,
            training=self._train,
            position=job._position(f"{self.name} batch {self.index}", training=self._train),
        )
        yield step
        if not step.complete:
            engine.check_not_broken()
            raise engine.turn.error(
                "a step of the loader was not iterated", "run the inner loop 'for batch in step:' in every step"
            )
        add_totals(self.totals, step.totals)
        if probe is not None:
            probe.after_step(job.step)

    def _fetch(self, logical_rank: int) -> Any:
        job, ranks = self._job, self._job._engine.ranks
        if logical_rank not in ranks:
            return self.batches.fetch(logical_rank, self.index, NO_BATCH)  # to be compared with its own executor's turn
        if logical_rank == ranks[0]:
            job._batch_samples = 0
            job._pace.turns_begin()
            self.batches.open(ranks, self.index)
        batch = self.batches.fetch(logical_rank, self.index, NO_BATCH)
        if batch is NO_BATCH and self._train:
            raise AssertionError(f"{self.name}: logical worker {logical_rank} ran out of batches")
        if batch is not NO_BATCH:
            job._batch_samples += sample_count(batch)
        if self._train and job._probe is not None:
            job._probe.turn_begins(logical_rank, batch)
        return batch
