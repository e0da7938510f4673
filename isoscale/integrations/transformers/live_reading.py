"""Batches of all logical workers where the batch size may change within a pass.

All ranks of a stock script share one list of the samples of a pass, and step by step take N batches of it. A change
cuts the list behind the last step: what is left is dealt by accelerate's samplers in batches of the new size, as a
loader over the rest of the list would deal it. What a rank has drawn for the batch that it had read ahead stays drawn.
"""

from __future__ import annotations

from typing import Any

from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

from isoscale.core.context import ContextSwitch
from isoscale.data.segments import Segments
from isoscale.errors import UserError
from isoscale.integrations.transformers.passage import Passage
from isoscale.integrations.transformers.reading import Reading

__all__ = ["LiveReading", "check_loader", "samples_of"]


class LiveReading(Reading):
    """Its size, and where it changed in the present pass, are part of its state."""

    def __init__(self, contexts: ContextSwitch, num_logical_workers: int, device: Any, size: int, loader: Any) -> None:
        super().__init__(contexts, num_logical_workers, device)
        self._drops_last = bool(loader.batch_sampler.drop_last)
        self._list: list[int] = []
        #: of the list that all share: a batch here is one of every logical worker
        self._segments = Segments(0, num_logical_workers * size, drop_last=self._drops_last)
        self.passage = Passage(0)

    @property
    def steps_per_pass(self) -> int:
        """Of a whole pass with the present size."""
        return -(-self._segments.steps_per_pass // self._per_step)

    def begin(self) -> None:
        seeds = self._contexts.draw_base_seeds()
        self._list = samples_of(self._loader)
        self._segments.begin(len(self._list))
        self._deal()
        self.passage = Passage(len(self._orders[0]))
        if self._processes is not None:
            self._processes.begin(seeds, self._orders)
        self._nothing_ahead(0)

    def has_left(self, step: int, size: int) -> bool:
        """Would there be a step if from this one on batches had this size?"""
        return self._segments.has_left(step * self._per_step, self._n * size)

    def needs_draw(self, step: int) -> bool:
        """Does a loader that begins with this step draw a base seed? Not if the present one was only begun."""
        return step * self._per_step > self._begun

    def resize(self, step: int, size: int, seeds: list[int] | None) -> None:
        """From this step on batches have this size. `seeds` is what the new loader's `iter()` drew, if it did."""
        at = step * self._per_step
        self._segments.cut(at, self._n * size)
        self._deal()
        self.passage.cut(at, left=len(self._orders[0]) - at)
        if self._processes is not None:
            if seeds is None:
                self._processes.orders = self._orders
            else:
                self._processes.begin_anew(seeds, self._orders, at)
        self._nothing_ahead(at)

    def _deal(self) -> None:
        """By logical rank, its batches before and after every cut."""
        self._orders, self._samples_until = [[] for _ in range(self._n)], []
        for cut in self._segments.cuts:
            rest, size = self._list[cut.offset :], cut.size // self._n
            for rank, order in enumerate(self._orders):
                batches = BatchSampler(rest, size, self._drops_last)
                dealt = batches if self._n == 1 else BatchSamplerShard(batches, self._n, rank)
                order[cut.first :] = [list(samples) for samples in dealt]

    def state(self) -> dict[str, object]:
        live = {"segments": self._segments.state(), "begun": self._begun, "passage": self.passage.state()}
        return {**super().state(), "live": live}

    def load_state(self, state: dict[str, Any]) -> None:
        live = state["live"]
        self._segments.load(live["segments"])
        self.passage.load(live["passage"])
        self._begun = int(live["begun"])
        self._deal()
        if self._processes is not None:
            self._processes.first = self._begun
        super().load_state(state)


def samples_of(loader: Any) -> list[int]:
    """The list of the present pass, which all ranks share; the sampler is left as it was."""
    sampler = _sampler_of(loader)
    epoch = getattr(sampler, "epoch", None)
    samples = list(sampler)
    if epoch is not None:
        sampler.set_epoch(epoch)
    return samples


def check_loader(loader: Any) -> None:
    """Raises UserError if ranks do not share one list of samples that does not depend on the batch size."""
    sampler = _sampler_of(loader)
    if not isinstance(sampler, SeedableRandomSampler | SequentialSampler):
        raise UserError(
            field="TrainingArguments(batch_sizes=...)",
            value=type(loader.dataset if isinstance(loader.dataset, IterableDataset) else sampler).__name__,
            problem="the batch size can change only where all ranks read one list of samples, shuffled or in order",
            remedy="leave batch_sizes out, or give a map-style data set and the sampler that Trainer has by itself",
        )


def _sampler_of(loader: Any) -> Any:
    batches = loader.batch_sampler
    return getattr(getattr(batches, "batch_sampler", batches), "sampler", None)
