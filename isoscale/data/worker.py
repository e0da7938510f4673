"""A loader process: reads batches for several logical workers, each under random streams of its own.

Physical process w stands for worker w of every logical worker's stock DataLoader. Before a batch it takes up the
streams that this worker would have in the stock loader (seeded from the logical worker's base seed exactly as torch
seeds them, or as they were left by the batch before), and gives them back with the batch.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import signal
import socket
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils import worker as torch_worker

from isoscale.core.streams import rng
from isoscale.data.channel import Channel

__all__ = ["Drop", "Failure", "Fetch", "Parts", "Reset", "Result", "Task", "merged", "read_for", "worker_main"]

_PR_SET_PDEATHSIG = 1
#: where the death of the executor is not told by the kernel it is looked for so often
_LOOK_S = 5.0


#: the random streams of a virtual worker as `rng.Streams.parts` gives them: bytes, because tensors would be moved into
#: shared memory; or what changed in them, None where nothing did
Parts = list[bytes | None]


class Reset(NamedTuple):
    """Before the first batch of a logical worker, or to go back: its streams, or None to seed them afresh.

    What was asked for earlier is not wanted any more.
    """

    logical_rank: int
    base_seed: int
    streams: Parts | None


class Drop(NamedTuple):
    """A logical worker lives elsewhere now: nothing that was asked for is wanted."""

    logical_rank: int


class Fetch(NamedTuple):
    #: number of the logical worker's reset that this belongs to
    attempt: int
    logical_rank: int
    batch: int
    #: indices of the data set, or whatever its `__getitems__` takes
    samples: list[Any]


class Failure(NamedTuple):
    """The data set raised, or `collate_fn` or `worker_init_fn` did."""

    traceback_text: str
    kind: str
    #: the sample that was being read; None if that is not known
    sample: int | None


class Result(NamedTuple):
    attempt: int
    logical_rank: int
    batch: int
    data: object
    #: what the batch changed in the streams; everything for a worker's first one
    changes: Parts


Task = Reset | Drop | Fetch


def merged(before: Parts | None, changes: Parts) -> Parts:
    """The streams after a batch, from those before it and what it changed."""
    if before is None:
        return changes
    return [old if new is None else new for old, new in zip(before, changes, strict=True)]


_read_for: int | None = None


def read_for() -> int | None:
    """In a loader process, the logical worker whose batch is being read; for a `worker_init_fn` that seeds by it."""
    return _read_for


def worker_main(
    dataset: Dataset[object],
    collate: Callable[[list[Any]], object],
    init: Callable[[int], None] | None,
    worker: int,
    num_workers: int,
    end: socket.socket,
    place: ctypes.Array[ctypes.c_longlong],
) -> None:
    """Runs until its executor is gone. `place` shows what it reads, should it die there."""
    _die_with_parent()
    signal_handling._set_worker_signal_handlers()  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    channel, watchdog = Channel(end), torch_worker.ManagerWatchdog()
    seats: dict[int, _VirtualWorker] = {}
    active: _VirtualWorker | None = None
    asked: deque[Fetch] = deque()
    while watchdog.is_alive():
        # All that is known is heard before the next batch is begun: it may not be wanted any more.
        while channel.wait(0.0 if asked else _LOOK_S):
            try:
                task: Task = channel.receive()
            except EOFError:
                return
            if isinstance(task, Fetch):
                asked.append(task)
                continue
            asked = deque(fetch for fetch in asked if fetch.logical_rank != task.logical_rank)
            seats.pop(task.logical_rank, None)
            if isinstance(task, Reset):
                seats[task.logical_rank] = _VirtualWorker(dataset, collate, init, worker, num_workers, task, place)
        if asked:
            fetch = asked.popleft()
            seat = seats[fetch.logical_rank]
            _send(channel, seat.fetch(fetch, is_active=seat is active))
            active = seat


def _send(channel: Channel, result: Result) -> None:
    try:
        channel.send(result)
    except OSError:
        raise
    except Exception as error:  # what `collate_fn` gave cannot be pickled
        channel.send(result._replace(data=Failure(traceback.format_exc(), type(error).__name__, None)))


class _VirtualWorker:
    """One logical worker's virtual worker in this process."""

    def __init__(
        self,
        dataset: Dataset[object],
        collate: Callable[[list[Any]], object],
        init: Callable[[int], None] | None,
        worker: int,
        num_workers: int,
        reset: Reset,
        place: ctypes.Array[ctypes.c_longlong],
    ) -> None:
        self._dataset: Any = dataset
        self._collate, self._init, self._worker, self._place = collate, init, worker, place
        self._base_seed = reset.base_seed
        self._streams = None if reset.streams is None else rng.Streams.from_parts(reset.streams)
        self._info = torch_worker.WorkerInfo(
            id=worker, num_workers=num_workers, seed=reset.base_seed + worker, dataset=dataset
        )

    def fetch(self, task: Fetch, *, is_active: bool) -> Result:
        """Read a batch. `is_active` says that the process's streams are this seat's already."""
        global _read_for
        torch_worker._worker_info, _read_for = self._info, task.logical_rank
        place, before, sample = self._place, self._streams, None
        place[0], place[1] = task.logical_rank, -1
        try:
            if before is None:
                self._seed()
            elif not is_active:
                rng.restore(before)
            if getattr(self._dataset, "__getitems__", None):
                samples = self._dataset.__getitems__(task.samples)
            else:
                samples = []
                for sample in task.samples:
                    place[1] = sample
                    samples.append(self._dataset[sample])
                sample = None
            data = self._collate(samples)
        except Exception as error:
            data = Failure(traceback.format_exc(), type(error).__name__, sample)
        after = self._streams = rng.capture()
        changes = after.changes_since(before) if before is not None else after.parts()
        return Result(task.attempt, task.logical_rank, task.batch, data, changes)

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
