"""Whatever happens, in whatever order: no device in two hands, none but ours, no job lost, all come to an end."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from isoscale.scheduling.driving import (
    CancelAsked,
    DeviceFailed,
    DeviceRepaired,
    DevicesLent,
    PauseAsked,
    ReclaimAsked,
    ResumeAsked,
)
from isoscale.scheduling.events import JobSubmitted
from isoscale.scheduling.policy import make_policy
from tests.unit.scheduling.driven_world import AnythingGoes, World
from tests.unit.scheduling.rounds import cluster_of, work

CLUSTER = cluster_of(("T4", 2, 3))
#: no job asks for more than its tenant may have
QUOTAS = {"a": 4, "b": 4}
POLICIES = ("anything", "anything", "easyscale", "easyscale with room", "fifo", "elastic-tiresias", "optimus")
some_job = st.integers(0, 5)
a_node = st.integers(0, 1)


class DriverMachine(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from(POLICIES),
        seed=st.integers(0, 99),
        quotas=st.booleans(),
    )
    def begin(self, policy: str, seed: int, quotas: bool) -> None:
        name, _, room = policy.partition(" with ")
        chosen = AnythingGoes(seed) if policy == "anything" else make_policy(name, **({"room": True} if room else {}))
        self.policy = policy
        self.world = World(CLUSTER, chosen, QUOTAS if quotas and policy != "anything" else None)
        self.quotas = quotas and policy != "anything"
        self.count = 0
        self.broken: list[str] = []

    def up(self, number: int) -> str | None:
        """One of the jobs that have a coordinator."""
        jobs = sorted(self.world.coordinators)
        return jobs[number % len(jobs)] if jobs else None

    def known(self, number: int) -> str | None:
        jobs = sorted(job for job in self.world.driver.jobs if job not in self.world.over)
        return jobs[number % len(jobs)] if jobs else None

    @precondition(lambda self: self.count < 6)
    @rule(least=st.integers(1, 2), most=st.integers(2, 4), tenant=st.sampled_from("ab"), priority=st.integers(0, 1))
    def submit(self, least: int, most: int, tenant: str, priority: int) -> None:
        name = f"job{self.count}"
        self.count += 1
        one = work(
            name,
            workers=most,
            min_devices=least,
            max_devices=most,
            requested_devices=most,
            tenant=tenant,
            priority=priority,
        )
        self.world.submitted.add(name)
        self.world.tell(JobSubmitted(one.request, one.speed, one.steps))

    @rule()
    def decide(self) -> None:
        if self.world.driver.next_due_s(self.world.now) <= self.world.now:
            self.world.decide()

    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.decide()

    @rule(number=some_job, times=st.integers(1, 3))
    def read(self, number: int, times: int) -> None:
        for _ in range(times):
            if (job := self.up(number)) is not None:
                self.world.read(job)

    @rule(number=some_job, times=st.integers(1, 4))
    def start_processes(self, number: int, times: int) -> None:
        for _ in range(times):
            if (job := self.up(number)) is not None:
                self.world.start_process(job)
        self.world.check()

    @rule(number=some_job)
    def end_process(self, number: int) -> None:
        if (job := self.up(number)) is not None:
            self.world.end_process(job)

    @rule(number=some_job, given_up=st.sampled_from([0, 0, 0, 1]))
    def report(self, number: int, given_up: int) -> None:
        if (job := self.up(number)) is not None:
            self.world.report(job, given_up)

    @rule(number=some_job)
    def hear(self, number: int) -> None:
        if (job := self.up(number)) is not None:
            self.world.hear(job)

    @rule(number=some_job, outcome=st.sampled_from(["finished", "failed", "died", "left", "unstarted", "paused"]))
    def end_run(self, number: int, outcome: str) -> None:
        if (job := self.up(number)) is not None:
            leaves = outcome in ("left", "unstarted")
            error = "unstarted" if outcome == "unstarted" else "any"
            self.world.end_run(job, "died" if leaves else outcome, leaves=leaves, error=error)

    @precondition(lambda self: self.policy.startswith("easyscale"))
    @rule(number=some_job)
    def die_and_come_back(self, number: int) -> None:
        """Others have time to grow onto what it had before it is tried again."""
        if (job := self.up(number)) is not None:
            self.world.end_run(job, "died")
        for seconds in (0.0, 20.0):
            self.world.now += seconds
            self.world.decide()
            self.world.quieten()
        if not self.quotas:
            self.check_room()

    @rule()
    def kill(self) -> None:
        if self.world.to_kill:
            self.world.kill()

    @rule(number=some_job, silent=st.booleans())
    def silence(self, number: int, silent: bool) -> None:
        if (job := self.up(number)) is not None:
            self.world.fall_silent(job) if silent else self.world.answer_again(job)

    @rule(number=some_job, what=st.sampled_from([PauseAsked, ResumeAsked, ResumeAsked]))
    def ask(self, number: int, what: type[PauseAsked | ResumeAsked]) -> None:
        if (job := self.known(number)) is not None:
            self.world.tell(what(job))

    @rule(number=some_job, within=st.sampled_from([1.0, 1e9]))
    def cancel(self, number: int, within: float) -> None:
        if number == 0 and (job := self.known(number)) is not None:
            self.world.tell(CancelAsked(job, self.world.now + within))

    @rule(node=a_node, count=st.integers(1, 3), within=st.sampled_from([1.0, 1e9]))
    def reclaim(self, node: int, count: int, within: float) -> None:
        name = f"reclaim at {self.world.now} {len(self.world.gone)} {self.world.driver._pool._away}"
        if name not in self.world.reclaims:
            self.world.reclaims[name] = count
            self.world.tell(ReclaimAsked(name, node, count, self.world.now + within))

    @rule(node=a_node, count=st.integers(1, 3))
    def lend(self, node: int, count: int) -> None:
        pool = self.world.driver._pool
        pending = {n for reclaims in pool._reclaims for one in reclaims for n in one.devices}
        before = set(pool._away)
        instructions = self.world.driver.handle(DevicesLent(node, count), now=self.world.now)
        self.world.gone -= {pool.names[n] for n in before - pool._away} - set(self.broken)
        assert not pending - pool._away
        self.world.perform(instructions)

    @rule(number=st.integers(0, 5))
    def break_down(self, number: int) -> None:
        pool = self.world.driver._pool
        device = pool.names[number]
        if device in self.world.gone or len(self.broken) > 1:
            return
        self.broken.append(device)
        self.world.processes.pop(device, None)
        self.world.gone.add(device)
        self.world.tell(DeviceFailed(device))

    @precondition(lambda self: self.broken)
    @rule()
    def repair(self) -> None:
        pool, device = self.world.driver._pool, self.broken.pop()
        if pool.numbers[device] not in pool._away:
            self.world.gone.discard(device)
        self.world.tell(DeviceRepaired(device))

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        if isinstance(policy := world.driver.controller.policy, AnythingGoes):
            policy.is_calm = True
        for job in list(world.coordinators):
            if job in world.coordinators:
                world.answer_again(job)
        world.now += 1e10
        world.decide()
        world.quieten()
        while self.broken:
            self.repair()
        for node in (0, 1):
            self.lend(node, 3)
        for job in list(world.driver.jobs):
            if job in world.driver and job not in world.over:
                world.tell(ResumeAsked(job))
        for _ in range(60):
            world.now += 100.0
            world.decide()
            world.quieten()
            self.check_quiet()
            running = [job for job in world.coordinators if world.driver.standing(job).state == "running"]
            for job in running[:1]:
                world.end_run(job, "finished")
        world.quieten()
        assert not world.driver.jobs, [(job, world.driver.standing(job)) for job in world.driver.jobs]
        assert set(world.over) == world.submitted
        assert not world.processes
        assert not world.reclaims

    def check_quiet(self) -> None:
        """Nothing is under way: what was decided is what is held."""
        world = self.world
        held: Counter[str] = Counter()
        for job, view in world.driver.controller.running.items():
            standing = world.driver.standing(job)
            assert standing.holds == standing.granted == world.held(job), (job, standing)
            assert len(standing.holds) == view.num_devices, (job, standing, view)
            held[view.request.tenant] += view.num_devices
        if self.policy.startswith("easyscale") and not self.quotas:
            self.check_room()
        if self.quotas:
            # Beyond its quota a tenant may only have what no other one could use within its own.
            gang = world.driver.controller.policy.gang
            for view in world.driver.controller.waiting.values():
                tenant, request = view.request.tenant, view.request
                need = request.requested_devices if gang else request.min_devices
                if held[tenant] + need <= QUOTAS[tenant]:
                    assert all(held[one] <= quota for one, quota in QUOTAS.items()), (held, request)

    def check_room(self) -> None:
        """Nobody who had devices waits while others hold more than their minimum; with room, nobody at all."""
        controller = self.world.driver.controller
        for view in controller.waiting.values():
            if view.first_started_s is None and self.policy == "easyscale":
                continue
            spare = sum(
                one.num_devices - one.request.min_devices
                for one in controller.running.values()
                if one.request.priority <= view.request.priority
            )
            there = spare + sum(controller.state(self.world.now).free)
            assert there < view.request.min_devices, f"{view.name} waits, and {there} devices could be its own"


DriverMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestDriverMachine = DriverMachine.TestCase
