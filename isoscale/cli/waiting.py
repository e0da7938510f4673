"""Waits for the answer to a request to a running job, and shows on stderr what it waits for."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from isoscale.cli.progress import duration
from isoscale.protocol.status import JobStatus
from isoscale.runtime.control.job_handle import JobHandle

__all__ = ["answer_to"]

#: a request that is answered sooner needs no word; where no line can be redrawn one is written now and then
_QUIET_S, _PLAIN_EVERY_S = 1.0, 10.0


def answer_to(job: JobHandle, accepted: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
    """`accepted` is what the call that asked gave. Raises TimeoutError; UserError if nobody is left to answer."""
    with _Waiting(Console(stderr=True), accepted["request"]) as waiting:
        return job.wait_answer(accepted["request"], timeout_s, waiting.show)


class _Waiting:
    def __init__(self, console: Console, request: int) -> None:
        self._console = console
        self._request = request
        self._line = Status("", console=console) if console.is_terminal else None
        self._begun = time.monotonic()
        self._shown_at, self._words = 0.0, ""

    def __enter__(self) -> _Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.stop()

    def show(self, status: JobStatus) -> None:
        waited = time.monotonic() - self._begun
        words = next((one.get("waits_for", "") for one in status["requests"] if one["id"] == self._request), "")
        if waited < _QUIET_S or not words:
            return
        text = Text(f"{words} ({duration(waited)}) ...", style="dim")
        if self._line is not None:
            self._line.update(text)
            self._line.start()
        elif words != self._words or time.monotonic() - self._shown_at > _PLAIN_EVERY_S:
            self._shown_at, self._words = time.monotonic(), words
            self._console.print(text, highlight=False)
