"""The loader processes of one executor: as many as `num_workers` says, however many logical workers they serve.

Batches are asked for ahead in the order in which turns need them. A process that dies is replaced and asked again: what
it had not delivered is reproduced from the streams that are known. Which samples belong to which batch, and what
streams a logical worker has, is the caller's business (`data.loader`).
"""

from __future__ import annotations

import pickle
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.multiprocessing
from torch.utils.data import Dataset

from isoscale.core import rng
from isoscale.data.worker import Fetch, Reset, Result, Task, worker_main
from isoscale.errors import UserError

__all__ = ["Pool"]

_LOOK_S = 0.2
_MAX_DEATHS = 3


@dataclass(slots=True)
class _Process:
    process: Any
    tasks: Any
    results: Any
    #: what it was told and has not delivered yet, in order
    open: list[Fetch]
    #: the last reset of each logical worker
    resets: dict[int, Reset]
    deaths: int = 0


class Pool:
    def __init__(
        self,
        dataset: Dataset[Any],
        collate: Callable[[Any], Any],
        init: Callable[[int], None] | None,
        num_workers: int,
        timeout: float,
    ) -> None:
        self._dataset, self._collate, self._init = dataset, collate, init
        self.num_workers = num_workers
        self._timeout = timeout
        self._context = torch.multiprocessing.get_context()
        #: delivered but not asked for yet
        self._ready: dict[tuple[int, int, int], Result] = {}
        self._processes = [self._start(worker) for worker in range(num_workers)]

    def reset(self, worker: int, reset: Reset) -> None:
        """From now on batches of this logical worker start from these streams."""
        process = self._processes[worker]
        process.open = [fetch for fetch in process.open if fetch.logical_rank != reset.logical_rank]
        process.resets[reset.logical_rank] = reset
        process.tasks.put(reset)

    def ask(self, fetch: Fetch) -> None:
        process = self._processes[fetch.index % self.num_workers]
        process.open.append(fetch)
        process.tasks.put(fetch)

    def get(self, attempt: int, logical_rank: int, index: int) -> Result:
        """A batch that was asked for. Raises TimeoutError after the loader's own time-out."""
        wanted, process = (attempt, logical_rank, index), self._processes[index % self.num_workers]
        deadline = time.monotonic() + self._timeout if self._timeout > 0 else None
        while wanted not in self._ready:
            try:
                result: Result = process.results.get(timeout=_LOOK_S)
            except (queue.Empty, EOFError, OSError, pickle.UnpicklingError):
                # Empty, or what a process had put there went with it.
                if not process.process.is_alive():
                    self._replace(index % self.num_workers)
                    process = self._processes[index % self.num_workers]
                elif deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(
                        f"no batch {index} for logical worker {logical_rank} within {self._timeout:.0f} s"
                    ) from None
                continue
            self._delivered(process, result)
        return self._ready.pop(wanted)

    def close(self) -> None:
        for process in self._processes:
            process.tasks.cancel_join_thread()
            process.process.kill()
        for process in self._processes:
            process.process.join()
        self._processes = []

    def _delivered(self, process: _Process, result: Result) -> None:
        known = [
            fetch
            for fetch in process.open
            if (fetch.attempt, fetch.logical_rank, fetch.index) == (result.attempt, result.logical_rank, result.index)
        ]
        if known:
            process.open.remove(known[0])
            self._ready[result.attempt, result.logical_rank, result.index] = result
            reset = process.resets[result.logical_rank]
            process.resets[result.logical_rank] = Reset(result.logical_rank, reset.base_seed, _after(reset, result))

    def _start(self, worker: int) -> _Process:
        tasks, results = self._context.Queue(), self._context.Queue()
        process = self._context.Process(
            target=worker_main,
            args=(self._dataset, self._collate, self._init, worker, self.num_workers, tasks, results),
            daemon=True,
        )
        process.start()
        return _Process(process, tasks, results, [], {})

    def _replace(self, worker: int) -> None:
        """It was killed: another one goes on where it was."""
        old = self._processes[worker]
        if old.deaths + 1 > _MAX_DEATHS:
            first = old.open[0] if old.open else None
            raise UserError(
                field="job.loader(num_workers=...)",
                value=self.num_workers,
                problem=f"loader process {worker} died {old.deaths + 1} times"
                + (f", reading samples {first.samples} for logical worker {first.logical_rank}" if first else ""),
                remedy="see whether the data set crashes or runs out of memory there",
            )
        new = self._start(worker)
        new.deaths, new.resets, new.open = old.deaths + 1, old.resets, old.open
        told: list[Task] = [*new.resets.values(), *new.open]
        for task in told:
            new.tasks.put(task)
        self._processes[worker] = new


def _after(reset: Reset, result: Result) -> rng.Streams:
    return (
        rng.Streams.from_parts(result.changes) if reset.streams is None else reset.streams.with_changes(result.changes)
    )
