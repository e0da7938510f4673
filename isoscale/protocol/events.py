"""The event log: one JSON object a line, each with `t` and `event`.

Real runs and simulated ones write the same events, so reports read both. Writing is append and
flush per line; a torn last line (the writer was killed) is skipped by the reader.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TextIO

__all__ = ["EventLog", "read_events"]


class _Now(Protocol):
    def now(self) -> float: ...


class EventLog:
    """Appends events to a file. One writer per file."""

    def __init__(self, path: Path, clock: _Now) -> None:
        self._clock = clock
        self._file: TextIO = path.open("a+", encoding="utf-8")
        self._end_torn_line()

    def write(self, event: str, **fields: Any) -> None:
        line = {"t": round(self._clock.now(), 6), "event": event, **{k: _plain(v) for k, v in fields.items()}}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _end_torn_line(self) -> None:
        """An earlier writer may have been killed in mid-line; the next event must not be glued to that."""
        size = self._file.seek(0, os.SEEK_END)
        if size:
            with open(self._file.name, "rb") as written:
                written.seek(-1, os.SEEK_END)
                if written.read(1) != b"\n":
                    self._file.write("\n")


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(event, dict) and "event" in event:
                yield event


def _plain(value: Any) -> Any:
    """JSON has no NaN or infinity: they are written as strings, which `float()` reads back."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
