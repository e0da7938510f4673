"""The loader processes of one executor: as many as `num_workers` says, however many logical workers they serve.

Batches are asked for ahead in the order in which turns need them. A process that dies is replaced and asked again: what
it had not delivered is reproduced from the streams that are known. Which samples belong to which batch, and what
streams a logical worker has, is the caller's business (`data.loader`).
"""

from __future__ import annotations

import ctypes
import os
import pickle
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import torch.multiprocessing
from torch.utils.data import Dataset

from isoscale.data.channel import Channel, pair
from isoscale.data.worker import Drop, Fetch, Parts, Reset, Result, merged, worker_main
from isoscale.errors import UserError

__all__ = ["Pool"]

_LOOK_S = 0.2
_MAX_DEATHS = 3


@dataclass(slots=True)
class _Process:
    process: BaseProcess
    channel: Channel
    #: logical rank and sample that it reads
    place: ctypes.Array[ctypes.c_longlong]
    #: what it was asked and has not delivered yet; it delivers in this order
    open: deque[Fetch]
    #: each logical worker as it is after what was delivered
    seats: dict[int, Reset]
    deaths: int = 0


class Pool:
    def __init__(
        self,
        dataset: Dataset[object],
        collate: Callable[[list[Any]], object],
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
        #: also when nobody needs the pool any more
        self.close = weakref.finalize(self, _end, self._processes, os.getpid())

    def reset(self, worker: int, logical_rank: int, base_seed: int, streams: Parts | None) -> None:
        """From now on batches of this logical worker start from these streams."""
        process = self._processes[worker]
        process.open = deque(fetch for fetch in process.open if fetch.logical_rank != logical_rank)
        process.seats[logical_rank] = Reset(logical_rank, base_seed, streams)
        process.channel.post(process.seats[logical_rank])

    def drop(self, logical_rank: int) -> None:
        """Nothing more is wanted of what was asked for this logical worker."""
        for process in self._processes:
            process.open = deque(fetch for fetch in process.open if fetch.logical_rank != logical_rank)
            process.seats.pop(logical_rank, None)
            process.channel.post(Drop(logical_rank))
        self._ready = {key: result for key, result in self._ready.items() if result.logical_rank != logical_rank}

    def ask(self, fetch: Fetch) -> None:
        process = self._processes[fetch.batch % self.num_workers]
        process.open.append(fetch)
        process.channel.post(fetch)

    def get(self, attempt: int, logical_rank: int, index: int) -> Result:
        """A batch that was asked for. Raises TimeoutError after the loader's own time-out."""
        wanted, process = (attempt, logical_rank, index), self._processes[index % self.num_workers]
        deadline = time.monotonic() + self._timeout if self._timeout > 0 else None
        while wanted not in self._ready:
            if process.channel.wait(_LOOK_S):
                try:
                    result: Result = process.channel.receive()
                except (EOFError, OSError, pickle.UnpicklingError):
                    process = self._replace(index % self.num_workers)
                    continue
                self._delivered(process, result)
            elif deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"no batch {index} for logical worker {logical_rank} within {self._timeout:.0f} s")
        return self._ready.pop(wanted)

    def _delivered(self, process: _Process, result: Result) -> None:
        key = (result.attempt, result.logical_rank, result.batch)
        # What a reset or a drop has made unwanted may still have been under way.
        if process.open and process.open[0][:3] == key:
            process.open.popleft()
            self._ready[key] = result
            seat = process.seats[result.logical_rank]
            process.seats[result.logical_rank] = seat._replace(streams=merged(seat.streams, result.changes))

    def _start(self, worker: int) -> _Process:
        channel, end = pair()
        place = self._context.RawArray("q", [-1, -1])
        process = self._context.Process(
            target=worker_main,
            args=(self._dataset, self._collate, self._init, worker, self.num_workers, end, place),
            daemon=True,
        )
        process.start()
        end.close()
        return _Process(process, channel, place, deque(), {})

    def _replace(self, worker: int) -> _Process:
        """It was killed: another one goes on where it was."""
        old = self._processes[worker]
        old.process.kill()
        old.process.join()
        old.channel.close()
        if old.deaths + 1 > _MAX_DEATHS:
            rank, sample = old.place
            raise UserError(
                field="job.loader(num_workers=...)",
                value=self.num_workers,
                problem=f"loader process {worker} died {old.deaths + 1} times, the last time"
                + (f" reading sample {sample}" if sample >= 0 else "")
                + f" for logical worker {rank}",
                remedy="see whether the data set crashes or runs out of memory there",
            )
        new = self._processes[worker] = self._start(worker)
        new.deaths, new.seats, new.open = old.deaths + 1, old.seats, old.open
        for task in [*new.seats.values(), *new.open]:
            new.channel.post(task)
        return new


def _end(processes: list[_Process], owner: int) -> None:
    if os.getpid() != owner:  # a fork, whose siblings they are
        return
    for process in processes:
        process.process.kill()
    for process in processes:
        process.process.join()
        process.channel.close()
