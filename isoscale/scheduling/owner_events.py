"""What a job's owner wants of it: that it stops, goes on, or ends without a result.

Part of `scheduling.driver`; no I/O, no clock.
"""

from __future__ import annotations

from isoscale.scheduling.device_pool import DevicePool
from isoscale.scheduling.driving import CancelAsked, PauseAsked, ResumeAsked
from isoscale.scheduling.endings import Endings
from isoscale.scheduling.events import AllocationChanged
from isoscale.scheduling.granting import Granting
from isoscale.scheduling.hiding import Feed, Hiding
from isoscale.scheduling.retries import Retries
from isoscale.scheduling.runs import OVER, Run

__all__ = ["OwnerEvents"]


class OwnerEvents:
    def __init__(
        self, pool: DevicePool, granting: Granting, hiding: Hiding, retries: Retries, endings: Endings, feed: Feed
    ) -> None:
        self._pool, self._granting, self._hiding, self._feed = pool, granting, hiding, feed
        self._retries, self._endings = retries, endings

    def handle(self, run: Run, event: PauseAsked | ResumeAsked | CancelAsked) -> None:
        if run.is_cancelling or run.state in OVER:
            return  # it ended before its owner was heard
        match event:
            case PauseAsked() if not run.is_paused_by_owner:
                self._pause(run, event.reason)
            case ResumeAsked() if run.is_paused_by_owner:
                self._resume(run)
            case CancelAsked():
                self._cancel(run, event)

    def _pause(self, run: Run, why: str) -> None:
        run.is_paused_by_owner, run.why = True, why
        self._withdraw(run)
        run.wanted = ()
        if not run.is_up:
            run.turn("paused", why, self._granting.out)
        elif run.state != "pausing":
            self._granting.pause(run, why)

    def _resume(self, run: Run) -> None:
        run.is_paused_by_owner, run.not_before_s = False, 0.0
        self._retries.forget(run)
        if run.state == "pausing":
            self._endings.lose_devices(run)  # it is on its way out, and has its turn when it has gone
        else:
            run.turn("paused" if run.attempt else "queued", "waits for its turn", self._granting.out)
        self._hiding.show(run)

    def _cancel(self, run: Run, event: CancelAsked) -> None:
        run.is_cancelling, run.why = True, event.reason
        if not run.is_up:
            self._endings.end(run, "cancelled", event.reason)
            return
        self._withdraw(run)
        run.deadline_s = min(run.deadline_s, event.deadline_s)
        run.wanted = ()
        self._granting.cancel(run, event.reason)

    def _withdraw(self, run: Run) -> None:
        """What it was to get and has not got is free for others at once."""
        self._granting.forget_want(run)
        self._hiding.hide(run)
        if not run.is_silent:
            self._feed(AllocationChanged(run.name, self._pool.allocation_of(run.granted)))
