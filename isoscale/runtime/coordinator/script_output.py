"""What the script prints on the first executor, on its way from the log to whoever watches the run.

Reads beside the event loop, a bounded piece at a time; what of it is shown is decided by `backends.lines`. Nothing of
the job waits for it, and nothing is lost by it: the whole output is in DIR/logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

from isoscale.backends.lines import Cut, Excerpt
from isoscale.runtime.coordinator.processes import log_of
from isoscale.types import JobSpec

__all__ = ["Output"]

_LOOK_S = 0.1
#: bytes that one look reads, and how many looks there are after the end
_PIECE = 2**20
_LAST_LOOKS = 16


class Output:
    """Of a first executor that comes later only what it prints from then on."""

    def __init__(self, spec: JobSpec, show: Callable[[str], bool], on_cut: Callable[[int, int], None]) -> None:
        """`show` says whether it could; `on_cut` gets the executor and how many of its lines were not shown."""
        self._spec = spec
        self._show = show
        self._on_cut = on_cut
        self._executor: int | None = None
        self._excerpt = Excerpt()
        self._file: int | None = None
        self._at = 0

    def moved(self, spec: JobSpec) -> None:
        """The logs of whoever is started from now on are elsewhere."""
        self._spec = spec

    async def follow(self, first: Callable[[], int | None]) -> None:
        """Until it is cancelled. `first` says whose output counts at the moment."""
        while True:
            executor = first()
            if executor is not None and executor != self._executor:
                self._turn_to(executor)
            if not await self._look():
                await asyncio.sleep(_LOOK_S)

    async def finish(self) -> None:
        """Nobody prints any more: show the end."""
        for _ in range(_LAST_LOOKS):
            if not await self._look():
                break
        self._close()

    def _turn_to(self, executor: int) -> None:
        earlier = self._executor
        self._close()
        self._executor, self._excerpt, self._at = executor, Excerpt(), 0
        if earlier is not None:
            with contextlib.suppress(OSError):
                self._at = log_of(self._spec, executor).stat().st_size

    async def _look(self) -> bool:
        """Whether there is more to read at once."""
        if self._executor is None:
            return False
        data, shown = await asyncio.to_thread(self._read)
        self._tell(shown)
        return len(data) == _PIECE

    def _read(self) -> tuple[bytes, list[str | Cut]]:
        """Not on the event loop: a disk may be slow."""
        data = b""
        with contextlib.suppress(OSError):
            if self._file is None and self._executor is not None:
                # Kept open: the directory may be moved or deleted under a job.
                self._file = os.open(log_of(self._spec, self._executor), os.O_RDONLY | os.O_CLOEXEC)
            if self._file is not None:
                data = os.pread(self._file, _PIECE, self._at)
        self._at += len(data)
        return data, self._excerpt.add(data, time.monotonic())

    def _tell(self, shown: list[str | Cut]) -> None:
        for number, one in enumerate(shown):
            if isinstance(one, Cut):
                self._cut(one.lines)
            elif self._show(one) is False:
                self._excerpt.refused(sum(isinstance(line, str) for line in shown[number:]))
                cut = sum(line.lines for line in shown[number:] if isinstance(line, Cut))
                if cut:
                    self._cut(cut)
                return

    def _cut(self, lines: int) -> None:
        assert self._executor is not None
        self._on_cut(self._executor, lines)
        self._show(f"... {lines:,} line{'s' if lines != 1 else ''} are in {self._log()}")

    def _close(self) -> None:
        if self._executor is None:
            return
        self._tell(self._excerpt.finish())
        if self._file is not None:
            with contextlib.suppress(OSError):
                left = os.fstat(self._file).st_size - self._at
                if left > 0:
                    self._show(f"... {left:,} bytes more are in {self._log()}")
            os.close(self._file)
            self._file = None

    def _log(self) -> str:
        path = log_of(self._spec, self._executor or 0)
        with contextlib.suppress(OSError, ValueError):
            return min(str(path), os.path.relpath(path), key=len)
        return str(path)
