"""A loader process: reads batches for several logical workers, each under random streams of its own.

Physical process w stands for worker w of every logical worker's stock DataLoader. Before a batch it takes up the
streams that this worker would have in the stock loader (seeded from the logical worker's base seed exactly as torch
seeds them, or as they were left by the batch before), and gives them back with the batch.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import random
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils import worker as torch_worker

from isoscale.core import rng

__all__ = ["Failure", "Fetch", "Reset", "Result", "Task", "worker_main"]

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Reset:
    """Before the first batch of a logical worker, or to go back: its streams as parts, or None to seed them afresh."""

    logical_rank: int
    base_seed: int
    streams: list[bytes | None] | None


@dataclass(frozen=True, slots=True)
class Fetch:
    #: number of the logical worker's reset that this belongs to: what an earlier one asked for is not wanted any more
    attempt: int
    logical_rank: int
    index: int
    samples: list[int]


@dataclass(frozen=True, slots=True)
class Failure:
    """The data set raised, or `collate_fn` or `worker_init_fn` did."""

    traceback_text: str
    kind: str
    #: the sample that was being read; None if that is not known
    sample: int | None


@dataclass(frozen=True, slots=True)
class Result:
    attempt: int
    logical_rank: int
    index: int
    data: Any
    #: what the batch changed in the streams; everything for a worker's first one
    changes: list[bytes | None]


Task = Reset | Fetch | None


def worker_main(
    dataset: Dataset[Any],
    collate: Callable[[Any], Any],
    init: Callable[[int], None] | None,
    worker: int,
    num_workers: int,
    tasks: Any,
    results: Any,
    place: Any,
) -> None:
    """Runs until it is given None, or its executor is gone. `place` shows what it reads, should it die there."""
    _die_with_parent()
    signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    seats = {}
    watchdog = torch_worker.ManagerWatchdog()
    while watchdog.is_alive():
        try:
            task: Task = tasks.get(timeout=5.0)
        except queue.Empty:
            continue
        if task is None:
            return
        if isinstance(task, Reset):
            seats[task.logical_rank] = _Seat(dataset, collate, init, worker, num_workers, task, place)
            continue
        results.send(seats[task.logical_rank].fetch(task))


class _Seat:
    """One logical worker's virtual worker in this process."""

    def __init__(
        self,
        dataset: Dataset[Any],
        collate: Callable[[Any], Any],
        init: Callable[[int], None] | None,
        worker: int,
        num_workers: int,
        reset: Reset,
        place: Any,
    ) -> None:
        self._dataset: Any = dataset
        self._collate, self._init, self._worker, self._place = collate, init, worker, place
        self._base_seed = reset.base_seed
        self._streams = None if reset.streams is None else rng.Streams.from_parts(reset.streams)
        self._info = torch_worker.WorkerInfo(
            id=worker, num_workers=num_workers, seed=reset.base_seed + worker, dataset=dataset
        )

    def fetch(self, task: Fetch) -> Result:
        torch_worker._worker_info = self._info
        self._place[0], self._place[1] = task.logical_rank, -1
        before, sample = self._streams, None
        try:
            if before is None:
                self._seed()
            else:
                rng.restore(before)
            if getattr(self._dataset, "__getitems__", None):
                samples = self._dataset.__getitems__(task.samples)
            else:
                samples = []
                for sample in task.samples:
                    self._place[0], self._place[1] = task.logical_rank, sample
                    samples.append(self._dataset[sample])
                sample = None
            data = self._collate(samples)
        except Exception as error:
            data = Failure(traceback.format_exc(), type(error).__name__, sample)
        after = self._streams = rng.capture()
        changes = after.changes_since(before) if before is not None else after.parts()
        return Result(task.attempt, task.logical_rank, task.index, data, changes)

    def _seed(self) -> None:
        """As torch's own worker loop does it."""
        random.seed(self._info.seed)
        torch.manual_seed(self._info.seed)
        np.random.seed(torch_worker._generate_state(self._base_seed, self._worker))  # type: ignore[no-untyped-call]
        if self._init is not None:
            self._init(self._worker)


def _die_with_parent() -> None:
    """Also when the executor is killed with SIGKILL, which tells nobody."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: the watchdog notices within seconds
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
