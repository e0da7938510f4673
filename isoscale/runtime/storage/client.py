"""A run's storage: objects, with retries, and checked where they are large. A part is never taken for the whole.

`Storage` is what the rest of a run knows; `DirectStorage` is in this process, `storage.courier` in another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from isoscale.errors import UserError
from isoscale.protocol.files import MAX_SMALL_BYTES, open_regular
from isoscale.runtime.storage.objects import Objects, open_objects

__all__ = ["DirectStorage", "Storage", "check_conditional", "is_url", "open_storage", "sha256_of"]

#: pauses before each further try of what may work later
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0)
#: what does not work later
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
Value = TypeVar("Value")


class Storage(Protocol):
    """Each method raises OSError; FileNotFoundError for what is not there."""

    def read(self, key: str, most: int = MAX_SMALL_BYTES) -> bytes: ...

    def write(self, key: str, data: bytes) -> None: ...

    def create(self, key: str, data: bytes) -> bool:
        """Whether this call has made it. `data` is unlike anybody else's: so a lost answer does no harm."""

    def upload(self, key: str, path: Path) -> None: ...

    def download(self, key: str, path: Path, size: int, sha256: str) -> None:
        """Raises OSError also if the object is not of this size and digest; then there is no file."""

    def size(self, key: str) -> int: ...

    def sha256(self, key: str) -> str:
        """Of its contents, all of which are read."""

    def list(self, prefix: str) -> dict[str, int]: ...

    def remove(self, key: str) -> None: ...


class DirectStorage:
    def __init__(self, objects: Objects, sleep: Callable[[float], None] = time.sleep) -> None:
        self._objects = objects
        self._sleep = sleep

    def read(self, key: str, most: int = MAX_SMALL_BYTES) -> bytes:
        return self._again(lambda: self._objects.read(key, most))

    def write(self, key: str, data: bytes) -> None:
        self._again(lambda: self._objects.write(key, data))

    def create(self, key: str, data: bytes) -> bool:
        try:
            self._again(lambda: self._objects.create(key, data))
            return True
        except FileExistsError:
            # An earlier try may have made it, though its answer was lost.
            return self.read(key) == data

    def upload(self, key: str, path: Path) -> None:
        self._again(lambda: self._objects.upload(key, path))
        size = path.stat().st_size
        if (found := self.size(key)) != size:
            raise OSError(f"{key} has {found} bytes in the storage instead of {size}")

    def download(self, key: str, path: Path, size: int, sha256: str) -> None:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            self._again(lambda: self._objects.download(key, temporary))
            if temporary.stat().st_size != size or (sha256 and sha256_of(temporary) != sha256):
                raise OSError(f"{key} is not as it was written: {size} bytes with sha256 {sha256 or 'unknown'}")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def size(self, key: str) -> int:
        return self._again(lambda: self._objects.size(key))

    def sha256(self, key: str) -> str:
        return self._again(lambda: self._objects.sha256(key))

    def list(self, prefix: str) -> dict[str, int]:
        with contextlib.suppress(FileNotFoundError):
            return self._again(lambda: self._objects.list(prefix))
        return {}

    def remove(self, key: str) -> None:
        self._again(lambda: self._objects.remove(key))

    def _again(self, call: Callable[[], Value]) -> Value:
        for pause_s in _PAUSES_S:
            try:
                return call()
            except _FINAL:
                raise
            except OSError:
                self._sleep(pause_s)
        return call()


def is_url(text: str) -> bool:
    """Whether a person who may give a directory has given a URL."""
    return "://" in text


def open_storage(url: str, field: str = "--storage") -> DirectStorage:
    """Raises UserError."""
    return DirectStorage(open_objects(url, field))


def check_conditional(storage: Storage, url: str, field: str = "--storage") -> None:
    """That it can be written, and that of two who create an object one is told so. Raises UserError."""
    key = f"probe-{secrets.token_hex(8)}"
    try:
        made = [storage.create(key, secrets.token_bytes(16)) for _ in range(2)]
        storage.remove(key)
    except OSError as error:
        problem = f"cannot be written ({error.strerror or error})"
        remedy = "check the address, that the bucket exists, and the credentials"
        raise UserError(field=field, value=url, problem=problem, remedy=remedy) from None
    if made != [True, False]:
        problem = "needs a shared lock: it lets two create the same object (does it know If-None-Match?)"
        raise UserError(field=field, value=url, problem=problem, remedy="use another storage")


def sha256_of(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
