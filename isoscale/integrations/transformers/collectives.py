"""Collectives of accelerate in a script's own methods, refused: a turn has no other ranks that it could wait for.

Accelerate is told of N processes but joins no process group, so `accelerator.gather(...)` would give a logical worker
its own part back where a stock rank gets everybody's. The stock class's own counting asks for just that part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from isoscale.core.rules import Turn

__all__ = ["Collectives"]

_NAMES = ("gather", "gather_for_metrics", "pad_across_processes", "reduce")


class Collectives:
    """Of one accelerator, whose methods are replaced."""

    def __init__(self, accelerator: Any, turn: Turn, num_logical_workers: int) -> None:
        self._turn = turn
        self._counts_own = False
        for name in _NAMES if num_logical_workers > 1 else ():
            setattr(accelerator, name, self._refusing(name, getattr(accelerator, name)))

    @contextmanager
    def of_one_worker(self) -> Iterator[None]:
        """Inside, they give back what they are given; isoscale adds it up over all logical workers."""
        self._counts_own = True
        try:
            yield
        finally:
            self._counts_own = False

    def _refusing(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def collective(*args: Any, **options: Any) -> Any:
            if self._counts_own:
                return method(*args, **options)
            raise self._turn.error(
                f"accelerator.{name}() asks other ranks, and logical workers take their turns one after the other",
                "return what metrics need from prediction_step, and use compute_metrics; self.log({...}) in a turn "
                "logs what logical worker 0 says",
            )

        return collective
