"""What is saved of a job and what would be lost if it ended now, in words. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Progress"]

#: steps that take longer are not waited for if there is nothing to write
_LONG_STEP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    #: committed steps, and of the newest checkpoint; 0 is the beginning, for which none is needed
    step: int
    saved: int
    #: somebody trains
    is_training: bool = True
    #: seconds that a step takes, 0 if unknown, and since the last one was committed
    step_s: float = 0.0
    since_step_s: float = 0.0
    #: that the last checkpoint took to write, 0 before the first
    write_s: float = 0.0

    @property
    def is_saved(self) -> bool:
        """Ended now, it would lose nothing that was committed. Where steps are short one may be about to be: then the
        next place for a checkpoint is near, and waiting for it is exact."""
        is_long = max(self.step_s, self.since_step_s) > _LONG_STEP_S
        return not self.is_training or (self.step <= self.saved and is_long)

    @property
    def lost(self) -> str:
        """What has to be trained again."""
        since = f"since the checkpoint of step {self.saved}" if self.saved else "nothing was saved"
        if self.step <= self.saved:
            return "no committed step is lost"
        first = self.saved + 1
        steps = f"step {first}" if first == self.step else f"steps {first} to {self.step}"
        return f"{steps} ({since}) will be trained again"
