"""Large CSV files of times, names and numbers, parsed by the block: hundreds of millions of numbers in minutes.

A block of whole lines is an array of bytes. Commas and line ends are found all at once, fields are parsed digit by
digit for all lines together. Lines that do not look as usual (other numbers of fields, signs, exponents, blanks,
mistakes) are handed back by number, to be read one by one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.sketch import SCALE
from isoscale.errors import UserError
from isoscale.protocol.files import open_regular

__all__ = ["MISSING", "Block", "Fields", "blocks"]

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_BYTES = 1 << 23
_MAX_LINE = 1 << 20
#: characters of a number; longer ones are read one by one
_MAX_DIGITS = 24
_DECIMALS = 3
_NEWLINE, _COMMA, _RETURN, _ZERO, _DOT = (ord(letter) for letter in "\n,\r0.")
#: a number that is not there: NA, or nothing
MISSING = -1
#: where the digits of `YYYY-MM-DD HH:MM:SS` stand, and what stands between them
_DIGITS = np.array([0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18])
_BETWEEN = ((4, ord("-")), (7, ord("-")), (10, ord(" ")), (13, ord(":")), (16, ord(":")))


@dataclass(frozen=True, slots=True)
class Fields:
    """Where the fields of usual lines are: one row per line, one column per field; and the lines themselves."""

    starts: Ints
    ends: Ints
    #: number of each line in the block
    lines: Ints


class Block:
    """Whole lines of a file; `first_line` is the number of its first one, from 1."""

    def __init__(self, data: bytes, first_line: int) -> None:
        self._text = data
        self.data: Bytes = np.frombuffer(data, dtype=np.uint8)
        self.first_line = first_line
        ends = np.flatnonzero(self.data == _NEWLINE)
        if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
            ends = np.append(ends, len(data))
        self._ends: Ints = ends.astype(np.int64)
        self._starts: Ints = np.concatenate([np.zeros(1, dtype=np.int64), self._ends[:-1] + 1])[: len(ends)]

    def __len__(self) -> int:
        return len(self._ends)

    def text(self, line: int) -> str:
        """One line, as it stands."""
        return self._text[self._starts[line] : self._ends[line]].decode(errors="replace").rstrip("\r")

    def fields(self, count: int) -> tuple[Fields, Ints]:
        """Lines of `count` fields, with or without a comma behind the last; and the numbers of all other lines."""
        ends = self._ends - ((self._ends > self._starts) & (self.data[self._ends - 1] == _RETURN))
        commas = np.flatnonzero(self.data == _COMMA)
        first = np.searchsorted(commas, self._starts)
        number = np.searchsorted(commas, self._ends) - first
        trailing = (ends > self._starts) & (self.data[ends - 1] == _COMMA)
        usual = np.flatnonzero((number - trailing) == count - 1)
        odd = np.flatnonzero(((number - trailing) != count - 1) & (ends > self._starts))
        inner = commas[first[usual][:, None] + np.arange(count - 1)] if len(usual) else np.zeros((0, count - 1), int)
        starts = np.concatenate([self._starts[usual][:, None], inner + 1], axis=1)
        last = (ends - trailing)[usual][:, None]
        return Fields(starts, np.concatenate([inner, last], axis=1), usual), odd

    def numbers(self, starts: Ints, ends: Ints) -> tuple[Ints, Flags]:
        """Thousandths of plain decimal numbers, MISSING for NA and nothing; and where that is what they are.

        Digits beyond the third decimal are dropped.
        """
        length = ends - starts
        value = np.zeros(starts.shape, dtype=np.int64)
        decimals = np.full(starts.shape, -1, dtype=np.int8)
        good = length <= _MAX_DIGITS
        digits = np.zeros(starts.shape, dtype=np.int8)
        for place in range(int(min(length.max(initial=0), _MAX_DIGITS))):
            here = place < length
            letter = self.data[np.where(here, starts + place, 0)]
            digit = letter - np.uint8(_ZERO)  # wraps around below "0"
            is_digit = here & (digit < 10)
            is_dot = here & (letter == _DOT) & (decimals < 0)
            good &= is_digit | is_dot | ~here
            counts = is_digit & (decimals < _DECIMALS)
            value = np.where(counts, value * 10 + digit, value)
            digits += is_digit & (digits < 100)
            decimals = np.where(is_dot, np.int8(0), np.where(counts & (decimals >= 0), decimals + np.int8(1), decimals))
        value *= _POWERS[_DECIMALS - np.maximum(decimals, 0)]
        # More than 15 digits do not fit.
        good &= (digits > 0) & (digits <= 15)
        nothing = length == 0
        two = length == 2
        if two.any():
            at = np.where(two, starts, 0)
            nothing |= two & (self.data[at] == ord("N")) & (self.data[at + 1] == ord("A"))
        return np.where(nothing, MISSING, value), good | nothing

    def times(self, starts: Ints, ends: Ints) -> tuple[Ints, Flags]:
        """Seconds since 1970 of `YYYY-MM-DD HH:MM:SS`, whatever zone stands behind it; and where it is one."""
        length = ends - starts
        good = (length >= 19) & (length <= 26)
        letters = self.data[np.where(good, starts, 0)[:, None] + np.minimum(np.arange(19), len(self.data) - 1)]
        for place, between in _BETWEEN:
            good &= letters[:, place] == between
        good &= (length == 19) | (self.data[np.where(length > 19, starts + 19, 0)] == ord(" "))
        digits = letters[:, _DIGITS] - np.uint8(_ZERO)
        good &= (digits < 10).all(axis=1)
        number = digits.astype(np.int64)
        year = ((number[:, 0] * 10 + number[:, 1]) * 10 + number[:, 2]) * 10 + number[:, 3]
        month, day, hour, minute, second = (number[:, i] * 10 + number[:, i + 1] for i in range(4, 14, 2))
        good &= (year >= 1970) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
        good &= (hour < 24) & (minute < 60) & (second < 60)
        month = np.where(good, month, 1)
        days = _days(np.where(good, year, 1970), month, day)
        good &= day <= _MONTH_DAYS[month - 1] + ((month == 2) & _is_leap(year))
        return ((days * 24 + hour) * 60 + minute) * 60 + second, good

    def words(self, starts: Ints, ends: Ints) -> tuple[list[str], Ints]:
        """The different texts of a column, and which of them each line has."""
        length = ends - starts
        width = int(length.max(initial=0))
        if not width:
            return [""], np.zeros(len(starts), dtype=np.int64)
        places = np.arange(width)
        inside = places < length[:, None]
        letters = np.where(inside, self.data[np.minimum(starts[:, None] + places, len(self.data) - 1)], 0)
        texts, which = np.unique(np.ascontiguousarray(letters).view(f"S{width}").ravel(), return_inverse=True)
        return [text.decode(errors="replace").strip() for text in texts.tolist()], which.astype(np.int64)


def blocks(path: Path, reading: Reading) -> Iterator[Block]:
    """The file in blocks of whole lines. Raises UserError."""
    try:
        with open_regular(path) as file:
            size = max(1, os.fstat(file.fileno()).st_size)
            rest, line, done = b"", 1, 0
            while data := file.read(_BYTES):
                done += len(data)
                cut = data.rfind(b"\n") + 1
                if not cut:
                    rest += data
                    if len(rest) > 2 * _BYTES + _MAX_LINE:
                        raise UserError(
                            field=f"{path}:{line}",
                            value="",
                            problem="a line of more than 16 MB",
                            remedy="give a file of lines",
                        )
                    continue
                block = Block(rest + data[:cut], line)
                rest = data[cut:]
                line += len(block)
                yield block
                reading.progress(path, done, size)
            if rest:
                yield Block(rest, line)
            reading.progress(path, size, size)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise UserError(field="TRACE", value=path, problem=problem, remedy="give the path of a trace") from None


_POWERS = 10 ** np.arange(_DECIMALS + 1)
_MONTH_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_BEFORE = np.concatenate([[0], np.cumsum(_MONTH_DAYS)[:-1]])
assert SCALE == 10**_DECIMALS


def _is_leap(year: Ints) -> Flags:
    leap: Flags = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    return leap


def _days(year: Ints, month: Ints, day: Ints) -> Ints:
    """Days since 1970-01-01, by the Gregorian calendar."""
    past = year - 1
    leaps = past // 4 - past // 100 + past // 400 - (1969 // 4 - 1969 // 100 + 1969 // 400)
    days: Ints = (year - 1970) * 365 + leaps + _BEFORE[month - 1] + ((month > 2) & _is_leap(year)) + day - 1
    return days
