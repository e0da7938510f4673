"""Run logs that were asked for lately, read and bounded: the least recently asked for go first."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from isoscale.cluster.records.run_log import RunLog

__all__ = ["Shelf"]

_MOST_LOGS, _MOST_BYTES = 32, 256 * 2**20


class Shelf:
    def __init__(self, most_logs: int = _MOST_LOGS, most_bytes: int = _MOST_BYTES) -> None:
        self._most_logs, self._most_bytes = most_logs, most_bytes
        self._logs: collections.OrderedDict[Path, RunLog] = collections.OrderedDict()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def log(self, directory: Path, budget_s: float = 1.0) -> Iterator[RunLog]:
        """Updated, for so long at most, and nobody else's meanwhile."""
        with self._lock:
            found = self._logs.setdefault(directory, RunLog(directory))
            self._logs.move_to_end(directory)
            while len(self._logs) > 1 and (len(self._logs) > self._most_logs or self.num_bytes > self._most_bytes):
                self._logs.popitem(last=False)
        with found.lock:
            found.update(budget_s)
            yield found

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for one in self._logs.values())
