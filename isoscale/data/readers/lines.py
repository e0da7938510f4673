"""Lines of text and of JSON, read some hundred kilobytes at a time.

A partition is a file, or the lines that begin in a range of its bytes. A line ends with a newline; the last one need
not. Positions are byte offsets. Encodings must write a newline as one byte, as UTF-8 and its kind do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        return LineReader(self._partitions[partition], position, self._split)

    def label(self, partition: int) -> str:
        return self._partitions[partition].label

    def decode(self, stored: list[str]) -> Sequence[str]:
        return stored

    def _split(self, block: bytes) -> list[str]:
        text = block.decode(self._encoding)
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        return lines if "\r" not in text else [line.removesuffix("\r") for line in lines]


class JsonLines:
    def __init__(self, partitions: Sequence[Span]) -> None:
        self._partitions = partitions
        self._decode = msgspec.json.Decoder().decode
        self.num_partitions = len(partitions)
        self.identity = identity_of("json lines", partitions)

    def open(self, partition: int, position: int | None) -> LineReader:
        return LineReader(self._partitions[partition], position, _split_filled)

    def label(self, partition: int) -> str:
        return self._partitions[partition].label

    def decode(self, stored: list[bytes]) -> Sequence[object]:
        return list(map(self._decode, stored))


class LineReader:
    """Lines that begin in a span: blocks of whole lines, cut by `split`, which is much faster than line by line."""

    def __init__(self, span: Span, position: int | None, split: Callable[[bytes], list[Any]]) -> None:
        self._stop = span.stop
        self._split = split
        self._file: IO[bytes] = open_file(span.file)
        self.position = span.start if position is None else position
        if position is None and span.start:
            # A line that begins before the span is the neighbour's; one that ends right before it is not in the way.
            self._file.seek(span.start - 1)
            self.position += len(self._file.readline()) - 1
        elif self.position:
            self._file.seek(self.position)

    def read(self) -> tuple[int, list[Any]]:
        before = self.position
        while block := self._block():
            self.position += len(block)
            if lines := self._split(block):
                return before, lines
        return before, []

    def close(self) -> None:
        self._file.close()

    def _block(self) -> bytes:
        room = _CHUNK_BYTES if self._stop is None else min(_CHUNK_BYTES, self._stop - self.position)
        block = self._file.read(room) if room > 0 else b""
        return block if not block or block.endswith(b"\n") else block + self._file.readline()


def _split_filled(block: bytes) -> list[bytes]:
    return [line for line in block.split(b"\n") if line and not line.isspace()]
