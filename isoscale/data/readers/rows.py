"""Rows of CSV files as dicts, with the names of the file's first row.

A partition is a file, or the rows that begin in a range of its bytes; the latter only where no quoted value holds a
newline, which a reader that enters in the middle could not tell from a row's end. Positions are byte offsets.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import IO

from isoscale.data.readers.files import Paths, Span, find_files, identity_of, open_file, spans
from isoscale.errors import UserError

__all__ = ["CsvReader", "CsvRows", "csv_rows"]

_CHUNK_ROWS = 256


def csv_rows(
    paths: Paths, *, partition_bytes: int | None = None, delimiter: str = ",", encoding: str = "utf-8"
) -> CsvRows:
    """Every row of CSV files as a dict of strings. The first row of each file names the columns.

    With `partition_bytes` no value may contain a newline; a row that is cut by one is refused where it shows.
    """
    files = find_files(paths, "csv_rows")
    return CsvRows(spans(files, partition_bytes, "csv_rows"), delimiter, encoding)


class CsvRows:
    def __init__(self, partitions: Sequence[Span], delimiter: str, encoding: str) -> None:
        self._partitions = partitions
        self._delimiter, self._encoding = delimiter, encoding
        self.num_partitions = len(partitions)
        self.identity = identity_of("csv rows", partitions, (delimiter, encoding))

    def open(self, partition: int, position: int | None) -> CsvReader:
        return CsvReader(self._partitions[partition], position, self._delimiter, self._encoding)

    def label(self, partition: int) -> str:
        return self._partitions[partition].label

    def decode(self, stored: list[dict[str, str]]) -> Sequence[dict[str, str]]:
        return stored


class CsvReader:
    def __init__(self, span: Span, position: int | None, delimiter: str, encoding: str) -> None:
        self._span, self._encoding = span, encoding
        self._file: IO[bytes] = open_file(span.file)
        self.position = 0
        self._rows = csv.reader(self._lines(), delimiter=delimiter)
        self._names = next(self._rows, [])
        if position is not None:
            self.position = position
            self._file.seek(position)
        elif span.start >= self.position:
            # As with lines: what begins before the span is the neighbour's.
            self._file.seek(span.start - 1)
            self.position = span.start - 1 + len(self._file.readline())
        self._rows = csv.reader(self._lines(), delimiter=delimiter)

    def _lines(self) -> Iterator[str]:
        """The csv module asks for a line only when it needs one: the position is always right behind the last row."""
        while line := self._file.readline():
            self.position += len(line)
            yield line.decode(self._encoding)

    def read(self) -> tuple[int, list[dict[str, str]]]:
        before, stop = self.position, self._span.stop
        rows: list[list[str]] = []
        if stop is None:
            rows = list(islice(self._rows, _CHUNK_ROWS))
        else:
            while self.position < stop and len(rows) < _CHUNK_ROWS:
                row = next(self._rows, None)
                if row is None:
                    break
                rows.append(row)
        names, out = self._names, []
        for row in rows:
            if row and len(row) != len(names):
                raise UserError(
                    field="csv_rows",
                    value=self._span.label,
                    problem=f"a row before byte {self.position} has {len(row)} values, not {len(names)}",
                    remedy="mend the file; if values hold newlines, leave partition_bytes out",
                )
            if row:
                out.append(dict(zip(names, row, strict=True)))
        # Blank rows alone are not the end.
        return (before, out) if out or not rows else self.read()

    def close(self) -> None:
        self._file.close()
