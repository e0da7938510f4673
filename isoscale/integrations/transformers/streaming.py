"""Batches of data sets without indices, as accelerate's dispatcher deals them.

There rank 0 reads N batches, collates them under its own random streams, and every rank gets a slice. Here every
executor reads the samples, and collates what its workers need under logical worker 0's streams, which everybody knows
at the beginning of a step: nothing is sent. An executor that comes later reads from the beginning of the pass, without
collating. That repeats the samples only if reading them draws nothing from the global streams, so that is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from accelerate.data_loader import DataLoaderDispatcher
from accelerate.utils import concatenate, find_batch_size, send_to_device, slice_tensors

from isoscale.core.context import ContextSwitch
from isoscale.core.streams import rng
from isoscale.errors import UserError
from isoscale.integrations.transformers.reading import Reading
from isoscale.runtime.training.state import plain

__all__ = ["StreamReading", "reading_of"]


def reading_of(loader: Any, contexts: ContextSwitch, num_logical_workers: int, device: torch.device) -> Reading:
    """For a loader that accelerate has prepared."""
    streams = isinstance(loader, DataLoaderDispatcher)
    if not streams and isinstance(loader.dataset, torch.utils.data.IterableDataset):
        streams = True  # of one logical worker only: accelerate leaves such a loader as it is
    return (StreamReading if streams else Reading)(contexts, num_logical_workers, device)


class StreamReading(Reading):
    """One pass over a data set without indices."""

    def __init__(self, contexts: ContextSwitch, num_logical_workers: int, device: torch.device) -> None:
        #: the present step's batches before they are dealt, and whether worker 0's streams were borrowed for them
        self._whole: list[Any] | None = None
        self._is_borrowed = False
        super().__init__(contexts, num_logical_workers, device)
        self._samples: Iterator[Any] | None = None
        #: by number, the samples of each of the N batches that are dealt together; only those that may be needed
        self._raw: dict[int, list[list[Any]]] = {}
        self._num_read = 0
        #: by number, how many samples its N batches have
        self._counts: list[int] = []
        self._needed_from = 0
        #: a row for every worker, to complete the last batch with
        self._first_rows: Any = None
        #: batches of the pass before the first that is given out
        self._base = 0

    def use(self, loader: Any, *, per_step: int, first: int = 0) -> None:
        if loader.num_workers:
            raise UserError(
                field="TrainingArguments(dataloader_num_workers=...)",
                value=loader.num_workers,
                problem="each loader process would read an IterableDataset of its own",
                remedy="set it to 0",
            )
        super().use(loader, per_step=per_step, first=first)

    @property
    def num_steps(self) -> int:
        return 0

    def samples_before(self, step: int) -> int:
        return sum(self._counts[self._base : self._base + (step - self.first) * self._per_step])

    @property
    def remainder(self) -> int:
        return sum(len(samples) for samples in self._raw[max(k for k, batches in self._raw.items() if batches)])

    def begin(self) -> None:
        self._contexts.draw_base_seeds()
        self._restart()
        self._nothing_ahead(0)
        self._first_rows = None
        skipped = self.first * self._per_step
        # What a checkpoint's epoch has behind it is read and collated again, as accelerate does.
        self._contexts.run_under(0, lambda: self._collate_all(skipped))
        self._base = skipped

    def _collate_all(self, count: int) -> None:
        for number in range(count):
            if self._has_raw(number):
                self._collated(number)

    def _restart(self) -> None:
        self._samples, self._num_read, self._needed_from = None, 0, 0
        self._raw.clear()
        self._counts.clear()
        self._whole = None

    def mark(self) -> None:
        self._whole = None
        super().mark()

    def window(self, logical_rank: int, step: int) -> list[Any]:
        start = self._base + (step - self.first) * self._per_step
        self._needed_from = start
        for old in [k for k in self._raw if k < start]:
            del self._raw[old]
        if logical_rank == 0 and (self._whole is None or self._is_borrowed):
            self._whole, self._is_borrowed = super().window(0, step), False
        elif self._whole is None:
            with self._contexts.borrowed(0):
                self._whole, self._is_borrowed = super().window(0, step), True
        return [self._dealt(batch, start + i, logical_rank) for i, batch in enumerate(self._whole)]

    def _has(self, number: int) -> bool:
        return self._has_raw(self._base + number)

    def _read(self, logical_rank: int, number: int) -> Any:
        return self._collated(self._base + number)

    def _collated(self, number: int) -> Any:
        batches = [self._loader.collate_fn(samples) for samples in self._raw[number]]
        batch = send_to_device(concatenate(batches, dim=0), self._device)
        if number == 0:
            self._first_rows = slice_tensors(batch, slice(0, self._n))
        return batch

    def _dealt(self, batch: Any, number: int, logical_rank: int) -> Any:
        observed = find_batch_size(batch)
        size = observed // self._n
        if observed % self._n and not self._drops_last and not self._has_raw(number + 1):
            batch, size = concatenate([batch, self._first_rows], dim=0), size + 1
        return slice_tensors(batch, slice(logical_rank * size, (logical_rank + 1) * size))

    @property
    def _drops_last(self) -> bool:
        return bool(getattr(self._loader, "_drop_last", self._loader.drop_last))

    def _has_raw(self, number: int) -> bool:
        while number >= self._num_read:
            batches = self._next_samples()
            if self._num_read >= self._needed_from:
                self._raw[self._num_read] = batches
            self._counts.append(sum(map(len, batches)))
            self._num_read += 1
            if not batches:
                break
        return bool(self._raw.get(number))

    def _next_samples(self) -> list[list[Any]]:
        """The samples of the next N batches, fewer at the end."""
        size, batches = self._loader.batch_size, []
        with rng.isolated():
            before = rng.capture()
            if self._samples is None:
                self._samples = iter(self._loader.dataset)
            for _ in range(self._n):
                samples = list(islice(self._samples, size))
                if not samples or (len(samples) < size and self._drops_last):
                    break
                batches.append(samples)
            drew = any(part is not None for part in rng.capture().changes_since(before))
        if drew:
            raise UserError(
                field="train_dataset",
                value=type(self._loader.dataset).__name__,
                problem="reading it draws from the global random streams, which an executor that joins cannot repeat",
                remedy="draw from a generator of the data set's own, seeded by set_epoch(epoch); draw in the collator",
            )
        if self._drops_last and len(batches) < self._n:
            batches = []
        return batches

    def state(self) -> dict[str, object]:
        rows = self._first_rows
        return {**super().state(), "first_rows": None if rows is None else plain(dict(rows), "first_rows")}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._first_rows = state["first_rows"]
        self._base = self.first * self._per_step
        self._restart()
