"""Global steps of a trainer: one accumulation window of all logical workers, or one batch of an evaluation.

Before the first turn of a step every local worker's batches are read, under its own random streams, and the numbers of
tokens in them are summed over all logical workers: a loss that is averaged over tokens needs the sum before the first
forward. Both are done again when the step is, after the loss of an executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from isoscale.core.seal import Sealed
from isoscale.core.streams import rng
from isoscale.core.totals import Tally
from isoscale.data.loader import sample_count
from isoscale.integrations.transformers.passage import Passage
from isoscale.integrations.transformers.reading import Reading
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["EvaluationSteps", "Steps", "Window"]


class Window(NamedTuple):
    """What a turn gets."""

    batches: list[Any]
    #: over all logical workers if tokens are averaged across them, else its own; None where nothing is counted
    num_items: torch.Tensor | int | None


class Steps(Loader):
    """`count` gives the items of a worker's batches, or None; `together`: their sum over all workers counts."""

    #: a turn adds to its worker's loss and operations, which `Reading` takes back when the step is done again
    keeps_turns = False

    def __init__(
        self,
        loop: TrainingLoop,
        name: str,
        reading: Reading,
        *,
        train: bool,
        count: Callable[[list[Any]], torch.Tensor | int | None],
        together: bool,
    ) -> None:
        super().__init__(loop, name, reading, train=train)
        self.reading = reading
        reading.on_mark = self._attempt_begins
        self._count = count
        self._together = together
        self._windows: dict[int, Window] = {}
        #: is called in a worker's context after the first window of a pass was read
        self.after_first: Callable[[int], None] | None = None
        self._passage = Passage(0)

    @property
    def passage(self) -> Passage:
        """How far the present pass has come."""
        return self._passage

    def expect(self, num_batches: int) -> None:
        """The stock loop takes the next pass to have so many batches of a rank."""
        self._passage = Passage(num_batches)

    def _begin_pass(self) -> None:
        self.reading.begin()
        self.index = self.reading.first

    def _has_next(self) -> bool:
        return self.reading.has_step(self.index)

    def _num_steps(self) -> int:
        return self.reading.num_steps

    def _samples_before(self, index: int) -> int:
        return self.reading.samples_before(index)

    def _num_samples(self, batch: object) -> int:
        assert isinstance(batch, Window)
        return sum(map(sample_count, batch.batches))

    def _settle(self, ranks: range) -> None:
        """Everything is read when the first turn of an attempt asks for it (`_read`)."""

    def _attempt_begins(self) -> None:
        self._windows = {}

    def _read(self, logical_rank: int, *, here: bool) -> object:
        if not self._windows:
            self._read_all()
        if here:
            return self._windows[logical_rank]
        batches = self._read_one(logical_rank)
        agreed = next(iter(self._windows.values())).num_items
        return Window(batches, agreed if self._together else self._count(batches))

    def _read_all(self) -> None:
        """For all local workers, and what they have to agree on; from inside the first turn, whoever's that is."""
        engine = self._loop.engine
        active = engine.contexts.active
        assert active is not None
        self.reading.settle(engine.ranks)
        read = {}
        for rank in engine.ranks:
            self._enter(rank)
            read[rank] = self._read_one(rank)
        self._enter(active)
        counts = {rank: self._count(batches) for rank, batches in read.items()}
        if self._together:
            agreed = self._summed(counts)
            counts = dict.fromkeys(counts, agreed)
        self._windows = {rank: Window(batches, counts[rank]) for rank, batches in read.items()}

    def _enter(self, logical_rank: int) -> None:
        contexts = self._loop.engine.contexts
        if contexts.active != logical_rank:  # a worker's streams are where they were left, not where it entered
            contexts.enter(logical_rank)

    def _read_one(self, logical_rank: int) -> list[Any]:
        batches = self.reading.window(logical_rank, self.index)
        if self.after_first is not None and self.index == self.reading.first:
            self.after_first(logical_rank)
        return batches

    def _summed(self, counts: dict[int, torch.Tensor | int | None]) -> torch.Tensor | None:
        engine = self._loop.engine
        known = [int(count) for count in counts.values() if count is not None]
        message = torch.tensor([sum(known), len(known)], dtype=torch.int64)
        # Executors that stand at different places must not add numbers that have nothing to do with each other.
        engine.gate.check()
        engine.exchange.sum_int64(message)
        return message[0].clone() if message[1] else None


class EvaluationSteps(Steps):
    """Steps without gradients; `gather` makes, of what the local turns gave, what all workers' turns gave."""

    def __init__(self, *args: Any, gather: Callable[[dict[int, Any]], Any], **options: Any) -> None:
        super().__init__(*args, train=False, **options)
        self._gather = gather
        #: of the turns here in the present step, by logical rank
        self.given: dict[int, Any] = {}
        #: of all logical workers, once the step is over
        self.gathered: Any = None

    def _attempt_begins(self) -> None:
        super()._attempt_begins()
        self.given = {}

    def _commit(self, tally: Tally) -> Sealed:
        engine = self._loop.engine
        engine.contexts.leave()
        engine.gate.check()
        with rng.isolated():
            gathered = self._gather(self.given)
        sealed = super()._commit(tally)
        self.gathered = gathered
        return sealed
