"""Rows of CSV files, read leniently: a line that cannot be used is told to the account and left out."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from isoscale.analysis.study.readers.times import seconds
from isoscale.analysis.study.reading import Reading
from isoscale.errors import UserError
from isoscale.sim.traces.record import Row, open_text

__all__ = ["rows", "time_of"]

_REPORT_EVERY = 20_000


def rows(path: Path, reading: Reading, required: Sequence[str], header: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a table whose first line names the columns, or of one without such a line, with `header`.

    Raises UserError if a required column is not there: then no line can be used.
    """
    with open_text(path) as file:
        size = max(1, os.fstat(file.fileno()).st_size)
        reader = csv.reader(file)
        names = [name.strip() for name in header or next(_lines(path, reader, reading), [])]
        missing = [name for name in required if name not in names]
        if missing:
            raise UserError(
                field=f"{path}:1 header",
                value=",".join(names)[:80] or "(empty)",
                problem=f"has no column {', '.join(missing)}",
                remedy="give the file as it was published",
            )
        needed = max((names.index(name) for name in required), default=0)
        number = 0
        for values in _lines(path, reader, reading):
            if not values:
                continue
            number += 1
            if number % _REPORT_EVERY == 0:
                reading.progress(path, os.lseek(file.fileno(), 0, os.SEEK_CUR), size)
            if len(values) <= needed:
                reading.bad(
                    path, reader.line_num, names[len(values)], "", f"the line has {len(values)} of {len(names)} fields"
                )
                continue
            yield Row(path, reader.line_num, dict(zip(names, values, strict=False)))
        reading.read(path, number)
        reading.progress(path, size, size)


def time_of(row: Row, column: str) -> float:
    """Seconds of the wall clock; NaN for nothing. Raises UserError."""
    text = row.text(column, "")
    try:
        return seconds(text)
    except ValueError:
        raise row.bad(column, text, "is not a time", "give YYYY-MM-DD HH:MM:SS") from None


def _lines(path: Path, reader: csv._reader, reading: Reading) -> Iterator[list[str]]:  # type: ignore[name-defined]
    while True:
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # a field of megabytes, a NUL
            reading.read(path)
            reading.bad(path, reader.line_num, "line", "", str(error))
            continue
        yield values
