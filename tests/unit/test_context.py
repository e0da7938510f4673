from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

from isoscale.core.context import ContextSwitch
from isoscale.core.encoding.digest import flat_state
from isoscale.core.streams import rng


@pytest.fixture(autouse=True)
def leave_streams() -> Iterator[None]:
    with rng.isolated():
        rng.seed_all(0)
        yield


def draw() -> tuple[float, float]:
    return random.random(), float(torch.rand(()))


def alone(seed: int, count: int) -> list[tuple[float, float]]:
    with rng.isolated():
        rng.seed_all(seed)
        return [draw() for _ in range(count)]


def test_each_worker_draws_what_its_own_process_would() -> None:
    contexts = ContextSwitch(3, seed=7)
    contexts.start()
    drawn: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    for _ in range(3):
        for rank in (0, 1, 2):
            contexts.enter(rank)
            drawn[rank].append(draw())
        contexts.leave()
    assert drawn == {rank: alone(7 + rank, 3) for rank in range(3)}


def test_outside_turns_the_job_wide_stream_goes_on() -> None:
    expected = alone(0, 3)
    contexts = ContextSwitch(2, seed=5)
    contexts.start()
    outside = [draw()]
    for rank in (0, 1):
        contexts.enter(rank)
        draw()
    contexts.leave()
    contexts.leave()
    outside += [draw(), draw()]
    assert outside == expected


def test_streams_start_once() -> None:
    contexts = ContextSwitch(1, seed=5)
    assert not contexts.started
    contexts.start()
    contexts.enter(0)
    first = draw()
    contexts.leave()
    contexts.start()
    contexts.enter(0)
    assert [first, draw()] == alone(5, 2)
    assert contexts.active == 0


def test_a_generator_is_one_object_with_a_state_per_worker() -> None:
    contexts = ContextSwitch(2, seed=0)
    generator = contexts.add_per_worker("noise", lambda rank: torch.Generator().manual_seed(100 + rank))
    assert isinstance(generator, torch.Generator)
    contexts.start()
    drawn: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(2):
        for rank in (0, 1):
            contexts.enter(rank)
            drawn[rank].append(float(torch.rand((), generator=generator)))
        contexts.leave()
    for rank in (0, 1):
        own = torch.Generator().manual_seed(100 + rank)
        assert drawn[rank] == [float(torch.rand((), generator=own)) for _ in range(2)]


def test_a_per_worker_object_is_switched() -> None:
    contexts = ContextSwitch(2, seed=0)
    memory = contexts.add_per_worker("memory", dict)
    contexts.start()
    for rank in (0, 1):
        contexts.enter(rank)
        memory["rank"] = rank
        memory.update(twice=2 * rank)
    for rank in (0, 1):
        contexts.enter(rank)
        assert (memory["rank"], memory["twice"], len(memory), "rank" in memory) == (rank, 2 * rank, 2, True)
        assert list(memory) == ["rank", "twice"]
        del memory["twice"]
        assert dict(memory) == {"rank": rank}
        memory.clear()
        assert not memory
    contexts.leave()


def test_a_per_worker_module_can_be_called_and_set() -> None:
    contexts = ContextSwitch(2, seed=0)
    layer = contexts.add_per_worker("layer", lambda: torch.nn.Linear(1, 1))
    contexts.start()
    contexts.enter(1)
    layer.tag = "mine"
    assert layer(torch.ones(1)).shape == (1,)
    assert layer.tag == "mine"
    assert layer  # an object without a length is true, as it would be bare
    contexts.enter(0)
    assert not hasattr(layer, "tag")
    contexts.leave()


def test_factories_start_from_the_same_random_state_and_leave_the_callers() -> None:
    contexts = ContextSwitch(3, seed=0)
    expected = alone(0, 1)
    made: list[float] = []
    contexts.add_per_worker("x", lambda: made.append(random.random()) or {})
    assert len(set(made)) == 1
    assert [draw()] == expected


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (lambda rank: {"rank": rank}, {"rank": 1}),
        (lambda rank=9: {"rank": rank}, {"rank": 9}),
        (lambda **options: options, {}),
        (dict, {}),
    ],
)
def test_a_factory_gets_the_rank_if_it_asks(factory: Any, expected: dict[str, int]) -> None:
    contexts = ContextSwitch(2, seed=0)
    made = contexts.add_per_worker("x", factory)
    contexts.start()
    contexts.enter(1)
    assert dict(made) == expected
    contexts.leave()


