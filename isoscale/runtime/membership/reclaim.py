"""Devices are wanted back by a certain time: may the open step end first? Pure.

What goes by itself goes at the end of a step, as always. Where the step, as measured, does not end in time, every
second that is spent on it is lost: it is given up at once. One that takes longer than those before it is given up when
there is just time enough for what has to be done then.
"""

from __future__ import annotations

from dataclasses import dataclass

from isoscale.runtime.membership.progress import Progress

__all__ = ["LAST_S", "Reclaim"]

#: what killing processes and seeing them dead may take
LAST_S = 0.4
#: going over to others, or having a checkpoint published
_HANDOVER_S = 0.3
#: what writing a checkpoint takes, before any was written
_WRITE_S = 0.3


@dataclass(frozen=True, slots=True)
class Reclaim:
    #: in the coordinator's own time
    by: float
    #: nobody stays who has the job's state: it has to be written
    writes: bool

    def is_over(self, now: float) -> bool:
        """Whatever is done, it is done now."""
        return now >= self.by - LAST_S

    def is_hopeless(self, progress: Progress, now: float) -> bool:
        """The open step does not end in time. Of one that was never measured nobody knows: it is not begun to hope."""
        left = self.by - now - LAST_S - _HANDOVER_S
        if self.writes and progress.step > progress.saved:
            left -= max(_WRITE_S, 1.5 * progress.write_s)
        return max(0.0, progress.step_s - progress.since_step_s) > left if progress.step_s else True
