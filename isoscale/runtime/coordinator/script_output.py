"""What the script prints on the first executor, on its way from the log to whoever watches the run.

Reads beside the event loop, a bounded piece at a time; what of it is shown is decided by `backends.lines`. Nothing of
the job waits for it, and nothing is lost by it: the whole output is in DIR/logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator

from isoscale.backends.lines import Cut, Excerpt
from isoscale.runtime.coordinator.processes import log_of
from isoscale.types import JobSpec

__all__ = ["Output"]

_LOOK_S = 0.1
#: bytes that one look reads, and how many looks there are after the end
_PIECE = 2**20
_LAST_LOOKS = 16
#: whole looks without anything new for which news wait that should follow some output
_IDLE_LOOKS = 3


class Output:
    """Of a first executor that comes later only what it prints from then on. News of that executor (`then`) are shown
    where they belong: after what it had printed before."""

    def __init__(self, spec: JobSpec, show: Callable[[str], bool], on_cut: Callable[[int, int], None]) -> None:
        """`show` says whether it could; `on_cut` gets the executor and how many of its lines were not shown."""
        self._spec = spec
        self._show = show
        self._on_cut = on_cut
        self._executor: int | None = None
        self._excerpt = Excerpt()
        self._file: int | None = None
        self._at = 0
        #: what is to be shown after so many bytes of the present executor's output
        self._news: deque[tuple[int, Callable[[], object]]] = deque()
        #: read and not shown yet, and how much was shown before
        self._held = b""
        self._shown = 0
        self._idle_looks = 0
        #: goes on when whoever waits for it is cancelled: the next look has what it read
        self._reading: asyncio.Future[bytes] | None = None
        self._is_finished = False

    def moved(self, spec: JobSpec) -> None:
        """The logs of whoever is started from now on are elsewhere."""
        self._spec = spec

    def then(self, executor: int, after: int, show: Callable[[], object]) -> None:
        """`show` news of an executor when the first `after` bytes of its output have been shown."""
        elsewhere = self._executor is not None and executor != self._executor
        if elsewhere or after < 0 or self._is_finished:
            show()
            return
        if not self._news:
            self._idle_looks = 0  # those before say nothing of the output that these follow
        self._news.append((after, show))

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
            is_new = self._reading is None
            if not await self._look() and is_new:
                break
        self._close()
        self._is_finished = True

    def _turn_to(self, executor: int) -> None:
        earlier = self._executor
        if earlier is not None:  # news of the first one may be here before it is looked at
            self._close()
        self._executor, self._excerpt, self._at = executor, Excerpt(), 0
        if earlier is not None:
            with contextlib.suppress(OSError):
                self._at = log_of(self._spec, executor).stat().st_size
        self._shown = self._at

    async def _look(self) -> bool:
        """Whether there is more to read at once."""
        if self._executor is None:
            return False
        if self._reading is None:
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._read))
        data = await asyncio.shield(self._reading)
        self._reading = None
        # Shown a look later than it is read: news of what came before it may still be on their way.
        self._show_held()
        self._held = data
        if data:
            self._idle_looks = 0
        elif self._news:
            self._idle_looks += 1
        if self._idle_looks > _IDLE_LOOKS:  # its output is not here: it is on another machine
            self._show_news()
        return len(data) == _PIECE

    def _show_held(self) -> None:
        held, self._held = self._held, b""
        for piece in self._up_to_news(held):
            self._tell(self._excerpt.add(piece, time.monotonic()))
        self._shown += len(held)

    def _up_to_news(self, data: bytes) -> Iterator[bytes]:
        """In pieces, between which news are shown. News that came before the output that they follow wait for it."""
        done = 0
        while self._news and self._news[0][0] <= self._shown + len(data):
            after, show = self._news.popleft()
            if after > self._shown + done:
                yield data[done : after - self._shown]
                done = after - self._shown
            show()
        yield data[done:]

    def _read(self) -> bytes:
        """Not on the event loop: a disk may be slow."""
        data = b""
        with contextlib.suppress(OSError):
            if self._file is None and self._executor is not None:
                # Kept open: the directory may be moved or deleted under a job.
                self._file = os.open(log_of(self._spec, self._executor), os.O_RDONLY | os.O_CLOEXEC)
            if self._file is not None:
                data = os.pread(self._file, _PIECE, self._at)
        self._at += len(data)
        return data

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
            self._show_news()
            return
        self._show_held()
        self._tell(self._excerpt.finish())
        self._show_news()  # of output that is not read any more
        if self._file is not None:
            with contextlib.suppress(OSError):
                left = os.fstat(self._file).st_size - self._at
                if left > 0:
                    self._show(f"... {left:,} bytes more are in {self._log()}")
            os.close(self._file)
            self._file = None

    def _show_news(self) -> None:
        while self._news:
            self._news.popleft()[1]()

    def _log(self) -> str:
        path = log_of(self._spec, self._executor or 0)
        with contextlib.suppress(OSError, ValueError):
            return min(str(path), os.path.relpath(path), key=len)
        return str(path)
