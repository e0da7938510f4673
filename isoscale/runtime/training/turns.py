"""`job.turns`: global steps without a data set, for scripts that draw their batches in the turn.

Every logical worker has its turn in every step, on its own random streams, and gets its logical rank. In an evaluation
it may be one worker only, which is how scripts evaluate on rank 0. There is nothing to read, so nothing is drawn from
any stream when a pass begins, as it is by a DataLoader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoscale.errors import UserError
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.step import NO_BATCH

if TYPE_CHECKING:
    from isoscale.runtime.training.loop import TrainingLoop
    from isoscale.runtime.training.state import Tree

__all__ = ["TurnLoader", "make_turns"]


class TurnLoader(Loader):
    """Steps whose turns get the logical rank."""

    def __init__(
        self, loop: TrainingLoop, name: str, steps: int, samples: int, only: int | None, *, train: bool
    ) -> None:
        super().__init__(loop, name, _Nothing(), train=train)
        self._steps = steps
        self._samples = samples
        self._only = only

    def __len__(self) -> int:
        """Global steps of one pass."""
        return self._steps

    def _begin_pass(self) -> None:
        horizon = self._loop.horizon
        if self._train and not horizon.num_epochs:
            horizon.num_epochs = 1  # of a script without epochs, which trains for one pass

    def _has_next(self) -> bool:
        return self.index < self._steps

    def _num_steps(self) -> int:
        return self._steps

    def _settle(self, ranks: range) -> None:
        pass

    def _read(self, logical_rank: int, *, here: bool) -> object:
        return logical_rank if self._only in (None, logical_rank) else NO_BATCH

    def _num_samples(self, batch: object) -> int:
        return self._samples

    def _samples_before(self, index: int) -> int:
        return index * self._samples * self._loop.spec.workers


class _Nothing:
    """Batches of a loader that reads nothing."""

    def mark(self) -> None:
        pass

    def rewind(self) -> None:
        pass

    def changes_of(self, logical_rank: int) -> bytes:
        return b""

    def adopt(self, logical_rank: int, changes: bytes, *, here: bool) -> None:
        pass

    def state(self) -> Tree:
        return {}

    def load_state(self, state: Tree) -> None:
        pass

    def stop(self) -> None:
        pass


def make_turns(loop: TrainingLoop, steps: int, samples: int, train: bool, only: int | None) -> TurnLoader:
    for name, value, least in (("steps", steps, 1), ("samples", samples, 0)):
        if type(value) is not int or value < least:
            raise _refused(name, value, f"not a whole number of {least} or more", "give how many there are")
    if only is not None and train:
        raise _refused("only", only, "in training every logical worker has a turn", "use it with train=False")
    if only is not None and only not in range(loop.spec.workers):
        raise _refused("only", only, f"the job has {loop.spec.workers} logical workers", "give one of them, such as 0")
    loop.check_set_up("job.turns")
    loader = TurnLoader(loop, loop.new_loader_name("turns"), steps, samples, only, train=train)
    return loop.add_loader(loader, None, train=train)


def _refused(name: str, value: object, problem: str, remedy: str) -> UserError:
    return UserError(field=f"job.turns({name}=...)", value=value, problem=problem, remedy=remedy)
