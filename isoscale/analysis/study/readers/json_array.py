"""The objects of a JSON array, one after another, without holding the array: files of gigabytes are read in pieces."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from isoscale.analysis.study.reading import Reading
from isoscale.protocol.files import open_regular

__all__ = ["objects"]

# A whole string, a brace, or the beginning of a string whose end is not there yet.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]|"', re.DOTALL)
_PIECE = 1 << 22
#: no job is as long as this; what is has lost its closing brace
_MAX_OBJECT = 1 << 26
_QUOTE, _OPEN = ord('"'), ord("{")


def objects(path: Path, reading: Reading) -> Iterator[tuple[int, bytes]]:
    """(line that it begins in, text) of every object of the outermost level. Raises OSError."""
    buffer, scanned, begin, depth, line, counted = b"", 0, 0, 0, 1, 0
    with open_regular(path) as file:
        size = max(1, os.fstat(file.fileno()).st_size)
        done = 0
        while piece := file.read(_PIECE):
            done += len(piece)
            buffer += piece
            for match in _TOKEN.finditer(buffer, scanned):
                start, end = match.span()
                letter = buffer[start]
                if letter == _QUOTE:
                    if end - start == 1:  # goes on in the next piece
                        scanned = start
                        break
                elif letter == _OPEN:
                    if depth == 0:
                        begin = start
                    depth += 1
                elif depth == 0:
                    line += buffer.count(b"\n", counted, start)
                    counted = start
                    reading.bad(path, line, "}", "", "closes nothing")
                else:
                    depth -= 1
                    if depth == 0:
                        line += buffer.count(b"\n", counted, begin)
                        counted = begin
                        yield line, buffer[begin:end]
                scanned = end
            kept = begin if depth else scanned
            line += buffer.count(b"\n", counted, kept)
            buffer, scanned, begin, counted = buffer[kept:], scanned - kept, 0, 0
            if len(buffer) > _MAX_OBJECT:
                reading.bad(path, line, "{", "", "is not closed within 64 MB")
                buffer, scanned, depth = b"", 0, 0
            reading.progress(path, done, size)
    if depth:
        reading.bad(path, line, "{", "", "is not closed before the end of the file")
