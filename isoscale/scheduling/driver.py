"""Stands between decisions and the world: what each job holds against what it shall hold. No I/O, no clock.

    for instruction in driver.handle(*what_happened, now=now): perform(instruction)
    if now >= driver.next_due_s(now):
        for instruction in driver.decide(now): perform(instruction)

The cluster service performs instructions with processes, the simulator with virtual ones. The rules:

- A device is held from the moment a grant names it until a report of that grant's successor, or somebody who looked,
  says that nothing runs on it. Only then may another job be granted it. So no device is held twice, whatever is late.
- Devices are taken away at once and given when all that a job shall get are free; a job that gets some for others
  goes on as it is until then. Where jobs wait for each other in a circle, one shrinks first, or is paused.
- A newer decision overtakes an older one: grants are numbered, and a pause is a grant of nothing.
- A run that does not answer keeps what it holds. The controller is told that those devices are not there.
- A failed run is tried again if the rule for its class of error says so; a pause or a reclaim never counts as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.device_events import DeviceEvents
from isoscale.scheduling.device_pool import DevicePool
from isoscale.scheduling.driving import (
    CancelAsked,
    DeviceFailed,
    DeviceRepaired,
    DevicesLent,
    DevicesReleased,
    Grant,
    GrantReported,
    Happening,
    Instruction,
    JobAdopted,
    PauseAsked,
    ReclaimAsked,
    RejectJob,
    ResumeAsked,
    RunAnswers,
    RunEnded,
    RunSilent,
    Standing,
)
from isoscale.scheduling.endings import Endings
from isoscale.scheduling.events import (
    AllocationChanged,
    Event,
    JobProgress,
    JobSubmitted,
    PricesChanged,
    RequestChanged,
    SpeedLearned,
)
from isoscale.scheduling.granting import Granting
from isoscale.scheduling.hiding import Hiding
from isoscale.scheduling.owner_events import OwnerEvents
from isoscale.scheduling.retries import Retries, RetryRule
from isoscale.scheduling.run_reports import RunReports
from isoscale.scheduling.runs import OVER, Run, adopted, standing_of
from isoscale.scheduling.state import Cluster, Decision, Pause, Reject

__all__ = ["Driver", "device_names"]

#: what is news only as long as the job is in the book
_OfOneJob = GrantReported | RunSilent | RunAnswers | RunEnded | DevicesReleased | PauseAsked | ResumeAsked | CancelAsked


class Driver:
    """One cluster. Owns the controller: nobody else feeds it or asks it to decide."""

    def __init__(
        self,
        controller: Controller,
        devices: Sequence[Sequence[str]],
        *,
        retry: RetryRule = lambda job, error, failures: False,
        backoff_s: Callable[[int], float] = lambda failures: 0.0,
        counts: Callable[[str], bool] = lambda error: True,
    ) -> None:
        """`devices`: names of each node's devices. `retry`, `backoff_s` and `counts` are rules for `Retries`."""
        self.controller = controller
        self._pool = pool = DevicePool(devices)
        self._runs: dict[str, Run] = {}
        self._retries = retries = Retries(retry, backoff_s, counts)
        self._granting = granting = Granting(pool, self._runs)
        sizes = [node.num_devices for node in controller.cluster.nodes]
        self._hiding = hiding = Hiding(pool, sizes, retries, self._feed)
        self._devices = DeviceEvents(pool, self._runs, granting, hiding, self._feed)
        self._reports = RunReports(pool, granting, hiding, self._feed)
        self._endings = Endings(controller, pool, granting, hiding, retries, self._reports, self._feed)
        self._owners = OwnerEvents(pool, granting, hiding, retries, self._endings, self._feed)
        self._now = 0.0
        #: grows with everything that may change a standing or who waits: whoever shows them need not look at all again
        self.num_changes = 0

    # ---- looking ----

    def standing(self, job: str) -> Standing:
        """The job in the book. KeyError if it is unknown, or over with all its devices free."""
        return standing_of(self._runs[job], self._pool)

    def __contains__(self, job: str) -> bool:
        return job in self._runs

    @property
    def jobs(self) -> Sequence[str]:
        return tuple(self._runs)

    def holders(self) -> Mapping[str, str]:
        """Job by device, of all devices that are held."""
        names = self._pool.names
        return {names[number]: run.name for run in self._runs.values() for number in sorted(run.holds())}

    def grant(self, job: str) -> Grant:
        """The newest one of a job, to be sent again."""
        run = self._runs[job]
        return self._granting.grant_of(run, run.reason)

    def devices_of(self, job: str, node: int) -> Sequence[str]:
        """Devices of a node that the job was granted."""
        pool = self._pool
        return pool.names_of(number for number in self._runs[job].granted if pool.node_of[number] == node)

    def free_devices(self, node: int) -> Sequence[str]:
        return self._pool.names_of(self._pool.free_on(node))

    def next_due_s(self, now: float) -> float:
        """When `decide`, which also looks at deadlines and tries, should be called next; infinity: never."""
        due, deadline = self.controller.next_decision_s(now), self._granting.deadline_s
        due = due if due < deadline else deadline
        return min(due, self._retries.next_s()) if self._retries.waiting else due

    # ---- telling ----

    def handle(self, *events: Happening, now: float) -> list[Instruction]:
        """Notes what happened, in this order; returns what is to be done about it, in order."""
        self._now = now
        for event in events:
            self._note(event)
        return self._settled()

    def decide(self, now: float) -> list[Instruction]:
        """Asks the policy if it is time, looks at deadlines and at jobs that may be tried again."""
        self._now = now
        if self._retries.waiting or self._granting.deadline_s <= now:
            self._look_at_time()
        if self.controller.next_decision_s(now) <= now:
            for decision in self.controller.decide(now):
                self._decided(decision, "policy", math.inf)
            if len(self._granting.pending) > 1:
                self._spare_idle_swaps()
        return self._settled()

    def _settled(self) -> list[Instruction]:
        granting = self._granting
        if self._hiding.is_any:
            self._hiding.tell_capacity()
        if granting.pending:
            granting.settle()
        if self._pool.has_reclaims:
            granting.out += self._pool.returned(self._now)
        out, granting.out = granting.out, []
        return out

    def _note(self, event: Happening) -> None:
        match event:
            case JobProgress() | SpeedLearned() | PricesChanged():
                self.controller.feed(event, self._now)
                return
            case JobSubmitted(request):
                self._feed(event)
                self._runs[request.name] = Run(request.name, request.min_devices)
            case JobAdopted():
                self._adopt(event)
            case DevicesLent() | ReclaimAsked() | DeviceFailed() | DeviceRepaired():
                self._devices.handle(event)
            case RequestChanged(request):
                if (run := self._runs.get(request.name)) is not None:
                    run.min_devices = request.min_devices
                    self._feed(event)
            case _:
                if (run := self._runs.get(event.job)) is not None:
                    self._note_of(run, event)
        self.num_changes += 1

    def _note_of(self, run: Run, event: _OfOneJob) -> None:
        match event:
            case GrantReported() | RunSilent() | RunAnswers():
                self._reports.handle(run, event)
            case RunEnded():
                self._endings.on_ended(run, event, self._now)
            case DevicesReleased():
                self._endings.on_released(run, event.devices)
            case PauseAsked() | ResumeAsked() | CancelAsked():
                self._owners.handle(run, event)

    def _look_at_time(self) -> None:
        self.num_changes += 1
        if self._granting.deadline_s <= self._now:
            self._granting.end_overdue(self._now)
        for run in self._retries.due(self._now):
            self._hiding.show(run)

    def _feed(self, event: Event, why: str = "urgent", deadline_s: float = math.inf) -> None:
        """To the controller, whose answer cannot wait."""
        for decision in self.controller.feed(event, self._now):
            self._decided(decision, why, deadline_s)

    def _decided(self, decision: Decision, why: str, deadline_s: float) -> None:
        run = self._runs[decision.job]
        self.num_changes += 1
        if isinstance(decision, Reject):
            self._granting.out.append(RejectJob(run.name, decision.reason))
            run.turn("failed", decision.reason, self._granting.out)
            self._granting.forget(run)
            return
        if isinstance(decision, Pause):
            run.wanted = ()
        else:
            run.wanted, run.batch = decision.allocation, decision.batch
        run.why = why
        if deadline_s < run.deadline_s:
            run.deadline_s = deadline_s
        self._granting.want(run)

    def _spare_idle_swaps(self) -> None:
        """Two jobs shall change places between nodes of one kind: nobody is faster for it, and one would have to
        stop."""
        controller, pairs = self.controller, self._granting.idle_swaps()
        kinds = [node.kind for node in controller.cluster.nodes] if pairs else []
        for one, other in pairs:
            shapes = [sorted((kinds[node], count) for node, count in run.wanted) for run in (one, other)]
            if shapes[0] != shapes[1]:
                continue
            one.wanted, other.wanted = other.wanted, one.wanted
            for run, allocation in ((one, ()), (other, other.wanted), (one, one.wanted)):
                controller.feed(AllocationChanged(run.name, allocation), self._now)

    # ---- a driver that follows another ----

    def _adopt(self, event: JobAdopted) -> None:
        """The job as it was found. What was under way is told again."""
        request, saved = event.submitted.request, event.standing
        run = adopted(request.name, request.min_devices, saved, self._pool)
        self._pool.hold(run.holds())
        self._runs[request.name] = run
        self._feed(event.submitted)
        self._feed(AllocationChanged(run.name, run.wanted))
        self._granting.look_at_giving(run)
        if run.is_cancelling and not run.is_up:
            self._endings.end(run, "cancelled", run.reason)
            return
        if run.is_paused_by_owner or run.is_cancelling:
            self._hiding.hide(run)
        elif saved.not_before_s > self._now:
            self._retries.wait_on(run, saved.not_before_s, self._now)
            self._hiding.hide(run)
        if run.is_up:
            self._granting.say_again(run, "the service was restarted")
            return
        self._granting.kill_left(run)
        if run.state not in ("queued", "paused"):
            run.turn("paused" if run.attempt else "queued", "the service was restarted", self._granting.out)

    def validate(self) -> None:
        """For tests: what must hold between any two calls."""
        self._pool.validate([number for run in self._runs.values() for number in (*run.granted, *run.dropped)])
        for run in self._runs.values():
            assert not (run.granted & run.dropped.keys()), f"{run.name}: a device is granted and taken away"
            assert run.is_up or not run.granted, f"{run.name}: nobody runs, and devices are granted"
            assert run.state not in OVER or run.dropped, f"{run.name} is over, and still in the book"
            assert run.is_up or run.state not in ("starting", "running", "resizing", "pausing"), run.name


def device_names(cluster: Cluster) -> list[list[str]]:
    """Names for the devices of each node: `node0/cpu/1`."""
    return [[f"{node.name}/{node.kind}/{number}" for number in range(node.num_devices)] for node in cluster.nodes]
