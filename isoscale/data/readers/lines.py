"""Lines of text and of JSON, read some hundred kilobytes at a time.

A partition is a file, or the lines that begin in a range of its bytes. A line ends with a newline; the last one need
not. Positions are byte offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import msgspec

from isoscale.data.readers.files import Paths, Span, find_files, identity_of, open_file, spans

__all__ = ["JsonLines", "LineReader", "TextLines", "json_lines", "text_lines"]

_CHUNK_BYTES = 1 << 16


def text_lines(paths: Paths, *, partition_bytes: int | None = None, encoding: str = "utf-8") -> TextLines:
    """Every line of text files as a str, without its line end. Partitions are files, or ranges of bytes."""
    return TextLines(spans(find_files(paths, "text_lines"), partition_bytes, "text_lines"), encoding)


def json_lines(paths: Paths, *, partition_bytes: int | None = None) -> JsonLines:
    """Every line of JSONL files as the value it holds; blank lines are passed over."""
    return JsonLines(spans(find_files(paths, "json_lines"), partition_bytes, "json_lines"))


class TextLines:
    def __init__(self, partitions: Sequence[Span], encoding: str) -> None:
        self._partitions = partitions
        self._encoding = encoding
        self.num_partitions = len(partitions)
        self.identity = identity_of("text lines", partitions, encoding)

    def open(self, partition: int, position: int | None) -> LineReader:
        return LineReader(self._partitions[partition], position)

    def label(self, partition: int) -> str:
        return self._partitions[partition].label

    def decode(self, stored: list[bytes]) -> Sequence[str]:
        # One call for all lines is several times faster than one for each.
        lines = b"".join(stored).decode(self._encoding).split("\n") if self._encoding == "utf-8" else []
        if len(lines) == len(stored) + 1 and not lines[-1]:
            del lines[-1]
        else:  # the last line of a file, without a newline, is among them
            lines = [line.decode(self._encoding).removesuffix("\n") for line in stored]
        return [line.removesuffix("\r") for line in lines] if any(line.endswith("\r") for line in lines) else lines


class JsonLines:
    def __init__(self, partitions: Sequence[Span]) -> None:
        self._partitions = partitions
        self._decode = msgspec.json.Decoder().decode
        self.num_partitions = len(partitions)
        self.identity = identity_of("json lines", partitions)

    def open(self, partition: int, position: int | None) -> LineReader:
        return LineReader(self._partitions[partition], position, skip_blank=True)

    def label(self, partition: int) -> str:
        return self._partitions[partition].label

    def decode(self, stored: list[bytes]) -> Sequence[Any]:
        return list(map(self._decode, stored))


class LineReader:
    """Lines that begin in a span, as bytes with their line ends."""

    def __init__(self, span: Span, position: int | None, *, skip_blank: bool = False) -> None:
        self._stop = span.stop
        self._skip_blank = skip_blank
        self._file: IO[bytes] = open_file(span.file)
        self.position = span.start if position is None else position
        if position is None and span.start:
            # A line that begins before the span is the neighbour's; one that ends right before it is not in the way.
            self._file.seek(span.start - 1)
            self.position += len(self._file.readline()) - 1
        elif self.position:
            self._file.seek(self.position)

    def read(self) -> tuple[int, list[bytes]]:
        before = self.position
        lines: list[bytes] = []
        while not lines:
            room = _CHUNK_BYTES if self._stop is None else min(_CHUNK_BYTES, self._stop - self.position)
            if room <= 0:
                break
            # readlines() stops once it has more than it was asked for, and takes 0 for "everything".
            lines = self._file.readlines(room - 1) if room > 1 else [self._file.readline()]
            self.position += sum(map(len, lines))
            if not lines or not lines[0]:
                return before, []
            if self._skip_blank:
                lines = [line for line in lines if not line.isspace()]
        return before, lines

    def close(self) -> None:
        self._file.close()
