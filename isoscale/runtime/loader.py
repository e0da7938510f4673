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
        self._name = name
        self._loaders = loaders
        self._train = train
        self.totals: dict[str, Total] = {}

    def __len__(self) -> int:
        """Global steps of one pass."""
        return self._loaders.num_steps

    def __iter__(self) -> Iterator[Step]:
        job, engine = self._job, self._job._engine
        engine.check_not_broken()
        if engine.turn.logical_rank is not None:
            raise engine.turn.error("a loader was iterated inside a turn", "iterate loaders outside the inner loop")
        job._start_streams()
        for rank in engine.ranks:
            engine.contexts.enter(rank)
            self._loaders.start(rank, job.epoch)
        engine.contexts.leave()
        self.totals = {}
        try:
            for index in range(len(self)):
                if self._train and job._at_end():
                    break
                yield from self._step(index)
        finally:
            self._loaders.stop()

    def _step(self, index: int) -> Iterator[Step]:
        job, engine = self._job, self._job._engine
        if self._train:
            job._before_step(len(self))
        probe = job._probe if self._train else None
        if probe is not None:
            probe.before_step(job.step + 1)
        job._batch_samples = 0
        step = Step(
            engine,
            self._fetch,
            job._commit if self._train else job._commit_evaluation,
            training=self._train,
            position=job._position(f"{self._name} batch {index}", training=self._train),
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
        batch = self._loaders.next(logical_rank, NO_BATCH)
        if batch is NO_BATCH and self._train:
            raise AssertionError(f"{self._name}: logical worker {logical_rank} ran out of batches")
        if batch is not NO_BATCH:
            self._job._batch_samples += sample_count(batch)
        if self._train and self._job._probe is not None:
            self._job._probe.turn_begins(logical_rank, batch)
        return batch
