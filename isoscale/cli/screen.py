"""The terminal of a command that runs for hours: whatever becomes of it, the job goes on.

A thread prints. Whoever has something to show leaves it in a bounded queue and never waits: a terminal may be slow or
stopped (Ctrl-S), a pipe may be read by nobody, or closed (`| head -1`). Then lines are not shown, and that is all.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, cast

from rich.console import Console

__all__ = ["Screen", "console_of_a_job"]

#: things to show that may wait
_MOST_WAITING = 2_000
#: how long the last words wait for somebody who reads the pipe; and those of a command that was interrupted
_PATIENCE_S, _INTERRUPTED_S = 10.0, 0.5
#: a write of this size does not wait if the pipe says that it can take something
_PIECE = select.PIPE_BUF
_POLL_MS = 100


class Screen:
    """Draws, one thing after another, on a thread of its own."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        #: what is drawn when nothing waits; only the newest counts
        self._line: Callable[[], object] | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        if isinstance(console.file, _Outlet):
            console.file.patience_s = None  # a thread can wait

    def say(self, draw: Callable[[], object]) -> bool:
        """False if too much waits already: then it is never drawn."""
        with self._lock:
            if len(self._waiting) >= _MOST_WAITING or self._closing:
                return False
            self._waiting.append(draw)
            self._wake()
        return True

    def redraw(self, draw: Callable[[], object]) -> None:
        """Of what is drawn over and over, only the newest."""
        with self._lock:
            self._line = draw
            self._wake()

    def close(
        self, last: Callable[[], object] | None = None, *, interrupted: bool = False, stopped: bool = False
    ) -> None:
        """Draw what waits, then `last`; of an interrupted command only that. Waits for a terminal, not for a pipe, nor
        for anything where a person has asked for the end."""
        with self._lock:
            if interrupted:
                self._waiting.clear()
            elif self._line is not None:
                self._waiting.append(self._line)
            self._line, self._closing = None, True
            if last is not None:
                self._waiting.append(last)
            if self._waiting:
                self._wake()
            self._lock.notify_all()
        if self._thread is None:
            return
        outlet = self._console.file if isinstance(self._console.file, _Outlet) else None
        patient = outlet is not None and outlet.isatty() and not interrupted and not stopped
        self._thread.join(None if patient else _INTERRUPTED_S if interrupted else _PATIENCE_S)
        if outlet is not None:
            outlet.patience_s = None if outlet.isatty() else _PATIENCE_S
            outlet.gone |= self._thread.is_alive()
        with self._lock:
            self._waiting.clear()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._draw_all, name="screen", daemon=True)
            self._thread.start()
        self._lock.notify_all()

    def _draw_all(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting or self._line is not None or self._closing)
                if self._waiting:
                    draw = self._waiting.popleft()
                elif self._line is not None:
                    draw, self._line = self._line, None
                else:
                    return
            # A screen that cannot be drawn on is no reason to end a job.
            with contextlib.suppress(Exception):
                draw()


class _Outlet(io.TextIOBase):
    """A file that is written past Python's buffers, whose locks a thread that waits for ever would hold for ever."""

    def __init__(self, descriptor: int, encoding: str) -> None:
        self._descriptor = descriptor
        self._encoding = encoding
        self._text: list[str] = []
        #: how long somebody who reads is waited for; None: for ever
        self.patience_s: float | None = None
        #: nobody will read any more
        self.gone = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._text.append(text)
        return len(text)

    def flush(self) -> None:
        data = "".join(self._text).encode(self._encoding, errors="replace")
        self._text.clear()
        begun = time.monotonic()
        while data and not self.gone:
            try:
                if self._can_write():
                    data, begun = data[os.write(self._descriptor, data[:_PIECE]) :], time.monotonic()
                elif self.patience_s is not None and time.monotonic() - begun > self.patience_s:
                    self.gone = True
            except OSError:  # closed at the other end, or the terminal is gone
                self.gone = True

    def _can_write(self) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(_POLL_MS))


def console_of_a_job(*, stderr: bool = False, stopped: bool = False) -> Console:
    """A console that a closed or full pipe does not end the command by; lines are not wrapped. What is to be said of a
    job that somebody has `stopped` does not wait for ever."""
    stream = sys.stderr if stderr else sys.stdout
    try:
        stream.flush()
        outlet = _Outlet(stream.fileno(), stream.encoding or "utf-8")
        outlet.patience_s = _PATIENCE_S if stopped else None
    except (OSError, ValueError, AttributeError):  # no file, as in tests; or closed before we began
        return Console(soft_wrap=True, stderr=stderr)
    return Console(file=cast("IO[str]", outlet), soft_wrap=True)
