"""The event loop: virtual time, what happens in it, and the controller that is told.

    submissions, device events, timers  ->  driver.handle / decide  ->  backend.place

The driver, its controller and their policy are those of a live cluster. Devices that are taken away are free at the
same moment: what letting go costs is in `costs`. Deterministic: the same jobs, cluster, policy, options and
seed give the same events in the same order. The cost of an event does not grow with the trace: submissions wait in a
sorted list, and only running jobs have timers.
"""

from __future__ import annotations

import heapq
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.driver import Driver, device_names
from isoscale.scheduling.driving import (
    DeviceFailed,
    DeviceRepaired,
    DevicesLent,
    GrantReported,
    Instruction,
    Launch,
    PauseRun,
    ReclaimAsked,
    RejectJob,
    RunEnded,
    SendGrant,
    StateChanged,
)
from isoscale.scheduling.events import JobProgress, JobSubmitted, PricesChanged, SpeedLearned
from isoscale.scheduling.policy import Policy
from isoscale.scheduling.state import Allocation, Cluster, num_devices
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
        self._cluster = cluster
        self._policy = policy
        self._options = options
        self._record = (recorder or NullRecorder()).record
        #: False: what is recorded for every job need not be put together
        self._records = recorder is not None
        self._controller = Controller(
            cluster,
            policy,
            interval_s=options.interval_s,
            quotas=options.quotas,
            objective=options.objective,
            rescale_s=options.costs.rescale_s,
            shares=options.shares,
            quiet_s=options.quiet_s,
        )
        retry = options.retry
        self._driver = Driver(
            self._controller,
            device_names(cluster),
            retry=lambda job, error, failures: retry is not None and retry(error, failures),
        )
        self._ledger = Ledger()
        self._backend = SimulatedBackend(
            cluster,
            options.costs,
            options.interference,
            self._ledger,
            self._set_timer,
            is_rented=bool(options.prices),
        )
        self._rng = np.random.default_rng([options.seed, 11])
        #: (time, order at equal times, number, live, its version); ends come before device events
        self._timers: list[tuple[float, int, int, str, Live | None, int]] = []
        self._num_timers = 0
        self._live: dict[str, Live] = {}
        self._devices = DeviceBook(cluster)
        #: names of devices by node that are being repaired, in the order in which they will be back
        self._broken: list[list[str]] = [[] for _ in cluster.nodes]
        self._started = [math.nan] * len(jobs)
        self._finished = [math.nan] * len(jobs)
        self._rescales = [0] * len(jobs)
        self._rejected = self._failed = self._num_events = self._left = 0
        self._failed_trials: list[FailedTrial] = []
        self._decision_s: list[float] = []
        #: time and number of events of the last decision
        self._decided_at = (-math.inf, 0)
        # A gang in its place in the line gets what it asked for, however fast it is.
        self._reports_progress = policy.watches_time or policy.oracle or not policy.gang
        self.now = 0.0

    def run(self, on_progress: Callable[[int, float], None] | None = None) -> Outcome:
        """Until every job has ended. `on_progress(jobs that ended, virtual time)` is called now and then."""
        begun = time.perf_counter()
        order = sorted(range(len(self._jobs)), key=lambda index: self._jobs[index].request.submitted_s)
        submits = [self._jobs[index].request.submitted_s for index in order] + [math.inf]
        self._left = len(self._jobs)
        self.now = submits[0] if submits[0] < math.inf else 0.0
        self._record(
            self.now,
            "cluster",
            nodes=[(n.name, n.kind, n.num_devices) for n in self._cluster.nodes],
            quotas=dict(self._options.quotas),
        )
        self._begin_devices()
        controller, timers, until = self._controller, self._timers, self._options.until_s
        # Devices that serving still has to lend, or a lower price, may be what a job waits for.
        patience = _PATIENCE_ROUNDS + len(self._options.lendings) + len(self._options.prices)
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
            self._record(end, "job_left", job=live.job.request.name, busy_device_s=self._busy_s(live))
        self._record(end, "simulation_ended")
        return Outcome(
            jobs=self._jobs,
            started_s=self._started,
            finished_s=self._finished,
            rescales=self._rescales,
            rejected=self._rejected,
            failed=self._failed,
            failed_trials=self._failed_trials,
            prices=self._options.prices,
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
                if kind == "price":
                    self._price(int(number))
                elif kind == "repair":
                    self._repair(int(number))
                else:
                    self._lend(self._options.lendings[int(number)])

    # Jobs

    def _submit(self, index: int) -> None:
        self._num_events += 1
        job = self._jobs[index]
        request = job.request
        self._live[request.name] = Live(index, job)
        work = job.declared_work
        if work is None and self._policy.oracle:
            work = job.truth.remaining(0.0)
        if self._records:
            self._record(
                self.now, "job_submitted", job=request.name, devices=request.requested_devices, tenant=request.tenant
            )
        self._perform(self._driver.handle(JobSubmitted(request, job.declared, work), now=self.now))

    def _finish(self, live: Live) -> None:
        name, submitted = live.job.request.name, live.job.request.submitted_s
        self._backend.end(live, self.now)
        self._finished[live.index] = self.now
        self._leave(live, self._ended(live, "finished"))
        if not self._records:
            return
        queue_s = (live.first_start_s or submitted) - submitted
        jct_s, busy_s = self.now - submitted, self._busy_s(live)
        self._record(self.now, "job_finished", job=name, jct_s=jct_s, queue_s=queue_s, busy_device_s=busy_s)

    def _crash(self, live: Live) -> None:
        name, error = live.job.request.name, live.job.crashes[live.crash].error
        live.crash += 1
        instructions = self._ended(live, "failed", error)
        retried = name in self._driver
        self._failed_trials.append(FailedTrial(live.index, self.now, error, retried))
        self._backend.settle(live, self.now)
        self._record(self.now, "job_failed", job=name, error=error, retried=retried, busy_device_s=self._busy_s(live))
        self._lose_work(live)
        if retried:
            self._place(live, (), live.batch, error)
            self._perform(instructions)
            return
        self._backend.end(live, self.now)
        self._failed += 1
        self._leave(live, instructions)

    def _ended(self, live: Live, outcome: Literal["finished", "failed"], error: str = "") -> list[Instruction]:
        return self._driver.handle(RunEnded(live.job.request.name, live.attempt, outcome, error), now=self.now)

    def _leave(self, live: Live, instructions: Sequence[Instruction]) -> None:
        self._left -= 1
        self._note(live)
        del self._live[live.job.request.name]
        self._perform(instructions)

    def _busy_s(self, live: Live) -> float:
        return self._ledger.busy.get(live.index, 0.0)

    def _note(self, live: Live) -> None:
        self._started[live.index] = math.nan if live.first_start_s is None else live.first_start_s
        self._rescales[live.index] = live.rescales

    # Decisions

    def _due(self) -> float:
        """When to decide next. Once a moment is enough, whatever the policy watches, unless something has happened."""
        due = self._driver.next_due_s(self.now)
        return math.inf if due <= self.now and self._decided_at == (self.now, self._num_events) else due

    def _decide(self) -> bool:
        if self._reports_progress:
            self._report_progress()
        begun = time.perf_counter()
        instructions = self._driver.decide(self.now)
        self._decision_s.append(time.perf_counter() - begun)
        self._decided_at = (self.now, self._num_events)
        self._perform(instructions)
        return bool(instructions)

    def _report_progress(self) -> None:
        handle, oracle = self._driver.handle, self._policy.oracle
        for name in list(self._controller.running):
            live = self._live[name]
            done = live.done_at(self.now)
            model = live.truth.learned(done)
            if model is not None and model is not live.known:
                live.known = model
                handle(SpeedLearned(name, model), now=self.now)
            if oracle or live.job.declared_work is not None:
                handle(JobProgress(name, live.truth.remaining(done)), now=self.now)

    def _perform(self, instructions: Sequence[Instruction]) -> float:
        """Returns how long those who give devices back to their owner need to let go of them."""
        if not instructions:
            return 0.0
        given: list[Launch | SendGrant | PauseRun] = []
        todo, latency = list(instructions), 0.0
        for one in todo:  # it grows on the way
            if isinstance(one, StateChanged):
                continue
            if isinstance(one, Launch):
                given.append(one)
                self._live[one.job].attempt = one.attempt
            elif isinstance(one, SendGrant):
                given.append(one)
                todo += self._driver.handle(GrantReported(one.job, one.grant.number, one.grant.devices), now=self.now)
            elif isinstance(one, PauseRun):
                given.append(one)
                todo += self._driver.handle(RunEnded(one.job, self._live[one.job].attempt, "paused"), now=self.now)
            elif isinstance(one, RejectJob):
                self._record(self.now, "job_rejected", job=one.job, reason=one.reason)
                self._rejected += 1
                self._left -= 1
                del self._live[one.job]
        if len(given) > 1:
            # All that is taken away is free at once, so all that was decided can be done in the order of decisions.
            given.sort(key=_decision)
        for one in given:
            if one.grant.reason == "reclaimed":
                needed = self._backend.let_go(self._live[one.job], self.now)
                latency = max(latency, needed)
                if needed > self._options.notice_s:
                    self._lose_work(self._live[one.job])  # gone before it was saved
        late_s = self._options.costs.handover_s
        # Who gets devices of others at this moment waits until those have let go of them.
        if late_s and not any(
            num_devices(one.grant.allocation) < num_devices(self._live[one.job].allocation) for one in given
        ):
            late_s = 0.0
        for one in given:
            self._place(self._live[one.job], one.grant.allocation, one.grant.batch, one.grant.reason, late_s)
        return latency

    def _place(self, live: Live, allocation: Allocation, batch: int, reason: str, late_s: float = 0.0) -> None:
        if not self._records:
            self._backend.place(live, allocation, batch, self.now, late_s)
            return
        first = live.first_start_s is None
        before = num_devices(live.allocation)
        pause_s = self._backend.place(live, allocation, batch, self.now, late_s)
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

    # Devices

    def _begin_devices(self) -> None:
        for number, lending in enumerate(self._options.lendings):
            self._push(max(lending.t, self.now), 1, f"lend {number}")
        if self._options.prices:
            # The price that holds when the first job comes; each step sets the timer of the next.
            steps = [at for at, _ in self._options.prices]
            self._price(max(0, bisect_right(steps, self.now) - 1))
        self._ledger.capacity.append((self.now, self._devices.total()))
        self._next_failure()

    def _price(self, step: int) -> None:
        prices = self._options.prices[step][1]
        self._record(self.now, "prices_changed", prices=prices)
        self._perform(self._driver.handle(PricesChanged(prices), now=self.now))
        if step + 1 < len(self._options.prices):
            self._push(self._options.prices[step + 1][0], 1, f"price {step + 1}")

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
            name = self._driver.devices_of(victim.job.request.name, node)[0]
        else:
            name = self._driver.free_devices(node)[0]
        self._devices.fail(node)
        self._broken[node].append(name)
        failed = DeviceFailed(name, ends_run=not self._options.costs.survives_loss)
        self._perform(self._driver.handle(failed, now=self.now))
        self._ledger.capacity.append((self.now, self._devices.total()))
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
        self._perform(self._driver.handle(DeviceRepaired(self._broken[node].pop(0)), now=self.now))
        self._ledger.capacity.append((self.now, self._devices.total()))

    def _lend(self, lending: Lending) -> None:
        node, change = lending.node, self._devices.lend(lending.node, lending.devices)
        if not change:
            return
        self._record(self.now, "device_lent" if change > 0 else "device_reclaimed", node=node, devices=abs(change))
        if change > 0:
            self._perform(self._driver.handle(DevicesLent(node, change), now=self.now))
        else:
            reclaim = ReclaimAsked(f"{node} at {self.now}", node, -change)
            latency = self._perform(self._driver.handle(reclaim, now=self.now))
            self._ledger.reclaims.append((self.now, -change, latency))
        self._ledger.capacity.append((self.now, self._devices.total()))


def _decision(instruction: Launch | SendGrant | PauseRun) -> int:
    return instruction.grant.decision
