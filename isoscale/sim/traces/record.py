"""What a trace says about a job, and reading tables so that a mistake is found by file, line and field.

A `TraceJob` is a record of the past: who asked for what, when, and how long it ran or how much it computed. How fast
the job would have been elsewhere is not in it; a world (`isoscale.sim.worlds`) adds that.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from isoscale import limits
from isoscale.errors import UserError

__all__ = ["OnBad", "Row", "TraceJob", "bad", "jobs_of_table", "numbers", "open_text", "table"]

#: is told of a line that cannot be used, which is then left out; without it such a line ends the reading
OnBad = Callable[[UserError], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job of a trace. Of `duration_s` and `steps` at least one is known."""

    name: str
    #: seconds since the trace's own zero
    submit_s: float
    #: devices that its owner asked for
    devices: int
    #: seconds that it ran, or would run, on `devices` devices of `kind`
    duration_s: float | None = None
    #: global steps in all
    steps: float | None = None
    #: logical workers N; 0: as many as `devices`
    workers: int = 0
    #: fewest and most devices that an elastic scheduler may give; 0: 1 and N
    min_devices: int = 0
    max_devices: int = 0
    #: name of the model, key into a world's tables; "" unknown
    application: str = ""
    #: global batch in samples; 0 unknown
    batch: int = 0
    #: the kind that was asked for, "" any; and all kinds that it may run on, () any
    kind: str = ""
    kinds: tuple[str, ...] = ()
    #: seconds of one logical worker's turn by kind, where the trace knows
    turn_s: dict[str, float] = field(default_factory=dict)
    tenant: str = ""
    priority: int = 0
    #: seconds since zero by which it should be done; None if it does not matter
    deadline_s: float | None = None
    #: how it ended in the trace: "", "passed", "killed" or "failed"
    status: str = ""
    #: trials that fail, in order: (share of its work that is done by then, class of the error)
    failures: tuple[tuple[float, str], ...] = ()

    @property
    def num_logical_workers(self) -> int:
        return self.workers or self.devices


class Row:
    """One line of a table: values by column, each checked when it is asked for."""

    __slots__ = ("_values", "line", "path")

    def __init__(self, path: Path, line: int, values: dict[str, str]) -> None:
        self.path = path
        self.line = line
        self._values = values

    def has(self, column: str) -> bool:
        return column in self._values

    def text(self, column: str, default: str | None = None) -> str:
        value = self._values.get(column, "").strip()
        if value:
            return value
        if default is None:
            raise self.bad(column, value, "is empty", "give a value")
        return default

    def number(
        self, column: str, default: float | None = None, *, least: float = 0.0, most: float = limits.MAX_NUMBER
    ) -> float:
        """A finite number of at least `least`; an empty field is `default`, if there is one."""
        value = self._values.get(column, "").strip()
        if not value and default is not None:
            return default
        return limits.decimal(value, f"{self.path}:{self.line} {column}", limits.Range(least, most))

    def count(
        self, column: str, default: int | None = None, *, least: int = 1, most: float = limits.CLUSTER_DEVICES.most
    ) -> int:
        """A whole number of at least `least`, by default of devices; `8.0` counts as whole."""
        least = min(least, default) if default is not None else least
        number = self.number(column, default, least=least, most=most)
        if number != int(number):
            raise self.bad(column, self._values[column], "is not a whole number", f"give {least} or more")
        return int(number)

    def bad(self, column: str, value: object, problem: str, remedy: str) -> UserError:
        return bad(self.path, self.line, column, value, problem, remedy)


def bad(path: Path, line: int, column: str, value: object, problem: str, remedy: str) -> UserError:
    """The error about one field of a file: `trace.csv:7 num_gpu=x: is not a number; ...`."""
    return UserError(field=f"{path}:{line} {column}", value=value, problem=problem, remedy=remedy)


def jobs_of_table(
    path: Path, required: Sequence[str], job_of: Callable[[Row], TraceJob], on_bad: OnBad | None = None
) -> Iterator[TraceJob]:
    """One job for each row of a table."""
    for row in table(path, required, on_bad=on_bad):
        try:
            job = job_of(row)
        except UserError as error:
            if on_bad is None:
                raise
            on_bad(error)
            continue
        yield job


def table(path: Path, required: Sequence[str], *, delimiter: str = ",", on_bad: OnBad | None = None) -> Iterator[Row]:
    """The rows of a CSV file with a header; lines that begin with # and empty lines are comments."""
    with open_text(path) as file:
        lines = ((number, line) for number, line in enumerate(file, 1) if line.strip() and not line.startswith("#"))
        numbers: list[int] = []

        def data() -> Iterator[str]:
            for number, line in lines:
                numbers[:] = [number]
                yield line

        reader = _lines(path, numbers, csv.reader(data(), delimiter=delimiter), on_bad)
        header = [name.strip() for name in next(reader, [])]
        missing = [name for name in required if name not in header]
        if missing:
            raise bad(
                path,
                numbers[0] if numbers else 1,
                "header",
                delimiter.join(header) or "(empty)",
                f"has no column {', '.join(missing)}",
                "give a header line with it",
            )
        for values in reader:
            if len(values) < len(header) and any(name in required for name in header[len(values) :]):
                column = next(name for name in header[len(values) :] if name in required)
                short = bad(path, numbers[0], column, "", "the line is too short", f"give {len(header)} fields")
                if on_bad is None:
                    raise short
                on_bad(short)
                continue
            yield Row(path, numbers[0], dict(zip(header, values, strict=False)))


def _lines(
    path: Path, numbers: Sequence[int], reader: Iterator[list[str]], on_bad: OnBad | None
) -> Iterator[list[str]]:
    while True:
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # a field of megabytes, a NUL
            broken = bad(path, numbers[0] if numbers else 1, "line", "", str(error), "give a line of fields")
            if on_bad is None:
                raise broken from None
            on_bad(broken)
            continue
        yield values


def numbers(path: Path, columns: Sequence[str], *, most: float = limits.MAX_NUMBER) -> list[list[float]]:
    """The columns of a CSV file of nothing but numbers from 0 to `most`, fast; as careful as `table` if something is
    wrong with it."""
    with open_text(path) as file:
        header, *lines = file.read().splitlines() or [""]
    names = [name.strip() for name in header.split(",")]
    try:
        places = [names.index(column) for column in columns]
        rows = [[float(values[place]) for place in places] for values in (line.split(",") for line in lines if line)]
        if all(0 <= value <= most for row in rows for value in row):
            return rows
    except (ValueError, IndexError):
        pass
    return [[row.number(column, most=most) for column in columns] for row in table(path, columns)]


def open_text(path: Path) -> TextIO:
    """The file opened for reading; what cannot be opened is the user's error."""
    try:
        # Bytes that are no text become a character that is in no number and no name.
        return path.open(encoding="utf-8", errors="replace", newline="")
    except OSError as error:
        raise UserError(
            field="--trace",
            value=path,
            problem=f"cannot be read ({error.strerror})",
            remedy="give the path of a trace",
        ) from None
