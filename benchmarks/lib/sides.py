"""What both sides of a comparison within one process need: batches without end, and a job that prints no steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from isoscale.runtime.alone import ConsoleSink


class Quiet(ConsoleSink):
    def step(self, **facts: Any) -> None:
        pass


def endless(make: Any) -> Iterator[Any]:
    while True:
        yield from make()
