"""Ctrl-C and SIGTERM of a coordinator: passed on to it, once each time; the third one ends it whatever it does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["Interrupts"]

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Interrupts:
    """A context manager, for the main thread of a process that runs an event loop."""

    def __init__(self, on_signal: Callable[[str, int], None]) -> None:
        """`on_signal` gets a name and an exit code, in the loop."""
        self._on_signal = on_signal
        self._loop = asyncio.get_running_loop()
        self._count = self._handled = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in _NAMES:
            self._before[number] = signal.signal(number, self._caught)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        # A loop that has not even looked at the first one when the next comes is stuck.
        if self._count > 2 or (self._count == 2 and not self._handled):
            raise KeyboardInterrupt
        self._loop.call_soon_threadsafe(self._pass_on, number)

    def _pass_on(self, number: int) -> None:
        self._handled += 1
        self._on_signal(_NAMES[signal.Signals(number)], 128 + number)
