"""What a turn leaves when it is over, so that it need not run again in a step that has to be done again.

Taken when an exchange broke, of the last turn that was over by then: until the next one begins, all that it left is in
place. Gradients are the turn's own, which exchanges only read; they are held, not copied. Another attempt at the same
step opens the turn as ever and puts its end into place, and it ends as it ended before, bit for bit. When that may be
done is decided by `core.engine` and `runtime.training.step`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from isoscale.core.streams.rng import Streams

__all__ = ["ContextEnd", "ModelEnd", "TurnEnd", "versions"]


@dataclass(frozen=True, slots=True)
class ContextEnd:
    """A logical worker's context after its turn."""

    streams: Streams
    #: by name
    generators: Mapping[str, torch.Tensor]
    #: per-worker objects as they travel; b"" if the job has none
    objects: bytes


@dataclass(frozen=True, slots=True)
class ModelEnd:
    """One model after a turn."""

    #: parameters in the order in which their gradients became ready; none if the model took no part
    ready: Sequence[int]
    gradients: Sequence[torch.Tensor | None]
    #: of the gradients
    versions: Sequence[int]
    #: those that the turn wrote, or may have written, by their place
    buffers: Mapping[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class TurnEnd:
    logical_rank: int
    context: ContextEnd
    models: Sequence[ModelEnd]

    @property
    def is_whole(self) -> bool:
        """False if a later turn wrote into these gradients: a script may hold them, too."""
        return all(versions(model.gradients) == model.versions for model in self.models)


def versions(grads: Sequence[torch.Tensor | None]) -> list[int]:
    """torch's counters of writes."""
    return [-1 if grad is None else grad._version for grad in grads]
