"""The training API: `Job`, what a training function gets.

A facade: every method is a call or two of the training loop behind it (`runtime.training.loop`), which scripts do not
see. It never says how many executors there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, Unpack

import torch
from torch.utils.data import Dataset

from isoscale.data.readers import Source
from isoscale.errors import UserError
from isoscale.runtime.training import horizon, saving
from isoscale.runtime.training.batch_rules import BatchRule
from isoscale.runtime.training.declaring import on_batch_change
from isoscale.runtime.training.loader import MapLoader, make_loader
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.on_main import LogChoice, OnMain
from isoscale.runtime.training.sink import Value
from isoscale.runtime.training.stream import StreamLoader, StreamOptions, make_stream
from isoscale.runtime.training.tracker_shapes import Close
from isoscale.runtime.training.turns import TurnLoader, make_turns

__all__ = ["Job"]

Kept = TypeVar("Kept")
Module = TypeVar("Module", bound=torch.nn.Module)
Thing = TypeVar("Thing")


class Job:
    """One training job as the training function sees it."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop

    # ---- what it is, and how far ----

    @property
    def num_logical_workers(self) -> int:
        """N, constant for the job's life; how many executors there are is not told."""
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

    @property
    def samples(self) -> int:
        """Samples that all logical workers together have read in committed training steps."""
        return self._loop.samples

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
        """Make an object part of the job's state; returns it.

        It has `state_dict`/`load_state_dict`, or attributes that are numbers, strings, tensors and containers of them:
        a meter is kept as it is.
        """
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

    def unkept(self, *names: str) -> None:
        """Say that these variables of the script may differ between executors: they measure (times, throughput) and
        decide nothing. Others that change from step to step must be kept, and are refused if they are not."""
        self._loop.numbers.ignore(names)

    def loader(
        self,
        dataset: Dataset[object],
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        train: bool = True,
        batch_sizes: Iterable[int] | None = None,
        batch_rule: BatchRule | None = None,
        **options: object,
    ) -> MapLoader:
        """Global steps over a map-style data set; `batch_size` is per logical worker, as in DDP.

        With `train=False` every sample comes once, in order, without padding. `batch_sizes` are those that it may have
        while the job trains, and `batch_rule` ("linear", "sqrt", "adascale", "none" or a function of the old and the
        new size) says what becomes of learning rates then. Further options are DataLoader's.
        """
        return make_loader(
            self._loop,
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            train=train,
            options=options,
            batch_sizes=batch_sizes,
            batch_rule=batch_rule,
        )

    def on_batch_change(self, f: Callable[[int, int], object]) -> None:
        """Call `f(old, new)` on every executor when the batch size changes, before the first step of the new one;
        instead of a `batch_rule`."""
        on_batch_change(self._loop, f)

    def stream(
        self, source: Source | Dataset[object], *, batch_size: int = 1, **options: Unpack[StreamOptions]
    ) -> StreamLoader:
        """Global steps over a source of unknown size (`isoscale.text_lines` and its kind), cut into partitions.

        Partitions go to logical workers as they run dry, every sample is used once per epoch, and an epoch ends for
        all at the same step. Options are `shuffle_partitions` (True), `shuffle_buffer` (0 samples), `tail`
        ("partial", "drop" or "carry"), `transform` (per sample, under its worker's random streams), `collate_fn`,
        `ledger`, `train`, `batch_sizes` and `batch_rule` (see `loader`), and DataLoader's `num_workers`,
        `prefetch_factor`, `worker_init_fn`, `timeout`.
        """
        return make_stream(self._loop, source, batch_size, options)

    def turns(self, steps: int, *, samples: int = 1, train: bool = True, only: int | None = None) -> TurnLoader:
        """Global steps without a data set, for scripts that draw their batches in the turn, on the worker's streams.

        A turn gets its logical rank. `samples` is how many a turn will use, for figures of throughput. With
        `train=False` it is an evaluation, `only=0` of logical worker 0 alone. Call it in set-up.
        """
        return make_turns(self._loop, steps, samples, train, only)

    # ---- progress ----

    def epochs(self, count: int, *, start: int = 0) -> Iterator[int]:
        """Epoch numbers start .. count-1, as `range(start, count)`; ends early when the job stops.

        `start` is where a warm start goes on, from a checkpoint of another run: data are shuffled as in that epoch.
        """
        return horizon.epochs(self._loop, count, start)

    def steps(self, count: int) -> Iterator[int]:
        """Epoch numbers until `count` steps are committed; the training loader ends in mid-epoch if need be."""
        return horizon.steps(self._loop, count)

    def stop(self, reason: str = "asked by the script") -> None:
        """End training: at once outside turns, after the present step for all when called in a turn."""
        self._loop.stop(reason)

    # ---- side effects ----

    @property
    def is_main(self) -> bool:
        """True on one executor at a time; which one may change. For an object that it owns there is `on_main`."""
        return self._loop.is_main

    @property
    def out(self) -> Path:
        """The run's directory."""
        return self._loop.out

    def log(self, **values: object) -> None:
        """Report values that are equal on all executors (accuracy, learning rate); written once."""
        self._loop.log({name: _plain_value(name, value) for name, value in values.items()})

    def on_main(
        self, factory: Callable[..., Thing], *, log: LogChoice = "auto", close: Close | None = None, every: int = 1
    ) -> OnMain[Thing]:
        """An object that only the main executor has, such as an experiment tracker; see `OnMain`.

        `factory` takes nothing or a `MainRun`. It is called when an executor becomes the main one: at the first step
        or use, and after the main one was lost, left or was moved. The object is closed (by `close`, else by its method
        `finish`, `end_run` or `close`) when that executor stops being the main one, and at the end of the job, also of
        one that is stopped or fails.

        It is told what `job.log` and every `every`-th step's `step.log` say (`every=0`: only the former), through
        its method `log_metrics(values, step=)`, `log(values, step=)` or `add_scalar(name, value, step)`, or through
        `log(object, values, step)`; `log=None` tells it nothing. The first factory that fails ends the job; a tracker
        that fails later costs a warning. `verify`, `check`, `profile` and `replay` make none.
        """
        self._loop.check_set_up("job.on_main")
        return self._loop.main_objects.add(factory, log=log, close=close, every=every)

    def save(self, name: str, thing: object) -> None:
        """Write `thing` to `job.out / name` with torch.save: atomically, once.

        `name` may be an address that fsspec knows, such as `s3://bucket/best.pt`.
        """
        saving.check_target(name, self.out)
        self._loop.own_files.check(self.out / name)
        if self.is_main:
            saving.save(thing, name, self.out)


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
