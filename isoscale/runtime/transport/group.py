"""A gloo group in which every wait can be given up.

When gloo closes a connection it wakes those who wait for its messages, but for two: who waits for a message of which a
part has come, and who waits for one that still lacks room in the socket, or was written into a socket that the peer had
just closed. They sleep until their own time limit, whatever is closed meanwhile. (`Pair::signalException` looks neither
at what is being read nor at unbound buffers of what is to be written.) So messages are waited for on a thread of the
group's own, for an answer that breaking off gives as well; collectives, which gloo's threads run, in short looks.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from isoscale.core.reduction.exchange import ExchangeBrokenError

__all__ = ["TIMEOUT", "Group"]

Result = TypeVar("Result")

TIMEOUT = timedelta(minutes=30)
#: how long one that gloo has forgotten goes on waiting for a collective
_LOOK = timedelta(seconds=0.5)
#: of the receive that breaks a group; above the tags of all messages
_BREAKING_TAG = 2**30 + 2


class Group:
    def __init__(self, gloo: Any, index: int, size: int) -> None:
        """`gloo` is torch's process group, in which this executor is at position `index` of `size`."""
        self.index = index
        self.size = size
        self.broken = False
        self._gloo = gloo
        self._lock = threading.Lock()
        #: what somebody waits for; whoever takes one out of here answers it
        self._open: set[Future[Any]] = set()
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __del__(self) -> None:
        self._tasks.put(None)

    # ---- gloo's own ----

    def send(self, tensors: list[torch.Tensor], target: int, tag: int) -> Any:
        return self._gloo.send(tensors, target, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        return self._gloo.recv(tensors, source, tag)

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        return self._gloo.allreduce(tensors)

    def allgather(self, received: list[list[torch.Tensor]], tensors: list[torch.Tensor]) -> Any:
        return self._gloo.allgather(received, tensors)

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Any:
        return self._gloo.broadcast(tensors, options)

    # ---- waiting ----

    def wait(self, collective: Any) -> None:
        """Until it is done. Raises RuntimeError if that fails, or if the group is given up."""
        while True:
            try:
                collective.wait(_LOOK)
                return
            except RuntimeError:
                if self.broken:
                    raise
                if collective.is_completed():
                    collective.wait(TIMEOUT)  # raises what it has failed of
                    return

    def run(self, work: Callable[[], Result]) -> Result:
        """`work` waits for messages: on the group's thread. Raises ExchangeBrokenError when the group is given up."""
        return work() if threading.current_thread() is self._thread else self.submit(work).result()

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """The same without waiting; one after another, in the order of the calls."""
        future: Future[Result] = Future()
        with self._lock:
            if self.broken:
                raise ExchangeBrokenError("given up")
            self._open.add(future)
            if self._thread is None:
                # It may sleep for as long as gloo's time limit: nobody ever joins it.
                self._thread = threading.Thread(target=_do_all, args=(self._tasks,), name="exchange", daemon=True)
                self._thread.start()
        self._tasks.put(lambda: self._do(future, work))
        return future

    def break_off(self) -> None:
        """End every operation, in all threads, and close the sockets. From any thread.

        gloo's own abort leaves operations waiting; a wait that runs into its time limit makes it close everything. None
        does for a peer that is known to be gone, and another one may be alive and silent: so each of them is waited
        for. Only then those who wait are told: what they wait in must not be written to when it is in use again.
        """
        with self._lock:
            self.broken = True
        try:
            for peer in range(self.size):
                if peer != self.index:
                    with contextlib.suppress(RuntimeError):
                        self.recv([torch.zeros(1)], peer, _BREAKING_TAG).wait(timedelta(milliseconds=1))
        finally:
            with self._lock:
                left, self._open = self._open, set()
            for future in left:
                future.set_exception(ExchangeBrokenError("given up"))

    def _do(self, future: Future[Result], work: Callable[[], Result]) -> None:
        if future not in self._open:
            return
        try:
            result = work()
        except BaseException as error:
            if self._takes(future):
                future.set_exception(error)
        else:
            if self._takes(future):
                future.set_result(result)

    def _takes(self, future: Future[Any]) -> bool:
        with self._lock:
            is_mine = future in self._open
            self._open.discard(future)
            return is_mine


def _do_all(tasks: SimpleQueue[Callable[[], None] | None]) -> None:
    # Sums keep denormals, as gloo's own threads do, whatever the user set for the main thread.
    torch.set_flush_denormal(False)
    while (task := tasks.get()) is not None:
        task()
        del task  # it holds the group
