"""The event log: one JSON object a line, each with `t` and `event`.

Real runs and simulated ones write the same events, so reports read both. Writing is append and
flush per line; a torn last line (the writer was killed) is skipped by the reader.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TextIO

from isoscale.protocol.files import open_regular

__all__ = ["EventLog", "parse_events", "read_events"]

#: bytes that are read as one line
_MAX_LINE = 16 * 2**20


class _Now(Protocol):
    def now(self) -> float: ...


class EventLog:
    """Appends events to a file. One writer per file."""

    def __init__(self, path: Path, clock: _Now) -> None:
        self._clock = clock
        self._file: TextIO = path.open("a+", encoding="utf-8")
        #: the last line was not written whole
        self._torn = False
        self._end_torn_line()

    def write(self, event: str, *, t: float | None = None, **fields: Any) -> None:
        """`t` is when it happened, if that is not now. Raises OSError; then nothing of the line counts."""
        now = self._clock.now() if t is None else t
        line = {"t": round(now, 6), "event": event, **{k: _plain(v) for k, v in fields.items()}}
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        if self._torn:
            data = b"\n" + data
        # Past Python's buffers: what they could not write on a full disk they would try again at the worst moment.
        written = os.write(self._file.fileno(), data)
        self._torn = written < len(data)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def copy_to(self, path: Path) -> None:
        """All that was written, also if the file has no name any more. Raises OSError."""
        with path.open("wb") as copy:
            at = 0
            while data := os.pread(self._file.fileno(), 2**20, at):
                copy.write(data)
                at += len(data)

    def close(self) -> None:
        self._file.close()

    def _end_torn_line(self) -> None:
        """An earlier writer may have been killed in mid-line; the next event must not be glued to that."""
        size = self._file.seek(0, os.SEEK_END)
        if size:
            with open(self._file.name, "rb") as written:
                written.seek(-1, os.SEEK_END)
                self._torn = written.read(1) != b"\n"


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Raises OSError. Lines that are no event are skipped, whatever they are."""
    with open_regular(path) as file:
        yield from parse_events(iter(lambda: file.readline(_MAX_LINE), b""))


def parse_events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """As `read_events`."""
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
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
