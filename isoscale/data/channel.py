"""What an executor and a loader process tell each other: one Unix socket, whose far end is nobody else's.

Tensors lie in shared memory, as torch puts them; their file descriptors travel with the message itself. (torch's own
queues have the receiver call back for each one, which costs more than reading a small batch, and needs the sender to be
alive.) What is pickled and large goes into memory of its own in the same way, so that a process that reads ahead does
not wait for somebody to empty the socket. What a dead process had begun to send ends with it: `EOFError`.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import select
import socket
import struct
import time
from array import array
from collections import deque
from collections.abc import Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing
from torch.multiprocessing import reductions

__all__ = ["Channel", "pair"]

#: bytes of the pickle, descriptors, and whether the pickle is in the memory of the last of them
_HEADER = struct.Struct("<QI?")
#: descriptors in one message of the kernel's, which takes no more than 253
_GROUP = 128
_LARGE_BYTES = 2**15
_LATER_S = 0.002
_ANCILLARY_BYTES = socket.CMSG_SPACE(_GROUP * array("i").itemsize)


class Channel:
    """One end. Sending by `post` never blocks; by `send` it does."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._poller = select.poll()
        self._poller.register(end, select.POLLIN)
        #: what the socket had no room for, and descriptors that are sent with its first byte and closed then
        self._unsent: deque[tuple[bytes, list[int]]] = deque()

    def post(self, message: object) -> None:
        """Send without tensors, now or, where there is no room, in a later `post` or `wait`."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        memory = _in_memory(data)
        head = _HEADER.pack(len(data), len(memory), bool(memory))
        self._unsent.append((head if memory else head + data, memory))
        self._flush()

    def wait(self, seconds: float) -> bool:
        """Whether there is something to receive, or the other end is gone."""
        events = select.POLLIN | select.POLLOUT if self._unsent else select.POLLIN
        self._poller.modify(self._socket, events)
        ready = self._poller.poll(seconds * 1000)
        if ready and ready[0][1] & select.POLLOUT:
            self._flush()
        return bool(ready) and bool(ready[0][1] & ~select.POLLOUT)

    def send(self, message: object) -> None:
        """Send with the tensors in it, which are moved to shared memory where they are not there yet."""
        buffer = io.BytesIO()
        pickler = _Pickler(buffer)
        pickler.dump(message)
        data, descriptors = buffer.getbuffer(), pickler.descriptors
        memory = _in_memory(data)
        descriptors = [*descriptors, *memory]
        try:
            head = _HEADER.pack(len(data), len(descriptors), bool(memory))
            self._send_all(head if memory else head + data, descriptors[:_GROUP])
            for start in range(_GROUP, len(descriptors), _GROUP):
                self._send_all(b"+", descriptors[start : start + _GROUP])
        finally:
            _close(memory)

    def receive(self) -> Any:
        """Raises EOFError if the other end is gone."""
        descriptors: list[int] = []
        try:
            size, count, is_large = _HEADER.unpack(self._read(_HEADER.size, descriptors))
            data = b"" if is_large else self._read(size, descriptors)
            while len(descriptors) < count:
                self._read(1, descriptors)
            if is_large:
                with open(descriptors[-1], "rb", closefd=False) as file:
                    file.seek(0)  # the sender's place is this one's too
                    data = file.read()
            return _loads(data, descriptors) if count else pickle.loads(data)
        finally:
            _close(descriptors)

    def close(self) -> None:
        self._socket.close()
        self._give_up()

    def _flush(self) -> None:
        try:
            while self._unsent:
                data, descriptors = self._unsent[0]
                sent = _send_part(self._socket, data, descriptors, socket.MSG_DONTWAIT)
                _close(descriptors)
                self._unsent.popleft()
                if sent < len(data):
                    self._unsent.appendleft((data[sent:], []))
        except BlockingIOError:
            pass
        except OSError:
            self._give_up()  # the other end is gone, which whoever receives will see

    def _give_up(self) -> None:
        for _, descriptors in self._unsent:
            _close(descriptors)
        self._unsent.clear()

    def _send_all(self, data: bytes, descriptors: Sequence[int]) -> None:
        while True:
            try:
                sent = _send_part(self._socket, data, descriptors, 0)
                break
            except BlockingIOError:
                time.sleep(_LATER_S)
        if sent < len(data):
            self._socket.sendall(data[sent:])

    def _read(self, size: int, descriptors: list[int]) -> bytes:
        """Exactly so many bytes; descriptors that come with them are put to the others."""
        parts, missing = [], size
        while missing:
            part, ancillary, flags, _ = self._socket.recvmsg(missing, _ANCILLARY_BYTES, socket.MSG_WAITALL)
            for level, kind, given in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors.extend(array("i", given))
            if flags & socket.MSG_CTRUNC:
                raise RuntimeError(
                    "too many open files to receive a batch: raise the limit (ulimit -n), or call "
                    "torch.multiprocessing.set_sharing_strategy('file_system')"
                )
            if not part:
                raise EOFError("the other end is gone")
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def pair() -> tuple[Channel, socket.socket]:
    """This end, and the other one for a process to be started, which makes a `Channel` of it."""
    here, there = socket.socketpair()
    return Channel(here), there


def _send_part(end: socket.socket, data: bytes, descriptors: Sequence[int], flags: int) -> int:
    if not descriptors:
        return end.send(data, flags)
    try:
        return socket.send_fds(end, [data], descriptors, flags)
    except OSError as error:
        if error.errno == errno.ETOOMANYREFS:  # so many are under way already; there is room when some are received
            raise BlockingIOError from None
        raise


def _in_memory(data: bytes | memoryview) -> list[int]:
    """A descriptor of memory with the data in it, if it is large."""
    if len(data) <= _LARGE_BYTES or not hasattr(os, "memfd_create"):
        return []
    memory = os.memfd_create("isoscale-batch", os.MFD_CLOEXEC)
    with open(memory, "wb", closefd=False) as file:
        file.write(data)
    return [memory]


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:  # others have an owner
            os.close(descriptor)


class _Pickler(ForkingPickler):
    """torch's way to pickle tensors, but for how descriptors travel."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        #: valid as long as the message's tensors are
        self.descriptors: list[int] = []
        if torch.multiprocessing.get_sharing_strategy() == "file_descriptor":  # type: ignore[no-untyped-call]
            # Not a method: a cycle would keep the tensors until somebody collects garbage.
            self.dispatch_table[torch.UntypedStorage] = partial(_reduce_storage, self.descriptors)


def _reduce_storage(descriptors: list[int], storage: torch.UntypedStorage) -> Any:
    if storage.is_cuda or storage.device.type == "meta" or storage.size() == 0:
        return reductions.reduce_storage(storage)  # type: ignore[no-untyped-call]
    descriptor, size = storage._share_fd_cpu_()
    descriptors.append(descriptor)
    return reductions.rebuild_storage_fd, (type(storage), _Given(len(descriptors) - 1), size)


class _Given:
    """A descriptor that came with the message that is being read."""

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        descriptor = _received[self._place]
        _received[self._place] = -1
        return descriptor


#: of the message that is being read
_received: list[int] = []


def _loads(data: bytes, descriptors: list[int]) -> Any:
    global _received
    _received = descriptors
    try:
        return pickle.loads(data)
    finally:
        _received = []
