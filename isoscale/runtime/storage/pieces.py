"""A file that only grows, kept in a storage in pieces: the last one is written again while it is small.

So a log of any length costs a bounded write each time, and a bounded number of objects. Whole lines only: what counts
of a log never ends in the middle of one.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from isoscale.runtime.storage import names
from isoscale.runtime.storage.client import Storage
from isoscale.runtime.storage.records import Piece

__all__ = ["GrowingFile", "joined"]

#: bytes from which on a piece is left alone and the next one begun
FULL_BYTES = 2**20


class GrowingFile:
    def __init__(self, storage: Storage, path: Path, prefix: str, suffix: str, *, start: int = 0) -> None:
        """What stands in the file before `start` is somebody else's."""
        self._storage = storage
        self.path = path
        self._prefix, self._suffix = prefix, suffix
        #: where the present piece begins, its number, and how far the storage has the file
        self._piece_at, self._number, self._kept = start, 0, start

    def keep(self) -> bool:
        """Bring the storage up to the file; whether there was anything to do. Raises OSError."""
        done = False
        while data := self._news():
            whole = data[: data.rfind(b"\n") + 1]
            if self._piece_at + len(whole) <= self._kept:
                break
            self._storage.write(names.piece(self._prefix, self._number, self._suffix), whole)
            self._kept, done = self._piece_at + len(whole), True
            if len(whole) < FULL_BYTES:
                break
            self._piece_at, self._number = self._kept, self._number + 1
        return done

    def _news(self) -> bytes:
        """The present piece as it should be: to the end, or to the end of the line that makes it full."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > self._kept:
                file.seek(self._piece_at)
                data = file.read(FULL_BYTES)
                return data + file.readline() if len(data) == FULL_BYTES else data
        return b""


def joined(storage: Storage, pieces: tuple[Piece, ...], path: Path) -> None:
    """Put the file together again, of as much of each piece as counts. Raises OSError."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        for piece in pieces:
            data = storage.read(piece.object, piece.size) if piece.size else b""
            if len(data) != piece.size:
                raise OSError(f"{piece.object} has {len(data)} bytes instead of {piece.size}")
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
