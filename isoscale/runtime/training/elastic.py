"""`Elastic`, the way in for changes of executors: where a training loop may be held, moved or ended from outside.

Says at which places of a loop that can happen. An executor's membership implements it, and a replay, which moves a job
to the place of a checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from isoscale.core.seal import Sealed
    from isoscale.runtime.training.batches import Wish
    from isoscale.runtime.training.loader import Loader
    from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["Elastic"]


class Elastic(Protocol):
    """Whoever may change, while the job trains, which executors it has. None of it while a script runs alone."""

    def hold(self, loop: TrainingLoop) -> int | None:
        """On the way to the first step: wait for a place to begin at; its epoch, or None to begin at the beginning."""

    def arrive(self, loop: TrainingLoop, loader: Loader) -> None:
        """At `next()` of a training loader, its end included: the only place where executors join, leave, move logical
        workers and write checkpoints."""

    def ready(self, loop: TrainingLoop) -> bool:
        """About to seal a step: could this executor go over to the next generation after it?"""

    def wish(self, loop: TrainingLoop) -> Wish | None:
        """About to seal a step of a job whose batch size may change: the newest request that could be met after it."""

    def sealed(self, loop: TrainingLoop, sealed: Sealed) -> None:
        """A step, of training or evaluation, is sealed."""
