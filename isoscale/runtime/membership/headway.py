"""How far a job has ever come, and how often everybody was lost without coming further. Pure bookkeeping.

A step that is done again is no headway: a script that ends its process in step 30 commits the 29 steps before it as
often as it is started. Only a step that no coordinator has seen yet counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isoscale.types import Whereabouts

__all__ = ["Headway", "Loss"]

#: times that everybody is gone, without a step beyond what was reached before
_MAX_RESTARTS = 3


@dataclass(frozen=True, slots=True)
class Loss:
    """The last one who held the job's state is gone."""

    executor: int
    reason: str
    where: Whereabouts | None = None

    def __str__(self) -> str:
        return f"{self.reason} {self.where}" if self.where is not None else self.reason


@dataclass(slots=True)
class Headway:
    #: the highest step that was ever committed, under any coordinator
    reached: int = 0
    #: how often everybody was lost since
    attempts: int = 0
    #: how, as far as this coordinator has seen it
    losses: list[Loss] = field(default_factory=list)
    #: executors from here on were started after the last one of those losses
    _after: int = 0

    def commit(self, step: int) -> None:
        if step > self.reached:
            self.reached, self.attempts, self.losses = step, 0, []

    def restart(self, loss: Loss, started: int) -> bool:
        """Everybody is gone, with `started` executors started so far. True if that has happened too often.

        Whoever was there when it happened the last time, as a spare, may have met the same and counts with it.
        """
        if 0 <= loss.executor < self._after:
            return False
        self._after = started
        self.attempts += 1
        self.losses.append(loss)
        return self.attempts > _MAX_RESTARTS

    def account(self, out: str) -> str:
        """Why the job is given up, where, and what to do."""
        last = self.losses[-1]
        beyond = f"beyond step {self.reached}" if self.reached else "to the end of the first step"
        same = len(self.losses) > 1 and len({str(loss) for loss in self.losses}) == 1
        how = f"each time {last}" if same else f"at last {last}"
        # Nobody says so when the system does it.
        memory = " (by the system, if memory ran out)" if last.reason == "killed by SIGKILL" else ""
        log = f"see the end of {out}/logs/executor-{last.executor}.log; " if last.executor >= 0 else ""
        return (
            f"all executors were lost {self.attempts} times without coming {beyond}: {how}{memory}; "
            f"{log}isoscale resume {out} tries again"
        )
