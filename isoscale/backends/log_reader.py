"""What a process has written into its log since the last look, as far as it is worth showing."""

from __future__ import annotations

import time
from pathlib import Path

from isoscale.backends.lines import Cut, Excerpt

__all__ = ["NewLines"]

_PIECE_BYTES = 2**20


class NewLines:
    def __init__(self, log: Path) -> None:
        self._log = log
        self._at = 0
        self._excerpt = Excerpt()

    def read(self) -> list[str]:
        """A bounded piece at a time."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._at)
                data = file.read(_PIECE_BYTES)
        except OSError:
            return []
        self._at += len(data)
        shown = self._excerpt.add(data, time.monotonic())
        return [f"... {one.lines:,} lines are in {self._log}" if isinstance(one, Cut) else one for one in shown]
