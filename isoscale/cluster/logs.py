"""What a job's executors printed, page by page: by job and executor, never by a path.

A page is bytes from an offset on, cut at a line's end, so a job that prints 200,000 lines costs a reader what it reads.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from isoscale.protocol.files import open_regular

__all__ = ["MAX_PAGE", "LogFile", "LogMatch", "LogMatches", "LogPage", "log_files", "log_page", "search_log"]

MAX_PAGE = 256 * 1024
#: that one search looks through, a piece at a time; of a line, that is shown
_SEARCH_BYTES, _PIECE, _LINE_BYTES = 8 * 2**20, 2**18, 2_000
_LOG = re.compile(r"executor-([0-9]{1,9})\.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    #: "coordinator", or an executor's number
    source: str
    size: int
    #: when something was last printed, unix seconds; 0: never
    changed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    source: str
    text: str
    #: where the text begins, and where the next page does
    offset: int
    next_offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMatch:
    #: where its line begins
    offset: int
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMatches:
    """The newest first."""

    source: str
    matches: tuple[LogMatch, ...]
    #: search on in front of this byte; None: the beginning is reached
    next_before: int | None
    searched_bytes: int
    size: int


def log_files(directory: Path) -> list[LogFile]:
    """The coordinator's, then those of executors by number."""
    found = [_log_file("coordinator", directory / "coordinator.log")]
    with contextlib.suppress(OSError):
        numbers = sorted(int(match[1]) for name in os.listdir(directory / "logs") if (match := _LOG.fullmatch(name)))
        found += [_log_file(str(n), directory / "logs" / f"executor-{n}.log") for n in numbers]
    return found


def log_page(directory: Path, source: str, offset: int, limit: int = MAX_PAGE) -> LogPage:
    """From `offset` on, at most `limit` bytes; a negative offset counts from the end, and begins with a whole line."""
    path, size = _known(directory, source)
    begin = max(0, size + offset) if offset < 0 else min(offset, size)
    data = b""
    if path is not None:
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


def search_log(directory: Path, source: str, text: str, *, before: int = -1, limit: int = 100) -> LogMatches:
    """Lines with `text`, in whatever case, that begin in front of byte `before` (-1: the end), the newest first."""
    path, size = _known(directory, source)
    end = begin = size if before < 0 else min(before, size)
    wanted = text.encode("utf-8", "replace").lower()
    found: list[LogMatch] = []
    if path is not None and wanted:
        with contextlib.suppress(OSError), open_regular(path) as file:
            while begin > 0 and len(found) < limit and end - begin < _SEARCH_BYTES:
                begin = _search_piece(file, begin, wanted, found)
    del found[limit:]
    if len(found) == limit:
        begin = found[-1].offset
    return LogMatches(
        source=source,
        matches=tuple(found),
        next_before=begin if begin > 0 and path is not None and wanted else None,
        searched_bytes=end - begin,
        size=size,
    )


def _search_piece(file: IO[bytes], end: int, wanted: bytes, found: list[LogMatch]) -> int:
    """Whole lines in front of `end`; returns where they begin."""
    begin = max(0, end - _PIECE)
    file.seek(begin)
    data = file.read(end - begin)
    if begin and (first := data.find(b"\n")) >= 0:
        # The line that is torn here belongs to the next piece; one longer than a piece is searched in parts.
        begin, data = begin + first + 1, data[first + 1 :]
    if not data:
        return max(0, end - _PIECE)
    lowered, at = data.lower(), len(data)
    while (hit := lowered.rfind(wanted, 0, at)) >= 0:
        start = data.rfind(b"\n", 0, hit) + 1
        stop = data.find(b"\n", hit)
        line = data[start : len(data) if stop < 0 else stop][:_LINE_BYTES]
        found.append(LogMatch(offset=begin + start, line=line.decode("utf-8", "replace")))
        at = start
    return begin


def _known(directory: Path, source: str) -> tuple[Path | None, int]:
    """The file of a log that there is, and its size: a source is looked up, never made into a path."""
    known = {one.source: one.size for one in log_files(directory)}
    if source not in known:
        return None, 0
    name = "coordinator.log" if source == "coordinator" else f"logs/executor-{int(source)}.log"
    return directory / name, known[source]


def _log_file(source: str, path: Path) -> LogFile:
    with contextlib.suppress(OSError):
        found = path.stat()
        return LogFile(source=source, size=found.st_size, changed_s=found.st_mtime if found.st_size else 0.0)
    return LogFile(source=source, size=0)
