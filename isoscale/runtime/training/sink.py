"""`Sink`, the way out for a job's facts: to the coordinator, to the console, or to whoever compares them.

Says which facts there are, and who tells them. Where they go is the business of whoever implements it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from isoscale.core.totals import Combined

if TYPE_CHECKING:
    from isoscale.runtime.training.batches import Rebatched
    from isoscale.runtime.training.loader import Place

__all__ = ["Facts", "Sink", "Value", "step_loss"]

#: what `job.log` takes
Value = float | int | str | bool | None
#: facts that an executor could tell if the first one is lost
_REMEMBERED = 256


class Sink(Protocol):
    """Carries facts out of the process. Called on the first executor only; never blocks."""

    def step(
        self,
        *,
        step: int,
        epoch: int,
        values: Combined,
        seconds: float,
        samples: int,
        total: int,
        place: Place,
        noise_scale: float | None = None,
        noise_skipped: int = 0,
    ) -> None:
        """A step is committed. `total` is how many there will be, 0 if unknown; `noise_scale` was measured in it,
        or could not be, for the `noise_skipped`th time."""

    def logged(self, *, step: int, epoch: int, values: dict[str, Value]) -> None:
        """The script called `job.log`."""

    def audited(self, *, step: int, digest: str) -> None:
        """All executors held the same state after so many steps; its digest."""

    def streamed(self, *, event: str, stream: str, step: int, fields: dict[str, object]) -> None:
        """Partitions of a stream were given out, or a pass over it ended."""

    def rebatched(self, change: Rebatched, /) -> None:
        """The batch size was changed, or is not going to be as somebody wanted."""

    def warned(self, *, message: str) -> None:
        """Something a person should know, and training does not depend on."""


class Facts:
    """Facts that every executor knows, each as a call of the sink. The first one tells them; all remember them for a
    while: it may be gone before anybody has heard it, and then its successor tells them."""

    def __init__(self) -> None:
        self._told: deque[_Fact] = deque(maxlen=_REMEMBERED)
        self._untold: deque[_Fact] = deque(maxlen=_REMEMBERED)

    def tell(self, fact: Callable[[], None], *, is_main: bool) -> None:
        if is_main:
            self.tell_left()
        self._untold.append(_Fact(time.monotonic(), fact))
        if is_main:
            self.tell_left()

    def tell_left(self) -> None:
        """On whoever is the first one by now."""
        while self._untold:
            self._told.append(self._untold.popleft())
            self._told[-1].tell()

    def since(self, then: float) -> list[Callable[[], None]]:
        """Told here or not; `then` is by the monotonic clock."""
        return [fact.tell for fact in (*self._told, *self._untold) if fact.at >= then]


class _Fact(NamedTuple):
    at: float
    tell: Callable[[], None]


def step_loss(values: Combined) -> float | None:
    """What the event log calls a step's loss: the mean of that name, else of the first name in order."""
    return values.means.get("loss", values.means[min(values.means)] if values.means else None)
