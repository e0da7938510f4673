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
    DevicesReleased,
    Grant,
    GrantReported,
    Happening,
    Instruction,
    JobAdopted,
    JobState,
    KillRun,
    PauseAsked,
    RejectJob,
    ResumeAsked,
    RunAnswers,
    RunEnded,
    RunSilent,
    Standing,
)
from isoscale.scheduling.events import (
    AllocationChanged,
    Event,
    JobEnded,
    JobProgress,
    JobSubmitted,
    PricesChanged,
    RequestChanged,
    SpeedLearned,
)
from isoscale.scheduling.granting import Granting, less
from isoscale.scheduling.hiding import Hiding
from isoscale.scheduling.runs import OVER, Run, standing_of
from isoscale.scheduling.state import Cluster, Decision, Pause, Reject

__all__ = ["Driver", "RetryRule", "device_names"]

#: (job, class of error, failures that count so far) -> whether to try again
RetryRule = Callable[[str, str, int], bool]


class Driver:
    """One cluster. Owns the controller: nobody else feeds it or asks it to decide."""

    def __init__(
        self,
        controller: Controller,
        devices: Sequence[Sequence[str]],
        *,
        retry: RetryRule = lambda job, error, failures: False,
        backoff_s: Callable[[int], float] = lambda failures: 0.0,
    ) -> None:
        """`devices`: names of each node's devices. `backoff_s(failures)`: how long a job waits for its next try."""
        self.controller = controller
        self._pool = DevicePool(devices)
        self._retry = retry
        self._backoff_s = backoff_s
        self._runs: dict[str, Run] = {}
        self._granting = Granting(self._pool, self._runs)
        #: jobs that wait for another try
        self._waiting: set[str] = set()
        self._hiding = Hiding(self._pool, [node.num_devices for node in controller.cluster.nodes], self._feed)
        self._devices = DeviceEvents(self._pool, self._runs, self._granting, self._hiding, self._feed)
        self._now = 0.0

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
        return min(due, *(self._runs[job].not_before_s for job in self._waiting)) if self._waiting else due

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
        if self._waiting or self._granting.deadline_s <= now:
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
            case JobSubmitted(request):
                self._feed(event)
                self._runs[request.name] = Run(request.name, request.min_devices)
            case GrantReported():
                self._on_report(event)
            case RunEnded():
                self._on_ended(event)
            case DevicesReleased(job, devices):
                self._on_released(job, devices)
            case JobAdopted():
                self._adopt(event)
            case RequestChanged(request):
                if request.name in self._runs:
                    self._runs[request.name].min_devices = request.min_devices
                    self._feed(event)
            case RunSilent(job) | RunAnswers(job):
                if (run := self._runs.get(job)) is not None:
                    self._on_silent(run) if isinstance(event, RunSilent) else self._on_answers(run)
            case PauseAsked() | ResumeAsked() | CancelAsked():
                self._on_owner(event)
            case _:
                self._devices.handle(event)

    def _feed(self, event: Event, why: str = "urgent", deadline_s: float = math.inf) -> None:
        """To the controller, whose answer cannot wait."""
        for decision in self.controller.feed(event, self._now):
            self._decided(decision, why, deadline_s)

    def _decided(self, decision: Decision, why: str, deadline_s: float) -> None:
        run = self._runs[decision.job]
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

    # ---- runs ----

    def _on_report(self, event: GrantReported) -> None:
        run = self._runs.get(event.job)
        if run is None or not run.is_up or event.number > run.number:
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

    def _on_ended(self, event: RunEnded) -> None:
        run = self._runs.get(event.job)
        if run is None or not run.is_up or event.attempt != run.attempt:
            return
        run.is_up = False
        if event.abandoned_s:
            self._pool.abandon(self._pool.allocation_of(run.dropped), event.abandoned_s)
        if event.progressed:
            run.failures = 0
        if run.is_silent:
            self._heard(run)
        alive = {self._pool.numbers[name] for name in event.alive} & run.holds() if event.alive else set()
        error = event.error or ("coordinator died" if event.outcome == "died" else "")
        if event.outcome == "died" and alive and not run.is_cancelling:
            for number in [number for number in run.dropped if number not in alive]:
                self._granting.release(run, number)
            if self._may_retry(run, error):
                # Its executors train on: another coordinator takes them over, by the same grant.
                self._granting.start(run, event.reason or "its coordinator died")
                return
            self._granting.drop(run, alive)
            self._end(run, "failed", event.reason or error)
            return
        self._granting.drop(run, alive)
        self._outcome(run, event, error)

    def _outcome(self, run: Run, event: RunEnded, error: str) -> None:
        was_pausing = run.state == "pausing"
        if event.outcome == "finished":
            self._end(run, "finished", event.reason)
        elif run.is_cancelling:
            self._end(run, "cancelled", run.why)
        elif event.outcome == "paused" or (event.outcome == "died" and was_pausing):
            if not was_pausing or run.is_paused_by_owner:
                self._lose_devices(run)
            run.turn("paused", event.reason or run.reason, self._granting.out)
            self._kill_left(run)
            if run.wanted:  # again, meanwhile
                self._granting.want(run)
        elif self._may_retry(run, error):
            self._lose_devices(run)
            self._kill_left(run)
            self._wait_for_try(run)
            run.turn("paused" if run.is_paused_by_owner else "queued", event.reason or error, self._granting.out)
        else:
            self._end(run, "failed", event.reason or error)

    def _may_retry(self, run: Run, error: str) -> bool:
        run.failures += 1
        return self._retry(run.name, error, run.failures)

    def _wait_for_try(self, run: Run) -> None:
        pause_s = self._backoff_s(run.failures)
        if pause_s > 0:
            run.not_before_s = self._now + pause_s
            self._waiting.add(run.name)
            self._hiding.hide(run)

    def _lose_devices(self, run: Run) -> None:
        """It has none, whatever the controller thinks."""
        run.wanted = ()
        self._granting.forget_want(run)
        if self.controller.job(run.name).allocation:
            self._feed(AllocationChanged(run.name, ()))

    def _kill_left(self, run: Run) -> None:
        """Nobody looks after what is alive of a run that has ended."""
        if run.dropped:
            left = self._pool.names_of(run.dropped)
            self._granting.out.append(KillRun(run.name, left, False, "its run has ended"))

    def _end(self, run: Run, state: JobState, why: str) -> None:
        self._kill_left(run)
        run.turn(state, why, self._granting.out)
        self._granting.forget_want(run)
        self._waiting.discard(run.name)
        self._hiding.forget(run)
        self._feed(JobEnded(run.name))
        if not run.dropped:
            self._granting.forget(run)

    def _on_released(self, job: str, devices: Sequence[str]) -> None:
        run = self._runs.get(job)
        if run is None:
            return
        for name in devices:
            self._granting.release(run, self._pool.numbers[name])
        if run.state in OVER and not run.dropped:
            self._granting.forget(run)

    # ---- people ----

    def _on_owner(self, event: PauseAsked | ResumeAsked | CancelAsked) -> None:
        run = self._runs.get(event.job)
        if run is None or run.is_cancelling or run.state in OVER:
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
        self._waiting.discard(run.name)
        if run.state == "pausing":
            self._lose_devices(run)  # it is on its way out, and has its turn when it has gone
        else:
            run.turn("paused" if run.attempt else "queued", "waits for its turn", self._granting.out)
        self._show(run)

    def _cancel(self, run: Run, event: CancelAsked) -> None:
        run.is_cancelling, run.why = True, event.reason
        if not run.is_up:
            self._end(run, "cancelled", event.reason)
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

    def _show(self, run: Run) -> None:
        """Unless something else keeps it from the policy."""
        if not (run.is_silent or run.is_paused_by_owner or run.is_cancelling or run.name in self._waiting):
            self._hiding.show(run)

    # ---- silence ----

    def _on_silent(self, run: Run) -> None:
        if run.is_silent or not run.is_up:
            return
        run.is_silent = True
        run.wanted = self._pool.allocation_of(run.granted)
        self._granting.forget_want(run)
        self._granting.look_at_giving(run)
        self._hiding.hide(run)
        self._feed(AllocationChanged(run.name, self._pool.allocation_of(run.holds())))

    def _on_answers(self, run: Run) -> None:
        if not run.is_silent:
            return
        self._heard(run)
        if run.granted or run.state == "pausing" or run.is_cancelling:
            self._granting.say_again(run, "it answers again")
        else:
            self._granting.want(run)  # all that it had is gone meanwhile

    def _heard(self, run: Run) -> None:
        run.is_silent = False
        run.wanted = self._pool.allocation_of(run.granted)
        self._granting.look_at_giving(run)
        self._show(run)

    # ---- time ----

    def _look_at_time(self) -> None:
        if self._granting.deadline_s <= self._now:
            self._end_overdue()
        for job in [job for job in self._waiting if self._runs[job].not_before_s <= self._now]:
            self._waiting.discard(job)
            self._show(self._runs[job])

    def _end_overdue(self) -> None:
        """Nothing waits for what does not go by itself."""
        late = [run for run in self._runs.values() if run.deadline_s <= self._now]
        for run in late:
            run.deadline_s = math.inf
            whole = run.is_up and (run.is_cancelling or run.state == "pausing")
            if run.dropped or whole:
                left = self._pool.names_of(run.dropped)
                self._granting.out.append(KillRun(run.name, left, whole, "its time is over"))
        self._granting.deadline_s = min((run.deadline_s for run in self._runs.values()), default=math.inf)

    # ---- a driver that follows another ----

    def _adopt(self, event: JobAdopted) -> None:
        """The job as it was found. What was under way is told again."""
        request, saved, numbers = event.submitted.request, event.standing, self._pool.numbers
        run = Run(request.name, request.min_devices)
        run.state, run.reason, run.attempt, run.number = saved.state, saved.reason, saved.attempt, saved.number
        run.is_up, run.failures, run.batch, run.why = saved.is_up, saved.failures, saved.batch, saved.reason
        run.is_paused_by_owner, run.is_cancelling = saved.is_paused_by_owner, saved.is_cancelling
        run.avoids = frozenset(numbers[name] for name in saved.avoids)
        holds = {numbers[name] for name in saved.holds}
        granted = {numbers[name] for name in saved.granted}
        self._pool.hold(holds | granted if run.is_up else holds)
        run.granted = granted if run.is_up else set()
        run.dropped = dict.fromkeys(holds - run.granted, run.number)
        run.wanted = self._pool.allocation_of(run.granted)
        self._runs[request.name] = run
        self._feed(event.submitted)
        self._feed(AllocationChanged(run.name, run.wanted))
        self._granting.look_at_giving(run)
        if run.is_cancelling and not run.is_up:
            self._end(run, "cancelled", run.reason)
            return
        if run.is_paused_by_owner or run.is_cancelling:
            self._hiding.hide(run)
        elif saved.not_before_s > self._now:
            # By another clock than the one that it was written by: no pause is longer than the rule says.
            run.not_before_s = min(saved.not_before_s, self._now + self._backoff_s(max(1, run.failures)))
            self._waiting.add(run.name)
            self._hiding.hide(run)
        if run.is_up:
            self._granting.say_again(run, "the service was restarted")
            return
        self._kill_left(run)
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
