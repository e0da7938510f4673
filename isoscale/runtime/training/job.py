"""The training API: `Job`, what a training function gets.

A facade: every method is a call or two of the training loop behind it (`runtime.training.loop`), which scripts do not
see. It never says how many executors there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

import torch
from torch.utils.data import Dataset

from isoscale.data.readers import Source
from isoscale.errors import UserError
from isoscale.runtime.training import horizon
from isoscale.runtime.training.loader import MapLoader, make_loader
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.sink import Value
from isoscale.runtime.training.state import atomic_save
from isoscale.runtime.training.stream import StreamLoader, StreamOptions, make_stream

__all__ = ["Job"]

Kept = TypeVar("Kept")
Module = TypeVar("Module", bound=torch.nn.Module)


class Job:
    """One training job as the training function sees it."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop

    # ---- what it is, and how far ----

    @property
    def num_logical_workers(self) -> int:
        return self._loop.spec.workers

    @property
    def device(self) -> torch.device:
        """Where this executor's tensors belong: model.to(job.device)."""
        return self._loop.device

    @property
    def step(self) -> int:
        """Committed steps."""
        return self._loop.step

    @property
    def epoch(self) -> int:
        """The present epoch."""
        return self._loop.epoch

    # ---- set-up ----

    @property
    def state(self) -> dict[str, Any]:
        """Plain values that are kept with the job (best metric, patience)."""
        return self._loop.state.values

    def model(
        self,
        module: Module,
        *,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        bucket_cap_mb: float | None = None,
    ) -> Module:
        """Track a model as DDP would; returns the module itself. Call once per model, before the first step."""
        self._loop.add_model(
            module,
            find_unused_parameters=find_unused_parameters,
            broadcast_buffers=broadcast_buffers,
            bucket_cap_mb=bucket_cap_mb,
        )
        return module

    def keep(self, name: str, thing: Kept) -> Kept:
        """Make an object with `state_dict`/`load_state_dict` part of the job's state; returns it."""
        self._loop.check_set_up("job.keep")
        self._loop.state.keep(name, thing)
        return thing

    def keep_per_worker(self, name: str, factory: Callable[..., Any]) -> Any:
        """One object per logical worker, switched with it. `factory` takes nothing or the logical rank.

        A `torch.Generator` comes back as a Generator; anything else (a dict, or an object with
        `state_dict`/`load_state_dict`) as a stand-in for the object of the worker whose turn it is.
        """
        self._loop.check_set_up("job.keep_per_worker")
        return self._loop.engine.contexts.add_per_worker(name, factory)

    def loader(
        self,
        dataset: Dataset[object],
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        train: bool = True,
        **options: object,
    ) -> MapLoader:
        """Global steps over a map-style data set; `batch_size` is per logical worker, as in DDP.

        With `train=False` every sample comes once, in order, without padding. Further options are DataLoader's.
        """
        return make_loader(self._loop, dataset, batch_size=batch_size, shuffle=shuffle, train=train, options=options)

    def stream(
        self, source: Source | Dataset[object], *, batch_size: int = 1, **options: Unpack[StreamOptions]
    ) -> StreamLoader:
        """Global steps over a source of unknown size (`isoscale.text_lines` and its kind), cut into partitions.

        Partitions go to logical workers as they run dry, every sample is used once per epoch, and an epoch ends for
        all at the same step. Options are `shuffle_partitions` (True), `shuffle_buffer` (0 samples), `tail`
        ("partial", "drop" or "carry"), `transform` (per sample, under its worker's random streams), `collate_fn`,
        `ledger`, `train`, and DataLoader's `num_workers`, `prefetch_factor`, `worker_init_fn`, `timeout`.
        """
        return make_stream(self._loop, source, batch_size, options)

    # ---- progress ----

    def epochs(self, count: int) -> Iterator[int]:
        """Epoch numbers 0 .. count-1; ends early when the job stops."""
        return horizon.epochs(self._loop, count)

    def steps(self, count: int) -> Iterator[int]:
        """Epoch numbers until `count` steps are committed; the training loader ends in mid-epoch if need be."""
        return horizon.steps(self._loop, count)

    def stop(self, reason: str = "asked by the script") -> None:
        """End training: at once outside turns, after the present step for all when called in a turn."""
        self._loop.stop(reason)

    # ---- side effects ----

    @property
    def is_main(self) -> bool:
        """True on one executor at a time; which one may change."""
        return self._loop.is_main

    @property
    def out(self) -> Path:
        return self._loop.out

    def log(self, **values: object) -> None:
        """Report values that are equal on all executors (accuracy, learning rate); written once."""
        loop, plain = self._loop, {name: _plain_value(name, value) for name, value in values.items()}
        loop.tell(partial(loop.sink.logged, step=loop.step, epoch=loop.epoch, values=plain))

    def save(self, name: str, thing: object) -> None:
        """Write `thing` to `job.out / name` with torch.save: atomically, once."""
        target = self.out / name
        if not target.resolve().is_relative_to(self.out.resolve()):
            raise UserError(
                field="job.save(name)",
                value=name,
                problem="lies outside the job's directory",
                remedy="use a plain name",
            )
        if self.is_main:
            atomic_save(thing, target)


def _plain_value(name: str, value: object) -> Value:
    if isinstance(value, torch.Tensor) or hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool | int | float | str | type(None)):
        return value
    raise UserError(
        field=f"job.log({name}=...)",
        value=type(value).__name__,
        problem="neither a number nor a string",
        remedy="log a number, a string or a tensor of one element",
    )
