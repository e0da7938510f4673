"""State in a file of torch's: `torch.save`, hashed on its way to the disk, and `torch.load` of plain values only.

Gives back what it was given, in types and bits, or refuses it when it is written. Where files lie and what they are
called is `runtime.checkpoint.files`'s.
"""

from __future__ import annotations

import codecs
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import torch

from isoscale.core.encoding import header
from isoscale.protocol.files import open_regular
from isoscale.runtime.checkpoint.failures import cannot

__all__ = ["read", "save"]


def save(state: dict[str, object], path: Path) -> tuple[int, str]:
    """Writes onto the disk; gives size and SHA-256. Raises OSError, or another error for what torch cannot hold."""
    header.encode(state)  # refuses what only an unrestricted load would read
    with path.open("wb") as file:
        hashing = _HashingFile(file)
        torch.save(_loadable(state), hashing)  # type: ignore[arg-type]  # it asks for no more than write() and flush()
        hashing.to_disk()
    return hashing.size, hashing.digest()


def read(path: Path) -> dict[str, object]:
    """The dict that was saved, on the CPU. Builds tensors and plain values only; runs nothing that the file holds.

    Raises CheckpointError.
    """
    try:
        open_regular(path).close()  # torch would wait for a pipe
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise TypeError(f"it holds a {type(state).__name__} instead of a dict")
        return state
    except Exception as error:  # torch has no error of its own for this
        raise cannot("load", path, error) from error


class _HashingFile:
    """Hashes what is written on its way to the file, so that the disk need not be read again.

    Never raises in `write`: torch would end its archive all the same, and report that instead of a full disk.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._error: OSError | None = None
        self.size = 0

    def write(self, data: bytes | memoryview) -> int:
        if self._error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self._error = error
            self._sha256.update(data)
            self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """torch calls it; the file is flushed once, by `to_disk`."""

    def to_disk(self) -> None:
        if self._error is not None:
            raise self._error
        self._file.flush()
        os.fsync(self._file.fileno())

    def digest(self) -> str:
        return self._sha256.hexdigest()


class _NoBytes(bytes):
    """Becomes b"" when it is loaded. Pickle's own form of that calls `bytes`, which `weights_only` does not allow."""

    def __reduce__(self) -> tuple[Callable[..., bytes], tuple[str, str]]:
        return codecs.encode, ("", "latin1")


def _loadable(tree: object) -> object:
    if isinstance(tree, dict):
        return {_loadable(key): _loadable(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map(_loadable, tree))
    if isinstance(tree, torch.Tensor):
        return _alone(tree.detach())
    return _NoBytes() if type(tree) is bytes and not tree else tree


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or one over the same memory that ends where it ends.

    torch writes all of a storage that a tensor lies in, and refuses one that is shared by several dtypes, such as a
    packed state.
    """
    tensor = tensor.cpu()
    if tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize:
        return tensor
    bits, strides = header.bits(tensor), header.kept_strides(tensor)
    if bits.stride() != strides or not bits.numel():
        return torch.empty_strided(bits.shape, strides, dtype=bits.dtype).copy_(bits).view(tensor.dtype)
    row = torch.from_numpy(bits.as_strided((bits.numel(),), (1,)).view(torch.uint8).numpy())
    return torch.empty(0, dtype=tensor.dtype).set_(row.untyped_storage(), 0, tensor.shape, strides)
