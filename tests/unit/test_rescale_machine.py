"""The rescale protocol under random interleavings: whatever happens, its rules hold, and in the end it gets there."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.membership.target import PlanEntry
from isoscale.types import Settings
from tests.unit.rescale_model import Executor, World

TARGETS = [DeviceSet.parse(text) for text in ("cpu", "cpu*2", "cpu*3", "cpu*4", "cpu*1+cpu-avx2*1", "cpu-avx2*2")]
target = st.sampled_from(TARGETS)


class RescaleMachine(RuleBasedStateMachine):
    world: World

    @initialize(
        first=target,
        spares=st.integers(0, 1),
        plan=st.lists(st.tuples(st.integers(1, 12), target), max_size=2, unique_by=lambda entry: entry[0]),
    )
    def begin(self, first: DeviceSet, spares: int, plan: list[tuple[int, DeviceSet]]) -> None:
        entries = tuple(PlanEntry(step, devices) for step, devices in sorted(plan, key=lambda entry: entry[0]))
        self.world = World(first, settings=Settings(spares=spares, straggler_steps=2), plan=entries)
        self.world.begin()
        self.faults = 0
        self.asked = False

    def pick(self, data: Any, among: list[Executor]) -> Executor:
        number = data.draw(st.sampled_from([one.executor for one in among]), label="executor")
        return self.world.executors[number]

    @property
    def going(self) -> bool:
        return self.world.outcome is None

    # ---- things go their way ----

    @precondition(lambda self: self.going)
    @rule(data=st.data(), count=st.integers(1, 6))
    def live(self, data: Any, count: int) -> None:
        for _ in range(count):
            alive = list(self.world.alive())
            if alive:
                self.world.live(self.pick(data, alive))

    @precondition(lambda self: self.going)
    @rule(data=st.data(), count=st.integers(1, 6))
    def orders_arrive(self, data: Any, count: int) -> None:
        for _ in range(count):
            waiting = [one for one in self.world.executors.values() if one.inbox]
            if waiting:
                self.world.deliver(self.pick(data, waiting))

    @precondition(lambda self: self.going)
    @rule(data=st.data(), count=st.integers(1, 6))
    def reports_arrive(self, data: Any, count: int) -> None:
        for _ in range(count):
            waiting = [one for one in self.world.executors.values() if one.outbox]
            if waiting and self.going:
                self.world.report(self.pick(data, waiting))

    @precondition(lambda self: self.going)
    @rule(count=st.integers(1, 3))
    def train(self, count: int) -> None:
        for _ in range(count):
            for generation in self.world.generations():
                _ = self.world.seal(generation) or self.world.finish(generation)

    @precondition(lambda self: self.going)
    @rule(count=st.integers(1, 4))
    def a_while_passes(self, count: int) -> None:
        """Everything goes on for some rounds, so that later faults meet a job that trains."""
        for _ in range(count):
            if not self.going:
                return
            for one in list(self.world.alive()):
                self.world.live(one)
            self.world.talk()
            if self.going:
                self.train(1)
                self.world.tick(0.2)

    @rule(seconds=st.sampled_from([0.2, 1.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        if self.going:
            self.world.tick(seconds)

    # ---- somebody wants something ----

    @precondition(lambda self: self.going)
    @rule(wanted=target, data=st.data(), away=st.booleans())
    def request(self, wanted: DeviceSet, data: Any, away: bool) -> None:
        members = [self.world.executors[e] for e in self.world.membership.members]
        who = (self.pick(data, members).executor,) if away and members else ()
        self.world.request(wanted, who)

    @precondition(lambda self: self.going)
    @rule(data=st.data())
    def notice(self, data: Any) -> None:
        alive = [one for one in self.world.alive() if one.state != "starting"]
        if alive:
            self.world.notice(self.pick(data, alive))

    @precondition(lambda self: self.going)
    @rule()
    def everybody_is_to_be_replaced(self) -> None:
        self.world.request(self.world.membership.goal.target, self.world.membership.members)

    @precondition(lambda self: self.going)
    @rule()
    def everybody_gets_a_notice(self) -> None:
        """A whole machine is going to be taken away."""
        for one in self.world.alive():
            if one.state != "starting":
                self.world.notice(one)

    @precondition(lambda self: self.going)
    @rule(data=st.data(), turn_s=st.sampled_from([0.1, 0.1, 0.5]))
    def beats(self, data: Any, turn_s: float) -> None:
        for one in self.world.alive():
            if one.trains:
                slow = turn_s if one.executor % 2 else 0.1
                one.say(m.Beat(step=one.step, place="turn", place_s=0.0, steps=2, turn_s=slow, step_s=1.0))

    @precondition(lambda self: self.going)
    @rule()
    def checkpoint(self) -> None:
        self.world.checkpoint = max([self.world.checkpoint, *(one.step for one in self.world.alive() if one.trains)])

    @precondition(lambda self: self.going)
    @rule(more=st.integers(0, 3))
    def finishing(self, more: int) -> None:
        newest = max((one.step for one in self.world.executors.values()), default=0)
        self.world.end = min(self.world.end, newest + more)

    # ---- faults ----

    @precondition(lambda self: self.going and self.faults < 8)
    @rule(data=st.data(), unsent=st.integers(0, 2))
    def an_executor_dies(self, data: Any, unsent: int) -> None:
        alive = list(self.world.alive())
        if alive:
            self.faults += 1
            self.world.die(self.pick(data, alive), unsent)

    @precondition(lambda self: self.going and self.faults < 8)
    @rule(data=st.data(), everybody=st.booleans())
    def several_die_at_once(self, data: Any, everybody: bool) -> None:
        """One event, however many processes it ends."""
        alive = list(self.world.alive())
        dying = alive if everybody else [one for one in alive if data.draw(st.booleans())]
        self.faults += bool(dying)
        for one in dying:
            self.world.die(one)

    @precondition(lambda self: self.going and self.faults < 8)
    @rule(data=st.data(), in_finish=st.booleans())
    def one_dies_in_the_seal(self, data: Any, in_finish: bool) -> None:
        """Some have left it, others have only entered it."""
        groups = [group for g in self.world.generations() if (group := self.world.members_of(g))]
        if not groups:
            return
        group = groups[data.draw(st.integers(0, len(groups) - 1))]
        victim = self.pick(data, group)
        lucky = {one.executor for one in group if one is not victim and data.draw(st.booleans())}
        act = self.world.finish if in_finish else self.world.seal
        if act(group[0].generation, lucky):
            self.faults += 1
            self.world.die(victim)

    @precondition(lambda self: self.going and self.faults < 8)
    @rule(data=st.data())
    def an_exchange_breaks_and_nobody_is_gone(self, data: Any) -> None:
        training = [one for one in self.world.alive() if one.trains and len(one.members) > 1]
        if training:
            self.faults += 1
            one = self.pick(data, training)
            one.breaks()

    @precondition(lambda self: self.going and self.faults < 8)
    @rule(data=st.data())
    def two_cannot_reach_each_other_any_more(self, data: Any) -> None:
        training = [one for one in self.world.alive() if one.trains and len(one.members) > 1]
        if training:
            self.faults += 1
            one = self.pick(data, training)
            other = self.pick(data, [self.world.executors[e] for e in one.members if e != one.executor])
            self.world.apart.add(frozenset((one.executor, other.executor)))
            for end in (one, other):
                if end.trains:
                    end.breaks()

    @precondition(lambda self: self.going and self.faults < 8 and self.world.membership.phase == "training")
    @rule()
    def a_new_coordinator(self) -> None:
        self.faults += 1
        self.world.replace_coordinator()

    # ---- what must hold ----

    @invariant()
    def the_books_are_right(self) -> None:
        if not hasattr(self, "world"):
            return
        membership = self.world.membership
        assert membership.generation >= membership.current
        if membership.members and membership.phase == "training":
            assert sum(membership.shares) == membership.spec.workers
            assert len(membership.shares) == len(membership.members)
        attempt = membership.attempt
        if attempt is not None:
            assert attempt.generation > membership.current
            assert not set(attempt.leaving) & set(attempt.members)
            for executor in attempt.coming:
                known = membership.roster.get(executor)
                # One that is let go after the order to switch ends, which ends the attempt.
                going = attempt.switch_sent and known is not None and known.state == "leaving"
                assert known is None or going or known.state in ("held", "member")

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world, membership = self.world, self.world.membership
        world.settle()
        membership = world.membership
        story = "\n".join(world.story[-120:])
        if world.outcome is not None:
            failed = membership.phase == "failed"
            assert not failed or self.faults >= 3, f"{world.outcome}\n{story}"
            return
        assert membership.phase == "training", f"stuck in {membership.phase}\n{story}"
        assert world.end > 10**8, f"the job did not end: {membership}\n{story}"
        assert world.calm(), f"no peace: {membership}\n{story}"
        if not membership.goal.refused:
            kinds = sorted(world.executors[e].kind for e in membership.members)
            assert kinds == sorted(membership.goal.target), (
                f"not the target {membership.goal.target}: {membership}\n{story}"
            )
            assert not membership.goal.plan


RescaleMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestRescale = RescaleMachine.TestCase
