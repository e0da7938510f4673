"""What a run says of its devices, and that it says nothing: what follows for the job.

Part of `scheduling.driver`; no I/O, no clock. A run that does not answer keeps what it holds, and nobody waits for it.
"""

from __future__ import annotations

from isoscale.scheduling.device_pool import DevicePool
from isoscale.scheduling.driving import GrantReported, RunAnswers, RunSilent
from isoscale.scheduling.events import AllocationChanged
from isoscale.scheduling.granting import Granting, less
from isoscale.scheduling.hiding import Feed, Hiding
from isoscale.scheduling.runs import Run

__all__ = ["RunReports"]


class RunReports:
    def __init__(self, pool: DevicePool, granting: Granting, hiding: Hiding, feed: Feed) -> None:
        self._pool, self._granting, self._hiding, self._feed = pool, granting, hiding, feed

    def handle(self, run: Run, event: GrantReported | RunSilent | RunAnswers) -> None:
        match event:
            case GrantReported():
                self._on_report(run, event)
            case RunSilent() if run.is_up and not run.is_silent:
                self._on_silent(run)
            case RunAnswers() if run.is_silent:
                self._on_answers(run)

    def heard(self, run: Run) -> None:
        """It is silent no more."""
        run.is_silent = False
        run.wanted = self._pool.allocation_of(run.granted)
        self._granting.look_at_giving(run)
        self._hiding.show(run)

    # ---- its devices ----

    def _on_report(self, run: Run, event: GrantReported) -> None:
        if not run.is_up or event.number > run.number:
            return
        numbers = self._pool.numbers
        if event.abandoned_s:
            self._pool.abandon(self._pool.allocation_of(run.dropped), event.abandoned_s)
        if run.dropped:
            held = {numbers[name] for name in event.held}
            for number in [n for n, since in run.dropped.items() if event.number >= since and n not in held]:
                self._granting.release(run, number)
        if event.number < run.number:
            return
        if given_up := {numbers[name] for name in event.given_up} & run.granted:
            self._take_back(run, given_up, event.reason or "given up by the job")
        elif event.is_settled and not run.dropped and run.state in ("starting", "resizing"):
            run.turn("running", run.why, self._granting.out)

    def _take_back(self, run: Run, devices: set[int], why: str) -> None:
        """The job does better without them, or cannot use them."""
        run.avoids = run.avoids | devices
        lost = self._pool.allocation_of(devices.intersection(self._granting.kept(run)))
        run.wanted, run.why = less(run.wanted, lost), why
        self._feed(AllocationChanged(run.name, run.wanted))
        self._granting.grant(run, run.granted - devices)
        self._granting.want(run)
        self._granting.send_rest(run, why)

    # ---- silence ----

    def _on_silent(self, run: Run) -> None:
        run.is_silent = True
        run.wanted = self._pool.allocation_of(run.granted)
        self._granting.forget_want(run)
        self._granting.look_at_giving(run)
        self._hiding.hide(run)
        self._feed(AllocationChanged(run.name, self._pool.allocation_of(run.holds())))

    def _on_answers(self, run: Run) -> None:
        self.heard(run)
        if run.granted or run.state == "pausing" or run.is_cancelling:
            self._granting.say_again(run, "it answers again")
        else:
            self._granting.want(run)  # all that it had is gone meanwhile
