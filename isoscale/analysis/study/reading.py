"""The account of what was read: lines, malformed ones with file, line and field, and progress; strict or lenient.

A reader tells every line that it cannot use. Strict reading stops there; lenient reading counts on and keeps the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from isoscale.errors import UserError, shortened

__all__ = ["Account", "Malformed", "Reading"]

#: malformed lines that are shown; all are counted
_SHOWN = 10
_MAX_VALUE = 60

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """One line that could not be used."""

    file: str
    line: int
    field: str
    value: str
    problem: str

    def __str__(self) -> str:
        shown = f"={self.value}" if self.value else ""
        return f"{self.file}:{self.line} {self.field}{shown}: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What came of reading: lines and malformed lines by file, and the first of these."""

    lines: dict[str, int]
    malformed: dict[str, int]
    first: tuple[Malformed, ...]
    #: what was read and left aside on purpose: reason -> number
    left_out: dict[str, int]

    @property
    def num_malformed(self) -> int:
        return sum(self.malformed.values())

    def as_json(self) -> dict[str, object]:
        first = [
            {"file": m.file, "line": m.line, "field": m.field, "value": m.value, "problem": m.problem}
            for m in self.first
        ]
        return {
            "lines": self.lines,
            "malformed": self.num_malformed,
            "malformed_by_file": self.malformed,
            "first_malformed": first,
            "left_out": self.left_out,
        }


@dataclass(slots=True)
class Reading:
    """Handed to a reader, which tells it of lines; gives the account at the end."""

    strict: bool = False
    #: only jobs submitted, and samples taken, in this window; seconds of the wall clock
    begin_s: float = -math.inf
    end_s: float = math.inf
    #: (file, bytes read, bytes in all), now and then
    on_progress: Progress | None = None
    _lines: dict[str, int] = field(default_factory=dict)
    _malformed: dict[str, int] = field(default_factory=dict)
    _first: list[Malformed] = field(default_factory=list)
    _left_out: dict[str, int] = field(default_factory=dict)

    def read(self, path: Path, lines: int = 1) -> None:
        self._lines[path.name] = self._lines.get(path.name, 0) + lines

    def bad(self, path: Path, line: int, field: str, value: object, problem: str) -> None:
        """Counts a line that cannot be used. Raises UserError if reading is strict."""
        text, field = shortened(_one_line(str(value)), _MAX_VALUE), shortened(_one_line(field), _MAX_VALUE)
        if self.strict:
            raise UserError(
                field=f"{path}:{line} {field}",
                value=value,
                problem=problem,
                remedy="mend the line, or leave --strict out",
            )
        self._malformed[path.name] = self._malformed.get(path.name, 0) + 1
        if len(self._first) < _SHOWN:
            self._first.append(Malformed(file=path.name, line=line, field=field, value=text, problem=problem))

    def bad_row(self, path: Path, error: UserError) -> None:
        """As `bad`, from the error of a table's row, whose field is `FILE:LINE COLUMN`."""
        where, _, column = error.field.rpartition(" ")
        line = where.rpartition(":")[2]
        self.bad(path, int(line) if line.isdecimal() else 0, column, error.value, error.problem)

    @property
    def windowed(self) -> bool:
        return self.begin_s > -math.inf or self.end_s < math.inf

    def wants(self, submit_s: float) -> bool:
        """Whether a job submitted then is in the window; one that is not is counted."""
        if not self.windowed or self.begin_s <= submit_s < self.end_s:
            return True
        self.leave_out("jobs submitted outside the window")
        return False

    def leave_out(self, reason: str, number: int = 1) -> None:
        if number:
            self._left_out[reason] = self._left_out.get(reason, 0) + number

    def progress(self, path: Path, done: int, total: int) -> None:
        if self.on_progress is not None:
            self.on_progress(path.name, done, total)

    def account(self) -> Account:
        return Account(
            lines=dict(self._lines),
            malformed=dict(self._malformed),
            first=tuple(self._first),
            left_out=dict(self._left_out),
        )


def _one_line(text: str) -> str:
    """What is shown of a file is neither a second line nor a command to a terminal."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)