def test_state_moves_a_worker_to_another_process() -> None:
    def make() -> tuple[ContextSwitch, Any, torch.Generator, Any]:
        contexts = ContextSwitch(2, seed=3)
        memory = contexts.add_per_worker("memory", dict)
        generator = contexts.add_per_worker("noise", lambda rank: torch.Generator().manual_seed(rank))
        layer = contexts.add_per_worker("layer", lambda: torch.nn.Linear(1, 1))
        contexts.start()
        return contexts, memory, generator, layer

    def turn(made: tuple[ContextSwitch, Any, torch.Generator, Any]) -> tuple[Any, ...]:
        contexts, memory, generator, layer = made
        contexts.enter(1)
        memory["seen"] = memory["seen"] + 1 if "seen" in memory else 1
        with torch.no_grad():
            layer.weight.add_(1)
        result = draw(), memory["seen"], float(torch.rand((), generator=generator)), layer.weight.item()
        contexts.leave()
        return result

    old = make()
    turn(old)
    state = old[0].state_of(1)
    new = make()
    new[0].load_state_of(1, {**state, "objects": {name: dict(value) for name, value in state["objects"].items()}})
    assert turn(new) == turn(old)


class Moving:
    """Contexts of three workers, with everything in them that can change."""

    def __init__(self) -> None:
        self.contexts = ContextSwitch(3, seed=3)
        self.memory: Any = self.contexts.add_per_worker("memory", dict)
        self.layer: Any = self.contexts.add_per_worker("layer", lambda: torch.nn.Linear(1, 1))
        self.noise: Any = self.contexts.add_per_worker("noise", lambda rank: torch.Generator().manual_seed(rank))
        self.contexts.start()

    def turn(self, rank: int) -> list[float]:
        self.contexts.enter(rank)
        self.memory["seen"] = self.memory.get("seen", 0) + 1
        with torch.no_grad():
            self.layer.weight.add_(rank + 1)
        drawn = [*draw(), float(np.random.randn()), float(torch.rand((), generator=self.noise)), self.memory["seen"]]
        return [*drawn, self.layer.weight.item()]

    def state(self) -> dict[str, Any]:
        return dict(flat_state({rank: self.contexts.state_of(rank) for rank in range(3)}))

    def copy(self) -> Moving:
        """Another executor, which knows what this one knows."""
        other = Moving()
        for rank in range(3):
            state = self.contexts.state_of(rank)
            objects = {name: dict(value) for name, value in state["objects"].items()}
            other.contexts.load_state_of(rank, {**state, "objects": objects})
        return other


def same_state(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return list(a) == list(b) and all(
        torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a
    )


def test_a_step_is_done_again_from_where_it_began() -> None:
    one = Moving()
    one.contexts.mark(shared=True)
    one.turn(0)
    one.contexts.leave()
    one.contexts.adopt(0, one.contexts.changes_of(0), here=True)
    one.contexts.mark(shared=True)
    before, outside = one.state(), rng.capture()
    first = [one.turn(rank) for rank in range(3)]
    one.contexts.rewind()
    assert one.contexts.active is None
    assert same_state(one.state(), before)
    assert rng.capture().changes_since(outside) == [None] * 4
    assert [one.turn(rank) for rank in range(3)] == first
    one.contexts.leave()


def test_a_rewind_outside_turns_and_one_in_the_middle_of_a_turn_are_the_same() -> None:
    one = Moving()
    one.contexts.mark(shared=True)
    before = one.state()
    one.turn(1)
    one.contexts.leave()
    one.contexts.rewind()
    assert same_state(one.state(), before)
    one.turn(2)
    one.contexts.rewind()
    assert same_state(one.state(), before)


@pytest.mark.parametrize("mine", [(0,), (1, 2), (0, 1, 2), ()])
def test_changes_make_another_executors_contexts_the_same(mine: tuple[int, ...]) -> None:
    """Two executors, two steps: `mine` live on the first, the rest on the second, and each adopts from the other."""
    one = Moving()
    two, reference = one.copy(), one.copy()
    theirs = [rank for rank in range(3) if rank not in mine]
    for _ in range(2):
        for executor in (one, two):
            executor.contexts.mark(shared=True)
        for executor, ranks in ((one, mine), (two, theirs)):
            for rank in ranks:
                executor.turn(rank)
            executor.contexts.leave()
        for rank in range(3):
            changes = (one if rank in mine else two).contexts.changes_of(rank)
            one.contexts.adopt(rank, changes, here=rank in mine)
            two.contexts.adopt(rank, changes, here=rank not in mine)
            reference.turn(rank)
        reference.contexts.leave()
    assert same_state(one.state(), reference.state())
    assert same_state(two.state(), reference.state())


def test_a_turn_that_changed_nothing_says_nothing() -> None:
    one = Moving()
    one.contexts.mark(shared=True)
    one.contexts.enter(0)
    one.contexts.leave()
    assert set(one.contexts.changes_of(0)) == {None}


def test_base_seeds_are_drawn_for_all_workers_and_from_no_other_stream() -> None:
    one, outside = Moving(), rng.capture()
    reference = one.copy()
    seeds = one.contexts.draw_base_seeds()
    assert rng.capture().changes_since(outside) == [None] * 4
    for rank in range(3):
        reference.contexts.enter(rank)
        assert iter(torch.utils.data.DataLoader([1, 2]))._base_seed == seeds[rank]
    reference.contexts.leave()
    assert same_state(one.state(), reference.state())
