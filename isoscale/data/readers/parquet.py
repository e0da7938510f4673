"""Rows of Parquet files as dicts, through pyarrow (an optional dependency).

A partition is a row group, the unit that Parquet itself reads, or a file. Positions are row numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import IO, Any, Literal

from isoscale.data.readers.files import File, Paths, find_files, open_file
from isoscale.errors import UserError

__all__ = ["ParquetReader", "ParquetRows", "parquet_rows"]

_CHUNK_ROWS = 256


def parquet_rows(
    paths: Paths, *, partition: Literal["group", "file"] = "group", columns: Sequence[str] | None = None
) -> ParquetRows:
    """Every row of Parquet files as a dict. Partitions are row groups, or whole files."""
    if partition not in ("group", "file"):
        raise UserError(
            field="parquet_rows(partition=...)", value=partition, problem="unknown", remedy="give 'group' or 'file'"
        )
    _pyarrow()
    out: list[tuple[File, list[int]]] = []
    for file in find_files(paths, "parquet_rows"):
        with open_file(file) as opened:
            groups = list(range(_parquet_file(opened).num_row_groups))
        out += [(file, groups)] if partition == "file" else [(file, [group]) for group in groups]
    return ParquetRows(out, None if columns is None else list(columns))


class ParquetRows:
    def __init__(self, partitions: Sequence[tuple[File, list[int]]], columns: list[str] | None) -> None:
        self._partitions, self._columns = partitions, columns
        self.num_partitions = len(partitions)
        text = repr((columns, [(file.name, file.num_bytes, groups) for file, groups in partitions]))
        self.identity = hashlib.sha256(f"parquet {text}".encode()).hexdigest()[:16]

    def open(self, partition: int, position: int | None) -> ParquetReader:
        return ParquetReader(*self._partitions[partition], self._columns, position or 0)

    def label(self, partition: int) -> str:
        file, groups = self._partitions[partition]
        return f"{file.name} row group {groups[0]}" if len(groups) == 1 else file.name

    def decode(self, stored: list[dict[str, object]]) -> Sequence[dict[str, object]]:
        return [dict(row) for row in stored]


class ParquetReader:
    def __init__(self, file: File, groups: list[int], columns: list[str] | None, position: int) -> None:
        self._file = open_file(file)
        self._parquet = _parquet_file(self._file)
        self.position = 0
        # Row groups before the position need not be read at all.
        while groups and self.position + self._size(groups[0]) <= position:
            self.position += self._size(groups[0])
            groups = groups[1:]
        self._skip = position - self.position
        self.position = position
        self._batches: Iterator[Any] = (
            self._parquet.iter_batches(batch_size=_CHUNK_ROWS, row_groups=groups, columns=columns)
            if groups
            else iter(())
        )

    def _size(self, group: int) -> int:
        return int(self._parquet.metadata.row_group(group).num_rows)

    def read(self) -> tuple[int, list[dict[str, object]]]:
        before = self.position
        for batch in self._batches:
            rows: list[dict[str, object]] = batch.slice(min(self._skip, batch.num_rows)).to_pylist()
            self._skip -= batch.num_rows - len(rows)
            if rows:
                self.position += len(rows)
                return before, rows
        return before, []

    def close(self) -> None:
        self._batches = iter(())
        self._parquet.close()
        self._file.close()


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise UserError(
            field="parquet_rows", value="pyarrow", problem="not installed", remedy="pip install pyarrow"
        ) from None
    return pyarrow.parquet


def _parquet_file(opened: IO[bytes]) -> Any:
    return _pyarrow().ParquetFile(opened, pre_buffer=False)
