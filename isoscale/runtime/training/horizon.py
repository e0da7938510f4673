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

    def is_reached(self, step: int) -> bool:
        return any(step >= limit for limit in self._limits())

    def total_steps(self, steps_per_epoch: int) -> int:
        """How many steps there will be, 0 if unknown."""
        by_epochs = [self.num_epochs * steps_per_epoch] if self.num_epochs else []
        return min([*self._limits(), *by_epochs], default=0)

    def _limits(self) -> list[int]:
        return [limit for limit in (self.num_steps, self._until) if limit]


def epochs(loop: TrainingLoop, count: int) -> Iterator[int]:
    """Epoch numbers 0 .. count-1, from where this executor comes in; ends early when the job stops."""
    loop.horizon.num_epochs = count
    epoch = loop.first_epoch()
    while epoch < count and not loop.at_end():
        loop.epoch = epoch
        yield epoch
        epoch += 1


def steps(loop: TrainingLoop, count: int) -> Iterator[int]:
    """Epoch numbers until `count` steps are committed."""
    loop.horizon.num_steps = count
    epoch = loop.first_epoch()
    while not loop.at_end():
        loop.epoch, before = epoch, loop.step
        yield epoch
        if loop.step == before:
            raise UserError(
                field="job.steps",
                value=count,
                problem="a pass of its loop committed no step",
                remedy="iterate a training loader in the body of 'for epoch in job.steps(n):'",
            )
        epoch += 1
