"""Where a run's files go, though its directory may be moved, deleted or taken away while it trains.

The directory is held open. As long as it is where it was, that is the place. If it was renamed its files go on in it,
wherever it is now. If it was deleted, or cannot be written any more, they go to a private directory beside it, or where
there is one to be had; the directory that is gone is not made again: another run may have it by now. Every process of a
run finds the same place without asking the others. Writes nothing itself.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["EXIT_ELSEWHERE", "Home", "is_elsewhere"]

#: the job is done, and its result is not in the directory that it was to be in
EXIT_ELSEWHERE = 3

#: what says that the place is to blame and another one may do; a full disk is not among them: room can be made
_NO_PLACE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.ESTALE, errno.ENODEV}
)
_DELETED = " (deleted)"
# Linux holds a directory without opening it: no permission to read is needed.
_HOLD: int = getattr(os, "O_PATH", os.O_RDONLY)


class Home:
    def __init__(self, out: Path, token: str) -> None:
        """`token` is the run's: the place beside is named after it, so that all its processes find the same."""
        self.out = out
        self._mark = hashlib.sha256(f"rescued {token}".encode()).hexdigest()[:8]
        self._held: int | None = None
        with contextlib.suppress(OSError):  # another machine's
            self._held = os.open(out, _HOLD | os.O_DIRECTORY | os.O_CLOEXEC)

    def find(self) -> Path:
        """Raises OSError if there is no place at all."""
        if self._held is None or self._is_held(self.out):
            return self.out
        moved = self._moved()
        return moved if moved is not None and os.access(moved, os.W_OK) else self.rescue()

    def rescue(self) -> Path:
        """The place beside, made if need be. Raises OSError."""
        error = OSError(errno.EACCES, "no directory can be written")
        for parent in _candidates(self.out):
            path = parent / f"{self.out.name}-rescued-{self._mark}"
            try:
                with contextlib.suppress(FileExistsError):
                    path.mkdir(mode=0o700)
                found = path.lstat()
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and os.access(path, os.W_OK):
                    return path
            except OSError as reason:
                error = reason
        raise error

    def is_rescued(self, place: Path) -> bool:
        return place.name == f"{self.out.name}-rescued-{self._mark}"

    def news(self, place: Path) -> str:
        """What a person must know when `find` gives another place than before."""
        if place == self.out:
            return f"{self.out} is back; the run goes on there"
        if self.is_rescued(place):
            return f"{self.out} is gone; training goes on, and what comes of it will be saved to {place}"
        return f"{self.out} was moved to {place}; the run goes on there"

    def _is_held(self, path: Path) -> bool:
        assert self._held is not None
        with contextlib.suppress(OSError):
            return os.path.samestat(os.stat(path), os.fstat(self._held))
        return False

    def _moved(self) -> Path | None:
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{self._held}")
            if not link.endswith(_DELETED) and self._is_held(Path(link)):
                return Path(link)
        return None


def is_elsewhere(error: BaseException) -> bool:
    """Whether what could not be written in one place might be in another."""
    chain = (error, error.__cause__, error.__context__)
    return any(isinstance(one, OSError) and one.errno in _NO_PLACE for one in chain)


def _candidates(out: Path) -> Iterator[Path]:
    yield out.parent
    yield Path(tempfile.gettempdir())
    with contextlib.suppress(RuntimeError):
        yield Path.home()
