"""Loader processes of a trainer: those of all logical workers of an executor, each with the streams of a stock rank's.

`dataloader_num_workers` processes read for all logical workers that live here (`isoscale.data.virtual`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers.trainer_utils import seed_worker

from isoscale.data.virtual import VirtualWorkers, WorkerOptions
from isoscale.data.worker import read_for

__all__ = ["LoaderProcesses"]


class LoaderProcesses:
    """For one pass."""

    def __init__(self, loader: Any, num_logical_workers: int) -> None:
        self._options = WorkerOptions(
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor or 2,
            init=_by_logical_worker(loader.worker_init_fn),
            timeout=float(loader.timeout),
        )
        self.workers = VirtualWorkers(
            loader.dataset, loader.collate_fn, self._options, num_logical_workers=num_logical_workers
        )
        #: by logical rank, the samples of its batches
        self.orders: list[list[list[int]]] = []
        #: the batch that is the first of the present loader, which counts its own from there
        self.first = 0

    def begin(self, seeds: list[int], orders: list[list[list[int]]]) -> None:
        self.orders, self.first = orders, 0
        self.workers.begin(seeds)

    def begin_anew(self, seeds: list[int], orders: list[list[list[int]]], first: int) -> None:
        """Another loader reads from batch `first` on: with other processes."""
        self.orders, self.first = orders, first
        self.workers.begin_anew(seeds)

    def get(self, logical_rank: int, number: int) -> Any:
        """A batch of a worker that lives here; those after it are read meanwhile."""
        order, workers, own = self.orders[logical_rank], self.workers, number - self.first
        asked = workers.next_of(logical_rank)
        if asked is None or asked < own or asked > own + self._options.ahead:
            workers.sit(logical_rank, own)
            asked = own
        for i in range(asked, min(own + self._options.ahead + 1, len(order) - self.first)):
            workers.ask(logical_rank, order[self.first + i])
        return workers.get(logical_rank, own)


def _by_logical_worker(init: Any) -> Any:
    """The trainer's own function seeds by the number of the process: here, of the logical worker that is read for."""
    if isinstance(init, partial) and init.func is seed_worker:
        return _Seed(init.keywords["num_workers"])
    return init


class _Seed:
    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers

    def __call__(self, worker_id: int) -> None:
        seed_worker(worker_id, num_workers=self._num_workers, rank=read_for())
