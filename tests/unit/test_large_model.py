"""A model whose buckets are large: sums are made as turns end, and `.grad` is lent memory of a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from isoscale.core.context import ContextSwitch
from isoscale.core.engine import StepEngine
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.reduction.orders import ring_sum, tree_sum
from isoscale.core.rules import Turn
from isoscale.core.tracked import TrackedModel
from isoscale.runtime.training.step import Step
from isoscale.types import Order, Placement
from tests.unit.simulated import Meeting, SimulatedExchange, same_bits

WIDTH = 320


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def net(layers: int = 3) -> nn.Module:
    """Layers of 400 KB each and biases: three of them make a bucket of more than 1 MiB."""
    generator = torch.Generator().manual_seed(1)
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / WIDTH**0.5)
    return module


def batch(rank: int, step: int = 0) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def engine_for(exchange: Any, module: nn.Module, order: Order) -> StepEngine:
    n = exchange.placement.num_logical_workers
    engine = StepEngine(exchange, ContextSwitch(n, 5), Turn())
    model = TrackedModel(
        "model",
        module,
        engine.turn,
        exchange,
        order=order,
        find_unused_parameters=False,
        broadcast_buffers=True,
        bucket_cap_mb=None,
    )
    engine.models.append(model)
    engine.contexts.start()
    return engine


def turns(engine: StepEngine, module: nn.Module, number: int = 0) -> Any:
    """The step's turns; the caller may look at each."""
    step = Step(
        engine,
        lambda rank: batch(rank, number),
        lambda tally: engine.finish(tally, digest="", stop=False),
        lambda sealed: sealed,
        training=True,
        position=f"step {number}",
    )
    for x in step:
        module(x).square().mean().backward()
        yield


def run(engine: StepEngine, module: nn.Module, number: int = 0) -> list[torch.Tensor]:
    for _ in turns(engine, module, number):
        pass
    return [p.grad for p in module.parameters() if p.grad is not None]


def by_hand(n: int, order: Order, layout: list[tuple[int, ...]], number: int) -> list[torch.Tensor]:
    per_rank = []
    for rank in range(n):
        module = net()
        module(batch(rank, number)).square().mean().backward()
        per_rank.append([p.grad for p in module.parameters() if p.grad is not None])
    out = {}
    for members in layout:
        flats = [torch.cat([grads[i].reshape(-1) for i in members]) for grads in per_rank]
        total = ring_sum([f * (1 / n) for f in flats]) if order == "ddp" else tree_sum(flats) * (1 / n)
        parts = total.split([per_rank[0][i].numel() for i in members])
        out |= {i: part.view(per_rank[0][i].shape) for i, part in zip(members, parts, strict=True)}
    return [out[i] for i in range(len(per_rank[0]))]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(same_bits(x, y) for x, y in zip(a, b, strict=True))


def layout_of(engine: StepEngine) -> list[tuple[int, ...]]:
    return [bucket.params for bucket in engine.models[0].sync.layout.buckets]


@pytest.mark.parametrize("order", ["ddp", "tree"])
@pytest.mark.parametrize("n", [2, 3, 7])
def test_several_steps_of_one_process_are_the_formula(n: int, order: Order) -> None:
    module = net()
    engine = engine_for(LocalExchange(n), module, order)
    for number in range(3):
        layout = layout_of(engine)
        assert same(run(engine, module, number), by_hand(n, order, layout, number))
        module.zero_grad()


@pytest.mark.parametrize("order", ["ddp", "tree"])
@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("shares", [(1, 3), (3, 2), (2, 1, 2)])
def test_any_placement_gives_the_bits_of_one_process(shares: tuple[int, ...], overlaps: bool, order: Order) -> None:
    def work(exchange: Any) -> list[torch.Tensor]:
        module = net()
        engine = engine_for(exchange, module, order)
        found = []
        for number in range(2):
            found += [g.clone() for g in run(engine, module, number)]
            module.zero_grad()
        return found

    reference = work(LocalExchange(sum(shares)))
    for results in Meeting(Placement(shares=shares)).run(work, overlaps=overlaps):
        assert same(results, reference)


