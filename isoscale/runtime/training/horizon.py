"""How far a job is to train: epochs and steps, as the script and the command line ask for them.

Hands out epoch numbers until the end. Why a job stops before it (`job.stop`) is `runtime.training.loop`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from isoscale.errors import UserError

if TYPE_CHECKING:
    from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["Horizon", "epochs", "steps"]


class Horizon:
    """0 stands for what nobody has said."""

    def __init__(self, until: int) -> None:
        """`until` is the command line's limit of steps."""
        self._until = until
        #: of the script
        self.num_steps = 0
        self.num_epochs = 0
        #: the number of the first epoch that is not trained
        self.end_epoch = 0

    def is_reached(self, step: int) -> bool:
        return any(step >= limit for limit in self._limits())

    def total_steps(self, steps_per_epoch: int) -> int:
        """How many steps there will be, 0 if unknown."""
        return self.nearest(self.num_epochs * steps_per_epoch if self.num_epochs else None)

    def nearest(self, by_epochs: int | None) -> int:
        """The first of all limits, given how many steps the epochs come to; 0 if there is none."""
        return min([*self._limits(), *([] if by_epochs is None else [by_epochs])], default=0)

    def _limits(self) -> list[int]:
        return [limit for limit in (self.num_steps, self._until) if limit]


def epochs(loop: TrainingLoop, count: int, start: int = 0) -> Iterator[int]:
    """Epoch numbers start .. count-1, from where this executor comes in; ends early when the job stops."""
    if type(start) is not int or start < 0:
        raise UserError(
            field="job.epochs(start=...)",
            value=start,
            problem="not the number of an epoch",
            remedy="give the first epoch to train: 0, or the number of epochs that a checkpoint has behind it",
        )
    loop.horizon.num_epochs, loop.horizon.end_epoch = max(0, count - start), count
    held = loop.first_epoch()
    epoch = start if held is None else held
    while epoch < count and not loop.at_end():
        loop.epoch = epoch
        loop.numbers.at_epoch()
        yield epoch
        epoch += 1


def steps(loop: TrainingLoop, count: int) -> Iterator[int]:
    """Epoch numbers until `count` steps are committed."""
    loop.horizon.num_steps = count
    epoch = loop.first_epoch() or 0
    while not loop.at_end():
        loop.epoch, before = epoch, loop.step
        loop.numbers.at_epoch()
        yield epoch
        if loop.step == before:
            raise UserError(
                field="job.steps",
                value=count,
                problem="a pass of its loop committed no step",
                remedy="iterate a training loader in the body of 'for epoch in job.steps(n):'",
            )
        epoch += 1
