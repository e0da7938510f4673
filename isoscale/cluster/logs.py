"""What a job's executors printed, page by page: by job and executor, never by a path.

A page is bytes from an offset on, cut at a line's end, so a job that prints 200,000 lines costs a reader what it reads.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from isoscale.protocol.files import open_regular

__all__ = ["MAX_PAGE", "LogFile", "LogPage", "log_files", "log_page"]

MAX_PAGE = 256 * 1024
_LOG = re.compile(r"executor-([0-9]{1,9})\.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    #: "coordinator", or an executor's number
    source: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    source: str
    text: str
    #: where the text begins, and where the next page does
    offset: int
    next_offset: int
    size: int


def log_files(directory: Path) -> list[LogFile]:
    """The coordinator's, then those of executors by number."""
    found = [LogFile(source="coordinator", size=_size(directory / "coordinator.log"))]
    with contextlib.suppress(OSError):
        numbers = sorted(int(match[1]) for name in os.listdir(directory / "logs") if (match := _LOG.fullmatch(name)))
        found += [LogFile(source=str(n), size=_size(directory / "logs" / f"executor-{n}.log")) for n in numbers]
    return found


def log_page(directory: Path, source: str, offset: int, limit: int = MAX_PAGE) -> LogPage:
    """From `offset` on, at most `limit` bytes; a negative offset counts from the end, and begins with a whole line."""
    known = {one.source: one.size for one in log_files(directory)}
    size = known.get(source, 0)
    begin = max(0, size + offset) if offset < 0 else min(offset, size)
    data = b""
    if source in known:
        path = directory / ("coordinator.log" if source == "coordinator" else f"logs/executor-{int(source)}.log")
        with contextlib.suppress(OSError), open_regular(path) as file:
            file.seek(begin)
            data = file.read(min(limit, MAX_PAGE))
    if offset < 0 and begin and (first := data.find(b"\n")) >= 0:
        begin, data = begin + first + 1, data[first + 1 :]
    end = data.rfind(b"\n") + 1
    if end and begin + len(data) < size:  # more is there: do not tear a line
        data = data[:end]
    return LogPage(
        source=source,
        text=data.decode("utf-8", "replace"),
        offset=begin,
        next_offset=begin + len(data),
        size=size,
    )


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0