@pytest.mark.parametrize("order", ["ddp", "tree"])
def test_gradients_that_somebody_keeps_stay_as_they_are(order: Order) -> None:
    """The memory that was lent is not used again as long as anybody can see it."""
    module = net()
    engine = engine_for(LocalExchange(3), module, order)
    kept, copies = [], []
    for number in range(4):
        grads = run(engine, module, number)
        kept.append([grads[0], grads[2][5:], grads[4].t()])
        copies.append([t.clone() for t in kept[-1]])
        del grads
        module.zero_grad()
    for tensors, values in zip(kept, copies, strict=True):
        assert same(tensors, values)


@pytest.mark.parametrize("order", ["ddp", "tree"])
@pytest.mark.parametrize("set_to_none", [None, False])
def test_gradients_that_are_not_cleared_are_part_of_the_next_step(order: Order, set_to_none: bool | None) -> None:
    """Bit for bit as with copies, which small parameters are given."""
    module = net()
    engine = engine_for(LocalExchange(2), module, order)
    expected: list[torch.Tensor] = []
    for number in range(3):
        layout = layout_of(engine)
        found = run(engine, module, number)
        if set_to_none is None:
            expected = with_base(expected, order, layout, number)
        else:
            expected = by_hand(2, order, layout, number)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        if set_to_none is not None:
            module.zero_grad(set_to_none=set_to_none)


def with_base(base: list[torch.Tensor], order: Order, layout: list[tuple[int, ...]], number: int) -> list[torch.Tensor]:
    per_rank = []
    for rank in range(2):
        module = net()
        for p, b in zip(module.parameters(), base, strict=False):
            p.grad = b.clone()
        module(batch(rank, number)).square().mean().backward()
        per_rank.append([p.grad for p in module.parameters() if p.grad is not None])
    out = {}
    for members in layout:
        flats = [torch.cat([grads[i].reshape(-1) for i in members]) for grads in per_rank]
        total = ring_sum([f * 0.5 for f in flats]) if order == "ddp" else tree_sum(flats) * 0.5
        parts = total.split([per_rank[0][i].numel() for i in members])
        out |= {i: part.view(per_rank[0][i].shape) for i, part in zip(members, parts, strict=True)}
    return [out[i] for i in range(len(per_rank[0]))]


@pytest.mark.parametrize("order", ["ddp", "tree"])
@pytest.mark.parametrize("layers", [2, 3])
def test_memory_is_the_same_from_step_to_step(layers: int, order: Order) -> None:
    """Lent, given back, lent again: nothing is allocated anew where gradients are cleared."""
    module = net(layers)
    engine = engine_for(LocalExchange(3), module, order)
    places = []
    for number in range(5):
        grads = run(engine, module, number)
        places.append([grads[2 * i].data_ptr() for i in range(layers)])
        assert not any(g._is_view() for g in grads)
        del grads
        module.zero_grad()
    assert places[1] == places[2] == places[3] == places[4], "the layout is rebuilt after the first step only"
    assert all(address % 64 == 0 for address in places[1])
    memories = [bucket.memory for bucket in engine.models[0].sync._buckets]
    spans = [(m.flat.data_ptr(), m.flat.numel() * 4) for m in memories if m is not None]
    assert all(any(start <= place < start + size for start, size in spans) for place in places[-1])


def test_large_gradients_lie_in_the_memory_of_their_bucket() -> None:
    def work(exchange: SimulatedExchange) -> list[bool]:
        module = net()
        engine = engine_for(exchange, module, "ddp")
        grads = run(engine, module)
        module.zero_grad()
        grads = run(engine, module, 1)
        memories = [bucket.memory for bucket in engine.models[0].sync._buckets]
        spans = [(m.flat.data_ptr(), m.flat.numel() * 4) for m in memories if m is not None]
        return [any(start <= g.data_ptr() < start + size for start, size in spans) for g in grads]

    weights_and_biases = [True, False] * 3
    assert Meeting(Placement(shares=(2, 1))).run(work) == [weights_and_biases] * 2
