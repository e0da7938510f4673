"""Wakes whoever waits for the next event, from any thread. Does not say which: the table does."""

from __future__ import annotations

import asyncio
import threading

__all__ = ["Bell"]


class Bell:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def subscribe(self) -> asyncio.Event:
        """In a running event loop."""
        event = asyncio.Event()
        with self._lock:
            self._waiting[event] = asyncio.get_running_loop()
        return event

    def unsubscribe(self, event: asyncio.Event) -> None:
        with self._lock:
            self._waiting.pop(event, None)

    def ring(self, event_id: int = 0) -> None:
        with self._lock:
            waiting = list(self._waiting.items())
        for event, loop in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)
