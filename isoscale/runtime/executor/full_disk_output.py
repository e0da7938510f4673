"""What a script prints, on a disk that is full: lost, and no reason for training to end."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["forgive_full_disk"]


class _Outlet(io.FileIO):
    """A log file that never says it is full."""

    def __init__(self, descriptor: int, on_loss: Callable[[str], None]) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._on_loss: Callable[[str], None] | None = on_loss

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            on_loss, self._on_loss = self._on_loss, None
            if on_loss is not None:
                on_loss(f"what the script prints is lost: {error.strerror}")
            return len(memoryview(data))


def forgive_full_disk(on_loss: Callable[[str], None]) -> None:
    """From here on; `on_loss` is called when a line is lost for the first time."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        stream.flush()
        outlet = _Outlet(descriptor, on_loss)
        # Raw, as Python itself does with PYTHONUNBUFFERED: what a buffer could not write it would try again at exit.
        text = io.TextIOWrapper(outlet, encoding=stream.encoding, errors=stream.errors, write_through=True)
        setattr(sys, name, text)
