"""The loader processes of one executor: as many as `num_workers` says, however many logical workers they serve.

Batches are asked for ahead in the order in which turns need them. A process that dies is replaced and asked again: what
it had not delivered is reproduced from the streams that are known. Which samples belong to which batch, and what
streams a logical worker has, is the caller's business (`data.loader`).
"""

from __future__ import annotations

import contextlib
import fcntl
import pickle
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
_F_SETPIPE_SZ = 1031  # fcntl's own name for it is new in Python 3.10 and Linux only
_PIPE_BYTES = 2**20
_MAX_DEATHS = 3


@dataclass(slots=True)
class _Process:
    process: Any
    tasks: Any
    #: a pipe of its own, whose other end is nobody else's: what it had begun to send ends with it
    results: Any
    #: logical rank and sample that it reads
    place: Any
    #: what it was told and has not delivered yet, in order
    open: list[Fetch]
    #: base seed and streams of each logical worker after what it has delivered
    streams: dict[int, tuple[int, rng.Streams | None]]
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

    def reset(self, worker: int, logical_rank: int, base_seed: int, streams: rng.Streams | None) -> None:
        """From now on batches of this logical worker start from these streams."""
        process = self._processes[worker]
        process.open = [fetch for fetch in process.open if fetch.logical_rank != logical_rank]
        process.streams[logical_rank] = (base_seed, streams)
        process.tasks.put(_reset(logical_rank, base_seed, streams))

    def ask(self, fetch: Fetch) -> None:
        process = self._processes[fetch.index % self.num_workers]
        process.open.append(fetch)
        process.tasks.put(fetch)

    def get(self, attempt: int, logical_rank: int, index: int) -> Result:
        """A batch that was asked for. Raises TimeoutError after the loader's own time-out."""
        wanted, process = (attempt, logical_rank, index), self._processes[index % self.num_workers]
        deadline = time.monotonic() + self._timeout if self._timeout > 0 else None
        while wanted not in self._ready:
            if process.results.poll(_LOOK_S):
                try:
                    result: Result = process.results.recv()
                except (EOFError, OSError, pickle.UnpicklingError):
                    # It is dead, and so is the memory that held the batch.
                    process = self._replace(index % self.num_workers)
                    continue
                self._delivered(process, result)
            elif deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"no batch {index} for logical worker {logical_rank} within {self._timeout:.0f} s")
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
            seed, before = process.streams[result.logical_rank]
            after = rng.Streams.from_parts(result.changes) if before is None else before.with_changes(result.changes)
            process.streams[result.logical_rank] = (seed, after)

    def _start(self, worker: int) -> _Process:
        tasks, place = self._context.Queue(), self._context.RawArray("q", [-1, -1])
        results, sending = self._context.Pipe(duplex=False)
        with contextlib.suppress(OSError):  # room for what was read ahead; a full pipe would only slow it down
            fcntl.fcntl(sending.fileno(), _F_SETPIPE_SZ, _PIPE_BYTES)
        process = self._context.Process(
            target=worker_main,
            args=(self._dataset, self._collate, self._init, worker, self.num_workers, tasks, sending, place),
            daemon=True,
        )
        process.start()
        sending.close()
        return _Process(process, tasks, results, place, [], {})

    def _replace(self, worker: int) -> _Process:
        """It was killed: another one goes on where it was."""
        old = self._processes[worker]
        old.process.kill()
        old.process.join()
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
        new.deaths, new.streams, new.open = old.deaths + 1, old.streams, old.open
        told: list[Task] = [_reset(rank, *known) for rank, known in new.streams.items()]
        for task in [*told, *new.open]:
            new.tasks.put(task)
        return new


def _reset(logical_rank: int, base_seed: int, streams: rng.Streams | None) -> Reset:
    """Bytes, not tensors: those would be moved into shared memory."""
    return Reset(logical_rank, base_seed, None if streams is None else streams.parts())
