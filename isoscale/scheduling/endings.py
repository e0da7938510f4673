"""A run has ended: its job is over, or paused, or gets another try; and devices on which something is left of it.

Part of `scheduling.driver`; no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.device_pool import DevicePool
from isoscale.scheduling.driving import JobState, RunEnded
from isoscale.scheduling.events import AllocationChanged, JobEnded
from isoscale.scheduling.granting import Granting
from isoscale.scheduling.hiding import Feed, Hiding
from isoscale.scheduling.retries import Retries
from isoscale.scheduling.run_reports import RunReports
from isoscale.scheduling.runs import OVER, Run

__all__ = ["Endings"]


class Endings:
    def __init__(
        self,
        controller: Controller,
        pool: DevicePool,
        granting: Granting,
        hiding: Hiding,
        retries: Retries,
        reports: RunReports,
        feed: Feed,
    ) -> None:
        """`controller` is asked, and told by `feed` only."""
        self._controller = controller
        self._pool, self._granting, self._hiding, self._feed = pool, granting, hiding, feed
        self._retries, self._reports = retries, reports

    # ---- of a run ----

    def on_ended(self, run: Run, event: RunEnded, now: float) -> None:
        if not run.is_up or event.attempt != run.attempt:
            return
        run.is_up = False
        if event.abandoned_s:
            self._pool.abandon(self._pool.allocation_of(run.dropped), event.abandoned_s)
        if event.progressed:
            run.failures = run.misses = 0
        if run.is_silent:
            self._reports.heard(run)
        alive = {self._pool.numbers[name] for name in event.alive} & run.holds() if event.alive else set()
        error = event.error or ("coordinator died" if event.outcome == "died" else "")
        # Where not even a coordinator could be started the next try is not at once, and nobody would look after them.
        if event.outcome == "died" and alive and not run.is_cancelling and self._retries.counts(error):
            self._on_orphaned(run, alive, event.reason, error)
            return
        self._granting.drop(run, alive)
        self._outcome(run, event, error, now)

    def _on_orphaned(self, run: Run, alive: set[int], reason: str, error: str) -> None:
        """Its coordinator died, and its executors train on: another one takes them over, by the same grant."""
        for number in [number for number in run.dropped if number not in alive]:
            self._granting.release(run, number)
        if self._retries.may_retry(run, error):
            self._granting.start(run, reason or "its coordinator died")
            return
        self._granting.drop(run, alive)
        self.end(run, "failed", reason or error)

    def _outcome(self, run: Run, event: RunEnded, error: str, now: float) -> None:
        was_pausing = run.state == "pausing"
        if event.outcome == "finished":
            self.end(run, "finished", event.reason)
        elif run.is_cancelling:
            self.end(run, "cancelled", run.why)
        elif event.outcome == "paused" or (event.outcome == "died" and was_pausing):
            if not was_pausing or run.is_paused_by_owner:
                self.lose_devices(run)
            run.turn("paused", event.reason or run.reason, self._granting.out)
            self._granting.kill_left(run)
            if run.wanted:  # again, meanwhile
                self._granting.want(run)
        elif self._retries.may_retry(run, error):
            self.lose_devices(run)
            self._granting.kill_left(run)
            if self._retries.wait(run, now):
                self._hiding.hide(run)
            run.turn("paused" if run.is_paused_by_owner else "queued", event.reason or error, self._granting.out)
        else:
            self.end(run, "failed", event.reason or error)

    def on_released(self, run: Run, devices: Sequence[str]) -> None:
        """What was left on these devices is dead."""
        for name in devices:
            self._granting.release(run, self._pool.numbers[name])
        if run.state in OVER and not run.dropped:
            self._granting.forget(run)

    # ---- of a job ----

    def end(self, run: Run, state: JobState, why: str) -> None:
        """For good. It stays in the book until all its devices are free."""
        self._granting.kill_left(run)
        run.turn(state, why, self._granting.out)
        self._granting.forget_want(run)
        self._retries.forget(run)
        self._hiding.forget(run)
        self._feed(JobEnded(run.name))
        if not run.dropped:
            self._granting.forget(run)

    def lose_devices(self, run: Run) -> None:
        """It has none, whatever the controller thinks."""
        run.wanted = ()
        self._granting.forget_want(run)
        if self._controller.job(run.name).allocation:
            self._feed(AllocationChanged(run.name, ()))
