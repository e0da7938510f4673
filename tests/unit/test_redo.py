"""A step that broke is done again, or taken as done, without a trace: executors die in every exchange in turn."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from isoscale.core.context import ContextSwitch
from isoscale.core.encoding.digest import flat_state
from isoscale.core.engine import StepEngine
from isoscale.core.reduction.exchange import ExchangeBrokenError, LocalExchange
from isoscale.core.rules import Turn
from isoscale.core.streams import rng
from isoscale.core.tracked import TrackedModel
from isoscale.runtime.training.step import Step
from isoscale.types import Order
from tests.unit.faulty import Fault, FaultyExchange, Survivor, World
from tests.unit.simulated import same_bits

N = 4
STEPS = 3


@pytest.fixture(autouse=True)
def leave_streams() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with rng.isolated():
        yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Job:
    """A small training with everything in it that a context or a step can hold."""

    order: Order = "ddp"
    broadcast: bool = True
    find_unused: bool = False
    clears: bool = True
    accumulates: bool = False
    #: there is a second model, which every turn trains, too
    second: bool = False
    #: how often turns ran, by executor, step and logical rank
    ran: Counter[tuple[int, int, int]] = field(default_factory=Counter, compare=False, repr=False)

    def __call__(self, exchange: Any, world: World | None = None, executor: int = 0) -> dict[str, Any]:
        rng.seed_all(1)
        model = _Net()
        modules = [model, *model.second] if self.second else [model]
        optimizer = torch.optim.SGD([p for one in modules for p in one.parameters()], lr=0.1, momentum=0.9)
        engine = StepEngine(exchange, ContextSwitch(N, 5), Turn())
        for number, module in enumerate(modules):
            engine.models.append(
                TrackedModel(
                    f"net {number}",
                    module,
                    engine.turn,
                    exchange,
                    order=self.order,
                    find_unused_parameters=self.find_unused,
                    broadcast_buffers=self.broadcast,
                    bucket_cap_mb=0.0001,
                )
            )
        noise = engine.contexts.add_per_worker("noise", lambda rank: torch.Generator().manual_seed(rank))
        memory = engine.contexts.add_per_worker("memory", dict)
        engine.contexts.start()
        if world is not None:
            engine.peers = Survivor(world, executor, engine)
        totals = []
        for number in range(STEPS):
            step = self._step(engine, number, training=True)
            for x in step:
                self.ran[executor, number, step.logical_rank] += 1
                self._turn(step, model, x, noise, memory, number)
            totals.append({**step.totals, **step.means, "given": step.gathered})
            optimizer.step()
            if self.clears:
                optimizer.zero_grad(set_to_none=number % 2 == 0)
            torch.rand(3), random.random()  # the job-wide streams move too
        model.eval()
        step = self._step(engine, STEPS, training=False)
        for x in step:
            with torch.no_grad():
                step.sum(out=model(x, 0).sum(), seen=len(x), luck=random.random())
                memory["evaluated"] = memory.get("evaluated", 0) + 1
        totals.append(step.totals)
        engine.seal_end("end", "digest")
        return self._outcome(engine, model, optimizer, totals)

    def _step(self, engine: StepEngine, number: int, *, training: bool) -> Step:
        def fetch(rank: int) -> torch.Tensor:
            return torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * number + rank)) + torch.rand(())

        return Step(
            engine,
            fetch,
            lambda tally: engine.finish(tally, digest="", stop=False),
            lambda sealed: sealed,
            training=training,
            position=f"step {number}",
        )

    def _turn(self, step: Step, model: _Net, x: torch.Tensor, noise: Any, memory: Any, number: int) -> None:
        rank = step._engine.turn.logical_rank
        assert rank is not None
        skip = rank if self.find_unused else 0
        if self.accumulates:
            with step.accumulate():
                model(x * torch.rand(()), skip).sum().backward()
        loss = model(x + torch.rand(3, generator=noise), skip).square().sum() * (1 + random.random())
        if self.second:
            loss = loss + model.second[0](torch.rand(2, 3)).square().mean()
        loss.backward()
        memory["seen"] = memory.get("seen", 0.0) + float(np.random.rand()) + float(np.random.randn())
        if number == 2:
            memory["long"] = "x" * 500  # the seal has no room for so much: it is told in a message of its own
        step.log(loss=loss.detach())
        step.gather(luck=[rank, torch.rand(2)])
        step.sum(seen=len(x), weird=torch.tensor([memory["seen"], 0.1]))
        if number == 1:
            step.sum(late=rank)  # a value that nobody has heard of: the seal takes a second round

    def _outcome(self, engine: StepEngine, model: nn.Module, optimizer: Any, totals: list[Any]) -> dict[str, Any]:
        tracked = engine.models[0]
        tree = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "second": [one.state_dict() for one in model.second],
            "grads": {i: p.grad for one in engine.models for i, p in enumerate(one.params)},
            "own": {rank: dict(enumerate(tracked.buffers.own.get(rank, tracked.buffers.shared))) for rank in range(N)},
            "layout": str(tracked.sync.layout),
            "contexts": {rank: engine.contexts.state_of(rank) for rank in range(N)},
            "streams": engine.contexts.job_streams(),
            "totals": totals,
            "seals": engine.seals,
        }
        return dict(flat_state(tree))


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.layers = nn.ModuleList([nn.Linear(3, 9), nn.Linear(3, 9)])
        self.last = nn.Linear(9, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        #: not one of its children
        self.second = (nn.Linear(3, 5),)

    def forward(self, x: torch.Tensor, skip: int) -> torch.Tensor:
        if self.training:
            self.calls += 1
        hidden = [layer(self.norm(x) if i == 0 else x) for i, layer in enumerate(self.layers) if i != skip - 1]
        return self.last(nn.functional.dropout(sum(hidden), 0.3, self.training))


JOBS = [Job(), Job(order="tree", broadcast=False), Job(find_unused=True, clears=False), Job(broadcast=False)]


MORE_JOBS = [*JOBS, Job(accumulates=True, clears=False), Job(order="tree", second=True, find_unused=True)]


def assert_same(mine: Any, reference: dict[str, Any], story: object) -> None:
    assert isinstance(mine, dict), f"{story}: {mine!r}"
    assert list(mine) == list(reference), story
    for path, value in mine.items():
        other = reference[path]
        same = same_bits(value, other) if isinstance(value, torch.Tensor) else repr(value) == repr(other)
        assert same, f"{story}: {path} is {str(value)[:99]}, not {str(other)[:99]}"


@pytest.mark.parametrize("job", MORE_JOBS, ids=str)
@pytest.mark.parametrize("shares", [(2, 2), (1, 3)], ids=str)
def test_of_a_survivors_turns_the_last_that_was_over_is_not_run_again(job: Job, shares: tuple[int, int]) -> None:
    reference = job(LocalExchange(N))
    world = World()
    world.run(shares, job)
    last, again = shares[0] - 1, 0
    for at in range(world.calls[0]):
        mine = replace(job, ran=Counter())
        results = World(backwards=at % 2 == 0, faults=[Fault(at, frozenset({1}))]).run(shares, mine)
        assert_same(results[0], reference, at)
        ran = {rank: [mine.ran[0, step, rank] for step in range(STEPS)] for rank in range(N)}
        # Wherever the exchange breaks: before the turn of that worker, or when it is over.
        assert ran[last] == [1] * STEPS, at
        assert all(max(ran[rank]) <= 1 for rank in range(last, N)), at
        again += any(2 in ran[rank] for rank in range(last))
    assert bool(again) == (last > 0), "the other turns' gradients are gone"


def test_what_was_kept_survives_a_second_failure_and_may_be_kept_again() -> None:
    """Of four executors two die in the same step; the first one comes to host logical workers 0 and 1."""
    job = Job(order="tree", broadcast=False)
    reference = job(LocalExchange(N))
    first = Fault(4, frozenset({3}))
    world = World(faults=[first])
    world.run((1, 1, 1, 1), job)
    before = []
    for at in range(world.calls[1]):
        mine = replace(job, ran=Counter())
        second = Fault(at, frozenset({2}), generation=1)
        results = World(faults=[first, second]).run((1, 1, 1, 1), mine)
        assert set(results) == {0, 1}
        for result in results.values():
            assert_same(result, reference, (first, second))
        ran = [mine.ran[0, 0, rank] for rank in (0, 1)]
        # What was kept for the second attempt is kept for the third, as long as no turn came after it.
        assert ran in ([1, 1], [2, 1]), (at, ran)
        before.append(ran[0] == 1)
    assert before[0]
    assert not all(before)


def test_a_turn_into_whose_gradients_a_later_one_wrote_is_run_again() -> None:
    """A script may hold gradients of the turn before, and do with them what it likes."""

    @dataclass(frozen=True)
    class Holding(Job):
        held: list[Any] = field(default_factory=list, compare=False, repr=False)

        def _turn(self, step: Step, model: _Net, x: torch.Tensor, noise: Any, memory: Any, number: int) -> None:
            for grad in self.held if number == 0 else ():
                grad.add_(1.0)
            super()._turn(step, model, x, noise, memory, number)
            self.held[:] = [p.grad for p in model.parameters()]

    def work(exchange: Any, world: World, executor: int) -> dict[str, Any]:
        return (mine if executor == 1 else others)(exchange, world, executor)

    reference = Job()(LocalExchange(N))
    mine, others = Holding(), Job()
    # Executor 1 adopts logical workers 0 and 1, whose turns come before those that are its own.
    results = World(faults=[Fault(4, frozenset({0}))]).run((2, 2), work)
    assert_same(results[1], reference, "held")
    assert mine.ran[1, 0, 3] == 2


def subsets(members: set[int]) -> Iterator[frozenset[int]]:
    for size in range(len(members) + 1):
        yield from map(frozenset, itertools.combinations(sorted(members), size))


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_undisturbed_executors_do_what_one_process_does(job: Job) -> None:
    reference = job(LocalExchange(N))
    for backwards in (False, True):
        results = World(backwards=backwards).run((1, 2, 1), job)
        assert len(results) == 3
        for result in results.values():
            assert_same(result, reference, "undisturbed")


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_executors_die_before_every_call(job: Job) -> None:
    reference = job(LocalExchange(N))
    world = World()
    world.run((1, 2, 1), job)
    victims = [frozenset(v) for v in ({0}, {1}, {2}, {0, 1}, {1, 2})]
    for at in range(world.calls[0]):
        fault = Fault(at, victims[at % len(victims)])
        results = World(backwards=at % 3 == 0, faults=[fault]).run((1, 2, 1), job)
        assert set(results) == {0, 1, 2} - fault.victims
        for result in results.values():
            assert_same(result, reference, fault)


@pytest.mark.parametrize("job", JOBS[1:3], ids=str)
def test_some_got_an_answer_that_others_did_not(job: Job) -> None:
    """In the seal: some have left it, others have only entered it. Whoever left it may have gone far since."""
    reference = job(LocalExchange(N))
    world = World()
    world.run((1, 2, 1), job)
    rng_of_test = random.Random(7)
    for at in range(world.calls[0]):
        victim = at % 3
        luckies = [lucky for lucky in subsets({0, 1, 2} - {victim}) if lucky]
        fault = Fault(at, frozenset({victim}), rng_of_test.choice(luckies))
        results = World(backwards=at % 2 == 0, faults=[fault]).run((1, 2, 1), job)
        assert set(results) == {0, 1, 2} - fault.victims, fault
        for result in results.values():
            assert_same(result, reference, fault)


def test_a_second_failure_meets_the_recovery() -> None:
    """The group of the survivors breaks too: while they agree, and in the calls after that."""
    job = JOBS[1]
    reference = job(LocalExchange(N))
    first = Fault(9, frozenset({3}), frozenset({0}))
    world = World(faults=[first])
    assert len(world.run((1, 1, 1, 1), job)) == 3
    for at in range(world.calls[1]):
        second = Fault(at, frozenset({at % 3}), frozenset({(at + 1) % 3}) if at % 2 else None, generation=1)
        results = World(backwards=at % 4 > 1, faults=[first, second]).run((1, 1, 1, 1), job)
        assert set(results) == {0, 1, 2} - second.victims
        for result in results.values():
            assert_same(result, reference, (first, second))


def test_the_last_survivor_does_everything() -> None:
    job = JOBS[0]
    reference = job(LocalExchange(N))
    for at in (0, 5, 11, 17):
        results = World(faults=[Fault(at, frozenset({0, 2}))]).run((1, 2, 1), job)
        assert set(results) == {1}
        assert_same(results[1], reference, at)


def test_without_anybody_to_ask_the_break_is_the_scripts_to_see() -> None:
    def work(exchange: FaultyExchange, world: World, executor: int) -> None:
        JOBS[0](exchange)

    results = World(faults=[Fault(3, frozenset({0}))]).run((2, 2), work)
    assert isinstance(results[1], ExchangeBrokenError)
