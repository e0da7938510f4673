"""A world that does what a driver says, late: messages wait, processes die when they like, coordinators fall silent.

It knows what really runs on each device, which is what the driver's promises are held against.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.driver import Driver, device_names
from isoscale.scheduling.driving import (
    CancelRun,
    DevicesReleased,
    Grant,
    GrantReported,
    Happening,
    Instruction,
    KillRun,
    Launch,
    PauseRun,
    RejectJob,
    ReturnDevices,
    RunAnswers,
    RunEnded,
    RunSilent,
    SendGrant,
    StateChanged,
)
from isoscale.scheduling.policy import Policy
from isoscale.scheduling.state import Allocation, Cluster, ClusterState, Decision, Pause, Resize, Resume, Start

OVER = ("finished", "failed", "cancelled")


class AnythingGoes:
    """Gives jobs random devices within the rules, and moves them about."""

    interval_s, oracle, watches_time, gang = 0.0, False, False, False

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        #: whoever has devices keeps them, others get the least they need
        self.is_calm = False

    def decide(self, state: ClusterState) -> list[Decision]:
        if self.is_calm:
            left = list(state.free)
            calm = [(job, self._draw(left, job.request.min_devices)) for job in state.waiting.values()]
            return [(Start if j.status == "pending" else Resume)(j.name, given) for j, given in calm if given]
        left = list(state.capacity)
        decisions: list[Decision] = []
        for job in [*state.running.values(), *state.waiting.values()]:
            wanted = self._random.randint(job.request.min_devices, job.request.max_devices)
            allocation = self._draw(left, wanted)
            if not allocation and job.allocation:
                decisions.append(Pause(job.name))
            elif allocation and job.allocation:
                if allocation != job.allocation:
                    decisions.append(Resize(job.name, allocation))
            elif allocation:
                new = Start if job.status == "pending" else Resume
                decisions.append(new(job.name, allocation))
        return decisions

    def _draw(self, left: list[int], wanted: int) -> Allocation:
        taken = [0] * len(left)
        for _ in range(wanted):
            there = [node for node, count in enumerate(left) if count > 0]
            if not there:
                break
            node = self._random.choice(there)
            left[node] -= 1
            taken[node] += 1
        if sum(taken) < wanted:
            for node, count in enumerate(taken):
                left[node] += count
            return ()
        return tuple((node, count) for node, count in enumerate(taken) if count)


@dataclass
class Coordinator:
    """One attempt of a job."""

    attempt: int
    grant: Grant
    #: what is written in its directory, and looked at before a process is started
    file: Grant
    inbox: deque[SendGrant | PauseRun | CancelRun] = field(default_factory=deque)
    #: reports that it has sent and nobody has read
    outbox: deque[Happening] = field(default_factory=deque)
    is_silent: bool = False
    is_ending: bool = False


class World:
    def __init__(self, cluster: Cluster, policy: Policy, quotas: dict[str, int] | None = None) -> None:
        controller = Controller(cluster, policy, interval_s=0.0, quotas=quotas)
        self.driver = Driver(
            controller,
            device_names(cluster),
            retry=lambda job, error, failures: failures <= 2,
            backoff_s=lambda failures: 5.0 * failures,
            counts=lambda error: error != "unstarted",
        )
        self.now = 0.0
        self.coordinators: dict[str, Coordinator] = {}
        #: the job of which a process runs on a device
        self.processes: dict[str, str] = {}
        #: devices that are not ours, or broken: nothing may run on them
        self.gone: set[str] = set()
        self.over: dict[str, str] = {}
        self.submitted: set[str] = set()
        self.reclaims: dict[str, int] = {}
        self.to_kill: deque[KillRun] = deque()

    # ---- the driver's side ----

    def tell(self, *events: Happening) -> None:
        self.perform(self.driver.handle(*events, now=self.now))

    def decide(self) -> None:
        self.perform(self.driver.decide(self.now))

    def perform(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            match one:
                case Launch(job, attempt, grant):
                    assert job not in self.coordinators, f"{job} has two coordinators"
                    self.coordinators[job] = Coordinator(attempt, grant, grant, is_ending=not grant.devices)
                case SendGrant(job, grant) | PauseRun(job, grant) | CancelRun(job, grant):
                    if job in self.coordinators:
                        self.coordinators[job].file = grant
                        if not self.coordinators[job].is_silent:
                            self.coordinators[job].inbox.append(one)
                case KillRun():
                    self.to_kill.append(one)
                case ReturnDevices(reclaim, devices):
                    assert reclaim in self.reclaims, "a reclaim was answered twice"
                    assert len(devices) <= self.reclaims.pop(reclaim)
                    for device in devices:
                        assert device not in self.processes, f"{device} was given back and is in use"
                        self.gone.add(device)
                case RejectJob(job):
                    self.over[job] = "failed"
                case StateChanged(job, _, new):
                    assert job not in self.over, f"{job} is over and became {new}"
                    if new in OVER:
                        self.over[job] = new
        self.check()

    def check(self) -> None:
        driver = self.driver
        driver.validate()
        assert {*driver.jobs} | {*self.over} == self.submitted, "a job is lost"
        holders = driver.holders()
        for device, job in self.processes.items():
            assert holders.get(device) == job, f"{device} runs {job}, and the book says {holders.get(device)}"
            assert device not in self.gone
        state = driver.controller.state(self.now)
        assert all(free >= 0 for free in state.free), state.free

    # ---- the other side ----

    def read(self, job: str) -> None:
        """A coordinator reads a message; it ignores older numbers."""
        one = self.coordinators[job]
        if one.is_silent or not one.inbox:
            return
        message = one.inbox.popleft()
        if message.grant.number >= one.grant.number:
            one.grant = message.grant
            one.is_ending = one.is_ending or not isinstance(message, SendGrant)

    def start_process(self, job: str) -> None:
        """On the first granted device without one."""
        one = self.coordinators[job]
        for device in one.grant.devices if not one.is_ending else ():
            if self.processes.get(device) != job:
                if device not in one.file.devices:
                    continue
                assert device not in self.processes, f"{job} starts on {device}, where {self.processes[device]} runs"
                if device not in self.gone:
                    self.processes[device] = job
                return

    def end_process(self, job: str) -> None:
        """One that is not granted any more; the last ones with the coordinator."""
        one = self.coordinators[job]
        for device, owner in list(self.processes.items()):
            if owner == job and device not in one.grant.devices:
                del self.processes[device]
                break
        if one.is_ending and job not in self.processes.values():
            self.end_run(job, "paused")

    def report(self, job: str, given_up: int = 0) -> None:
        one = self.coordinators[job]
        if one.is_silent or one.is_ending:
            return
        held = self.held(job)
        settled = set(held) == set(one.grant.devices)
        one.outbox.append(
            GrantReported(job, one.grant.number, held, settled, one.grant.devices[:given_up], reason="slow")
        )

    def hear(self, job: str) -> None:
        one = self.coordinators[job]
        if one.outbox and not one.is_silent:
            self.tell(one.outbox.popleft())

    def held(self, job: str) -> tuple[str, ...]:
        return tuple(sorted(device for device, owner in self.processes.items() if owner == job))

    def end_run(self, job: str, outcome: str, *, leaves: bool = False, error: str = "any") -> None:
        """`leaves`: its processes live on. `error` "unstarted": no failure of the job's."""
        one = self.coordinators.pop(job)
        if not leaves:
            for device in self.held(job):
                del self.processes[device]
        self.tell(RunEnded(job, one.attempt, outcome, error=error, alive=self.held(job)))  # type: ignore[arg-type]

    def kill(self) -> None:
        """What the driver said is to be killed, is."""
        one = self.to_kill.popleft()
        for device in one.devices:
            if self.processes.get(device) == one.job:
                del self.processes[device]
        if one.coordinator and one.job in self.coordinators:
            self.end_run(one.job, "died")
        self.tell(DevicesReleased(one.job, one.devices))

    def fall_silent(self, job: str) -> None:
        one = self.coordinators[job]
        if not one.is_silent:
            one.is_silent = True
            one.inbox.clear()
            self.tell(RunSilent(job))

    def answer_again(self, job: str) -> None:
        one = self.coordinators[job]
        if one.is_silent:
            one.is_silent = False
            self.tell(RunAnswers(job))

    def quieten(self) -> None:
        """Until nothing moves any more."""
        for _ in range(400):
            before = (repr(self.driver.holders()), repr(sorted(self.coordinators)), len(self.to_kill))
            while self.to_kill:
                self.kill()
            for job in list(self.coordinators):
                self.settle_one(job)
            if self.driver.next_due_s(self.now) <= self.now:
                self.decide()
            after = (repr(self.driver.holders()), repr(sorted(self.coordinators)), len(self.to_kill))
            if before == after and not any(one.inbox or one.outbox for one in self.coordinators.values()):
                return

    def settle_one(self, job: str) -> None:
        one = self.coordinators[job]
        while one.inbox and not one.is_silent:
            self.read(job)
        for _ in range(8):
            if self.coordinators.get(job) is one:
                self.end_process(job)
        if self.coordinators.get(job) is one:
            for _ in range(8):
                self.start_process(job)
            self.report(job)
            while one.outbox and not one.is_silent:
                self.hear(job)
