"""The event loop: virtual time, what happens in it, and the controller that is told.

    submissions, device events, timers  ->  controller.feed / decide  ->  backend.place

The controller and its policy are those of a live cluster. Deterministic: the same jobs, cluster, policy, options and
seed give the same events in the same order. The cost of an event does not grow with the trace: submissions wait in a
sorted list, and only running jobs have timers.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.events import (
    AllocationChanged,
    CapacityChanged,
    JobEnded,
    JobProgress,
    JobSubmitted,
    SpeedLearned,
)
from isoscale.scheduling.policy import Policy
from isoscale.scheduling.state import Allocation, Cluster, Decision, Pause, Reject, num_devices
from isoscale.sim.backend import Live, SimulatedBackend, Wake
from isoscale.sim.disturbances import DeviceBook, Lending
from isoscale.sim.job import SimJob
from isoscale.sim.ledger import Ledger
from isoscale.sim.options import FailedTrial, Options, Outcome
from isoscale.sim.recorder import NullRecorder, Recorder

__all__ = ["Options", "Outcome", "Simulation"]

# Rounds in a row without a decision, with nothing running and nothing to come, after which waiting is given up.
_PATIENCE_ROUNDS = 100
# Progress is reported as often as this in the whole run: a bar needs no more.
_REPORTS = 200


class Simulation:
    """One run of jobs on a cluster under a policy. Use once."""

    def __init__(
        self,
        jobs: Sequence[SimJob],
        cluster: Cluster,
        policy: Policy,
        options: Options,
        recorder: Recorder | None = None,
    ) -> None:
        self._jobs = jobs
        self._policy = policy
        self._options = options
        self._record = (recorder or NullRecorder()).record
        self._controller = Controller(
            cluster,
            policy,
            interval_s=options.interval_s,
            quotas=options.quotas,
            objective=options.objective,
            rescale_s=options.costs.rescale_s,
        )
        self._ledger = Ledger()
        self._backend = SimulatedBackend(cluster, options.costs, options.interference, self._ledger, self._set_timer)
        self._rng = np.random.default_rng([options.seed, 11])
        #: (time, order at equal times, number, live, its version); ends come before device events
        self._timers: list[tuple[float, int, int, str, Live | None, int]] = []
        self._num_timers = 0
        self._live: dict[str, Live] = {}
        self._devices = DeviceBook(cluster)
        self._started = [math.nan] * len(jobs)
        self._finished = [math.nan] * len(jobs)
        self._rescales = [0] * len(jobs)
        self._rejected = self._failed = self._num_events = self._left = 0
        self._failed_trials: list[FailedTrial] = []
        self._decision_s: list[float] = []
        #: time and number of events of the last decision
        self._decided_at = (-math.inf, 0)
        self._reports_progress = policy.watches_time or policy.oracle
        self.now = 0.0

    def run(self, on_progress: Callable[[int, float], None] | None = None) -> Outcome:
        """Until every job has ended. `on_progress(jobs that ended, virtual time)` is called now and then."""
        begun = time.perf_counter()
        order = sorted(range(len(self._jobs)), key=lambda index: self._jobs[index].request.submitted_s)
        submits = [self._jobs[index].request.submitted_s for index in order] + [math.inf]
        self._left = len(self._jobs)
        self.now = submits[0] if submits[0] < math.inf else 0.0
        self._begin_devices()
        controller, timers, until = self._controller, self._timers, self._options.until_s
        # Devices that serving still has to lend may be what a job waits for.
        patience = _PATIENCE_ROUNDS + len(self._options.lendings)
        position = idle_rounds = reported = 0
        every = max(1, len(self._jobs) // _REPORTS)
        while self._left:
            due = self._due()
            at = min(submits[position], timers[0][0] if timers else math.inf, due)
            if at == math.inf or at > until or idle_rounds > patience:
                break
            self.now = at
            while timers and timers[0][0] <= at:
                _, _, _, what, live, version = heapq.heappop(timers)
                if live is None or version == live.version:
                    self._num_events += 1
                    self._happen(what, live)
            while submits[position] <= at:
                self._submit(order[position])
                position += 1
            if self._due() <= at:
                decided = self._decide()
                hopeless = not decided and submits[position] == math.inf and not controller.running
                idle_rounds = idle_rounds + 1 if hopeless else 0
            if on_progress and len(self._jobs) - self._left >= reported + every:
                reported = len(self._jobs) - self._left
                on_progress(reported, self.now)
        return self._close(begun)

    def _close(self, begun: float) -> Outcome:
        end = min(self.now, self._options.until_s)
        for live in self._live.values():
            self._backend.place(live, (), 0, end)
            self._note(live)
        return Outcome(
            jobs=self._jobs,
            started_s=self._started,
            finished_s=self._finished,
            rescales=self._rescales,
            rejected=self._rejected,
            failed=self._failed,
            failed_trials=self._failed_trials,
            ledger=self._ledger,
            decision_s=self._decision_s,
            wall_s=time.perf_counter() - begun,
            num_events=self._num_events,
            end_s=end,
        )

    def _set_timer(self, at: float, what: Wake, live: Live) -> None:
        self._push(at, 0, what, live)

    def _push(self, at: float, rank: int, what: str, live: Live | None = None) -> None:
        self._num_timers += 1
        heapq.heappush(self._timers, (at, rank, self._num_timers, what, live, live.version if live else 0))

    def _happen(self, what: str, live: Live | None) -> None:
        match what:
            case "finish":
                assert live is not None
                self._finish(live)
            case "switch":
                assert live is not None
                self._backend.switch(live, self.now)
            case "crash":
                assert live is not None
                self._crash(live)
            case "failure":
                self._fail_device()
            case _:
                kind, _, number = what.partition(" ")
                self._repair(int(number)) if kind == "repair" else self._lend(self._options.lendings[int(number)])

    # Jobs

    def _submit(self, index: int) -> None:
        self._num_events += 1
        job = self._jobs[index]
        request = job.request
        self._live[request.name] = Live(index, job)
        work = job.declared_work
        if work is None and self._policy.oracle:
            work = job.truth.remaining(0.0)
        self._record(
            self.now, "job_submitted", job=request.name, devices=request.requested_devices, tenant=request.tenant
        )
        self._perform(self._controller.feed(JobSubmitted(request, job.declared, work), self.now), "urgent")

    def _finish(self, live: Live) -> None:
        name, submitted = live.job.request.name, live.job.request.submitted_s
        self._backend.end(live, self.now)
        self._finished[live.index] = self.now
        self._leave(live)
        queue_s = (live.first_start_s or submitted) - submitted
        self._record(self.now, "job_finished", job=name, jct_s=self.now - submitted, queue_s=queue_s)

    def _crash(self, live: Live) -> None:
        name, error = live.job.request.name, live.job.crashes[live.crash].error
        live.crash += 1
        retried = self._options.retry is not None and self._options.retry(error, live.crash)
        self._failed_trials.append(FailedTrial(live.index, self.now, error, retried))
        self._record(self.now, "job_failed", job=name, error=error, retried=retried)
        self._lose_work(live)
        if retried:
            self._change(live, (), error)
            return
        self._backend.end(live, self.now)
        self._failed += 1
        self._leave(live)

    def _leave(self, live: Live) -> None:
        self._left -= 1
        self._note(live)
        del self._live[live.job.request.name]
        self._perform(self._controller.feed(JobEnded(live.job.request.name), self.now), "urgent")

    def _note(self, live: Live) -> None:
        self._started[live.index] = math.nan if live.first_start_s is None else live.first_start_s
        self._rescales[live.index] = live.rescales

    # Decisions

    def _due(self) -> float:
        """When to decide next. Once a moment is enough, whatever the policy watches, unless something has happened."""
        due = self._controller.next_decision_s(self.now)
        return math.inf if due <= self.now and self._decided_at == (self.now, self._num_events) else due

    def _decide(self) -> bool:
        if self._reports_progress:
            self._report_progress()
        begun = time.perf_counter()
        decisions = self._controller.decide(self.now)
        self._decision_s.append(time.perf_counter() - begun)
        self._decided_at = (self.now, self._num_events)
        self._perform(decisions, "policy")
        return bool(decisions)

    def _report_progress(self) -> None:
        feed, oracle = self._controller.feed, self._policy.oracle
        for name in list(self._controller.running):
            live = self._live[name]
            done = live.done_at(self.now)
            model = live.truth.learned(done)
            if model is not None and model is not live.known:
                live.known = model
                feed(SpeedLearned(name, model), self.now)
            if oracle or live.job.declared_work is not None:
                feed(JobProgress(name, live.truth.remaining(done)), self.now)

    def _perform(self, decisions: Sequence[Decision], reason: str) -> None:
        for decision in decisions:
            live = self._live[decision.job]
            match decision:
                case Reject(job, why):
                    self._record(self.now, "job_rejected", job=job, reason=why)
                    self._rejected += 1
                    self._left -= 1
                    del self._live[job]
                case Pause():
                    self._place(live, (), 0, reason)
                case _:
                    self._place(live, decision.allocation, decision.batch, reason)

    def _place(self, live: Live, allocation: Allocation, batch: int, reason: str) -> None:
        first = live.first_start_s is None
        before = num_devices(live.allocation)
        pause_s = self._backend.place(live, allocation, batch, self.now)
        self._record(
            self.now,
            "job_started" if first else "job_resized",
            job=live.job.request.name,
            **{"from": before},
            to=num_devices(allocation),
            nodes=allocation,
            batch=batch,
            pause_s=pause_s,
            reason=reason,
        )

    def _change(self, live: Live, allocation: Allocation, reason: str) -> None:
        """Devices are not what was decided."""
        self._place(live, allocation, live.batch, reason)
        self._controller.feed(AllocationChanged(live.job.request.name, allocation), self.now)

    # Devices

    def _begin_devices(self) -> None:
        for number, lending in enumerate(self._options.lendings):
            self._push(max(lending.t, self.now), 1, f"lend {number}")
        self._ledger.capacity.append((self.now, self._devices.total()))
        self._next_failure()

    def _next_failure(self) -> None:
        failures, working = self._options.failures, self._devices.total()
        if failures is not None and working:
            self._push(self.now + self._rng.exponential(failures.mean_s / working), 1, "failure")

    def _fail_device(self) -> None:
        """A device fails, and the job that held it loses it or stops."""
        drawn = self._devices.draw(self._rng)
        if drawn is None or self._options.failures is None:
            return
        node, device = drawn
        victim = self._holder(node, device)
        self._record(self.now, "device_failed", node=node, devices=1)
        if victim is not None:
            self._lose_work(victim)
            rest = tuple((n, count - (n == node)) for n, count in victim.allocation if count > (n == node))
            survives = self._options.costs.survives_loss
            enough = num_devices(rest) >= max(1, victim.job.request.min_devices)
            self._change(victim, rest if survives and enough else (), "device failed")
        self._devices.fail(node)
        self._tell_capacity(node)
        self._push(self.now + self._options.failures.repair_s, 1, f"repair {node}")
        self._next_failure()

    def _holder(self, node: int, device: int) -> Live | None:
        for view in self._controller.running.values():
            for held_node, count in view.allocation:
                if held_node == node:
                    if device < count:
                        return self._live[view.name]
                    device -= count
        return None

    def _lose_work(self, live: Live) -> None:
        every = self._options.costs.checkpoint_every_s
        self._backend.lose_work(live, self._rng.uniform(0.0, every) if every else 0.0, self.now)

    def _repair(self, node: int) -> None:
        self._record(self.now, "device_repaired", node=node, devices=1)
        self._devices.repair(node)
        self._tell_capacity(node)

    def _lend(self, lending: Lending) -> None:
        change = self._devices.lend(lending.node, lending.devices)
        if change:
            what = "device_lent" if change > 0 else "device_reclaimed"
            self._record(self.now, what, node=lending.node, devices=abs(change))
            latency = self._tell_capacity(lending.node)
            if change < 0:
                self._ledger.reclaims.append((self.now, -change, latency))

    def _tell_capacity(self, node: int) -> float:
        """Tells the controller what the node has; returns how long those who must shrink need to let go."""
        decisions = self._controller.feed(CapacityChanged(node, self._devices.there(node)), self.now)
        latency = 0.0
        for decision in decisions:
            latency = max(latency, self._backend.let_go(self._live[decision.job], self.now))
        self._perform(decisions, "reclaimed")
        self._ledger.capacity.append((self.now, self._devices.total()))
        return latency
