"""The live line of stock DDP's processes, which `isoscale verify` compares with."""

from __future__ import annotations

import time

from rich.console import Console
from rich.status import Status

__all__ = ["ReferenceProgress"]

_PLAIN_EVERY_S = 5.0


class ReferenceProgress:
    """One line about the reference: redrawn on a terminal, else repeated now and then."""

    def __init__(self, console: Console, num_ranks: int, total: int = 0, label: str = "reference") -> None:
        self._console = console
        self._start = f"[bold]{label}[/]  {num_ranks} stock DDP process{'es' if num_ranks != 1 else ''}"
        self._total = total
        self._line = f"{self._start} ..."
        self._status = Status(self._line, console=console) if console.is_terminal else None
        self._printed_at, self._printed = 0.0, ""

    def __enter__(self) -> ReferenceProgress:
        if self._status is not None:
            self._status.start()
        else:
            self._print()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
        elif self._line != self._printed:
            self._print()

    def on_step(self, step: int) -> None:
        self._line = f"{self._start}  step {step}{f'/{self._total}' if self._total else ''}"
        if self._status is not None:
            self._status.update(self._line)
        elif time.monotonic() - self._printed_at >= _PLAIN_EVERY_S:
            self._print()

    def on_output(self, line: str) -> None:
        """Printed by the elastic run already; the reference's own copy is in its log."""

    def _print(self) -> None:
        self._printed_at, self._printed = time.monotonic(), self._line
        self._console.print(self._line, highlight=False)
