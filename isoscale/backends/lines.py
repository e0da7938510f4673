"""What a process wrote, as lines that a terminal can take: which of them are shown, cleaned and cut. Pure.

All that was written is in a file already. Of a flood the beginning and the end are shown, and how many lines lie
between. Bytes in, lines out; reads nothing, prints nothing, and takes time in the bytes, not in the lines, that come.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

__all__ = ["MAX_SHOWN", "Cut", "Excerpt", "clean"]

#: characters of a line that are shown
MAX_SHOWN = 2_000
#: bytes kept of a line whose end has not come
_MAX_KEPT = 4 * MAX_SHOWN
#: lines that may come at once, and how many a second may follow for ever
_BURST, _PER_S = 400, 100
#: lines that are shown of the end of a flood; it is over when a look finds fewer new ones than this
_TAIL = 20
#: a flood that goes on is told of so often
_TELL_EVERY_S = 5.0

# Sequences that move the cursor, colour, or set a title; then whatever else is a control character.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")


def clean(line: bytes, length: int | None = None) -> str:
    """One line, for people: no control characters, of a line that was written over and over the last form.

    `length` is that of the whole line in bytes, if this is its beginning.

    >>> clean(b"10%\\r\\x1b[31m100%\\x1b[0m"), clean(b"caf\\xe9")
    ('100%', 'caf\\ufffd')
    """
    last = line.rstrip(b"\r").rpartition(b"\r")[2]
    shown = _CONTROLS.sub("", _ESCAPES.sub("", last[:_MAX_KEPT].decode(errors="replace")))
    if len(shown) <= MAX_SHOWN and len(last) < _MAX_KEPT:
        return shown
    return f"{shown[:MAX_SHOWN]} ... (a line of {len(line) if length is None else length:,} bytes)"


@dataclass(frozen=True, slots=True)
class Cut:
    """So many lines are not shown."""

    lines: int


class Excerpt:
    """Of what one process writes. `add` for whatever it wrote since the last look, however little."""

    def __init__(self) -> None:
        self._budget = float(_BURST)
        self._at: float | None = None
        #: a line whose end has not come: its beginning, and its length so far
        self._open = b""
        self._open_length = 0
        #: lines that were not shown since a flood began, the last of them, and when it was last told of
        self._hidden = 0
        self._last: deque[str] = deque(maxlen=_TAIL)
        self._told_at = 0.0

    def add(self, data: bytes, now: float) -> list[str | Cut]:
        """What to show of it, in order."""
        since = 0.0 if self._at is None else now - self._at
        self._budget, self._at = min(_BURST, self._budget + _PER_S * since), now
        flooded = bool(self._hidden)
        first, *others = data.split(b"\n")
        self._extend_open(first)
        shown: list[str | Cut] = []
        if others:
            shown += self._whole_lines(others[:-1])
            self._extend_open(others[-1])
        if flooded and (len(others) <= _TAIL or now - self._told_at >= _TELL_EVERY_S):
            shown += self._tell(now)
        elif self._hidden and not flooded:
            self._told_at = now
        return shown

    def refused(self, lines: int) -> None:
        """The last so many lines that were to be shown could not be: the terminal takes no more at the moment."""
        self._hidden += lines

    def finish(self) -> list[str | Cut]:
        """The rest, a last line without an end included: nothing more will come."""
        shown = self._tell(0.0)
        if self._open_length:
            shown.append(self._close_open())
        return shown

    def _whole_lines(self, others: list[bytes]) -> list[str]:
        """The open line has ended and these came after it. Those to be shown; the rest is counted, its end kept."""
        count = 1 + len(others)
        room = 0 if self._hidden else min(count, int(self._budget))
        self._budget -= room
        head = self._close_open()
        hidden = count - room
        self._hidden += hidden
        kept = min(hidden, _TAIL)
        if kept:
            self._last.extend(map(clean, others[-kept:]) if kept < count else [head, *map(clean, others)])
        return [head, *map(clean, others[: room - 1])] if room else []

    def _tell(self, now: float) -> list[str | Cut]:
        """Of a flood: how many lines are not shown, and its end."""
        last, cut = list(self._last), self._hidden - len(self._last)
        self._last.clear()
        self._hidden, self._told_at = 0, now
        return [*([Cut(cut)] if cut > 0 else []), *last]

    def _extend_open(self, data: bytes) -> None:
        # Of a line that is written over and over only its last form counts.
        start = data.rstrip(b"\r").rfind(b"\r") + 1
        self._open_length += len(data)
        kept = data[start : start + _MAX_KEPT]
        self._open = kept if start else (self._open + kept)[:_MAX_KEPT]

    def _close_open(self) -> str:
        line = clean(self._open, self._open_length)
        self._open, self._open_length = b"", 0
        return line
