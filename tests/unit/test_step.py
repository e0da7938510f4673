"""One process and, on threads, several: a whole step against gradients computed by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from isoscale.core.audit import AuditSample
from isoscale.core.context import ContextSwitch
from isoscale.core.engine import Recovery, StepEngine, SuspectedError
from isoscale.core.reduction.exchange import ExchangeBrokenError, LocalExchange
from isoscale.core.reduction.orders import ring_sum, tree_sum
from isoscale.core.rules import Turn
from isoscale.core.seal import Sealed
from isoscale.core.streams import rng
from isoscale.core.tracked import TrackedModel
from isoscale.errors import TurnRuleError
from isoscale.runtime.training.step import NO_BATCH, Step
from isoscale.types import Order, Placement
from tests.unit.simulated import Meeting, SimulatedExchange, same_bits


@pytest.fixture(autouse=True)
def leave_streams() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with rng.isolated():
        rng.seed_all(0)
        yield
    torch.set_num_threads(threads)


def make_engine(exchange: Any, *modules: nn.Module, order: Order = "ddp", **options: Any) -> StepEngine:
    n = exchange.placement.num_logical_workers
    engine = StepEngine(exchange, ContextSwitch(n, 5), Turn())
    settings = {"find_unused_parameters": False, "broadcast_buffers": True, "bucket_cap_mb": 0.0001} | options
    for i, module in enumerate(modules):
        engine.models.append(TrackedModel(f"model-{i}", module, engine.turn, exchange, order=order, **settings))
    engine.contexts.start()
    return engine


def make_step(engine: StepEngine, batches: Any = None, *, training: bool = True) -> Step:
    def fetch(rank: int) -> Any:
        return batch(rank) if batches is None else batches[rank]

    return Step(
        engine,
        fetch,
        lambda tally: engine.finish(tally, digest="", stop=False),
        lambda sealed: sealed,
        training=training,
        position="p",
    )


def batch(rank: int) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(rank))


def net() -> nn.Module:
    """Always the same weights, also on threads, which share the global streams."""
    module, generator = nn.Sequential(nn.Linear(3, 17), nn.Tanh(), nn.Linear(17, 2)), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return module


def run(engine: StepEngine, module: nn.Module, **options: Any) -> Step:
    step = make_step(engine, **options)
    for x in step:
        module(x).square().sum().backward()
    return step


def by_hand(n: int, order: Order, layout: list[tuple[int, ...]]) -> list[torch.Tensor]:
    module = net()
    params = list(module.parameters())
    grads = [torch.autograd.grad(module(batch(rank)).square().sum(), params) for rank in range(n)]
    out: dict[int, torch.Tensor] = {}
    for members in layout:
        flats = [torch.cat([grads[rank][i].reshape(-1) for i in members]) for rank in range(n)]
        total = ring_sum([f * (1 / n) for f in flats]) if order == "ddp" else tree_sum(flats) * (1 / n)
        parts = total.split([params[i].numel() for i in members])
        out |= {i: part.view(params[i].shape) for i, part in zip(members, parts, strict=True)}
    return [out[i] for i in range(len(params))]


def grads_of(module: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def all_same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(same_bits(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("order", ["ddp", "tree"])
@pytest.mark.parametrize("n", [1, 3, 4])
def test_grad_is_the_ordered_average_before_and_after_the_rebuild(n: int, order: Order) -> None:
    module = net()
    engine = make_engine(LocalExchange(n), module, order=order)
    run(engine, module)
    assert all_same(grads_of(module), by_hand(n, order, [(0, 1, 2, 3)]))
    layout = engine.models[0].sync.layout
    assert layout.final
    assert len(layout.buckets) > 1
    module.zero_grad()
    run(engine, module)
    assert all_same(grads_of(module), by_hand(n, order, [b.params for b in layout.buckets]))


@pytest.mark.parametrize("order", ["ddp", "tree"])
@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("shares", [(1, 3), (2, 1, 1)])
def test_any_placement_gives_the_same_two_steps(shares: tuple[int, ...], overlaps: bool, order: Order) -> None:
    def two_steps(exchange: Any) -> list[torch.Tensor]:
        module = net()
        engine = make_engine(exchange, module, order=order)
        run(engine, module)
        with torch.no_grad():
            for p in module.parameters():
                p.sub_(p.grad)
        module.zero_grad()
        run(engine, module)
        return [*grads_of(module), *(p.detach() for p in module.parameters())]

    alone = two_steps(LocalExchange(sum(shares)))
    for result in Meeting(Placement(shares=shares)).run(two_steps, overlaps=overlaps):
        assert all_same(result, alone)


def test_workers_draw_from_their_own_streams() -> None:
    module = net()
    engine = make_engine(LocalExchange(3), module)
    drawn = []
    for x in make_step(engine):
        drawn.append(torch.rand(()).item())
        module(x).sum().backward()
    with rng.isolated():
        expected = []
        for rank in range(3):
            rng.seed_all(5 + rank)
            expected.append(torch.rand(()).item())
    assert drawn == expected


@pytest.mark.parametrize("shares", [(3,), (1, 2), (2, 1)])
def test_worker_zeros_buffers_reach_everybody(shares: tuple[int, ...]) -> None:
    def three_steps(exchange: Any) -> list[torch.Tensor]:
        module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
        module.register_buffer("flag", torch.tensor(True))
        engine = make_engine(exchange, module)
        for i in range(3):
            if i == 2:
                module[0].eval()  # the expected message is longer than needed now
            run(engine, module)
            module.zero_grad()
        return list(module.buffers())

    reference = nn.BatchNorm1d(3)
    for _ in range(2):
        reference(batch(0))
    results = Meeting(Placement(shares=shares)).run(three_steps) if len(shares) > 1 else [three_steps(LocalExchange(3))]
    for flag, mean, variance, count in results:
        assert flag.item() is True
        assert count.item() == 2
        assert same_bits(mean, reference.running_mean)
        assert same_bits(variance, reference.running_var)


@pytest.mark.parametrize("shares", [(3,), (2, 1)])
def test_unused_parameters_ride_with_the_exchange(shares: tuple[int, ...]) -> None:
    def one_step(exchange: Any) -> list[float | None]:
        modules = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(3)])

        class Pick(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = modules

            def forward(self, which: int) -> torch.Tensor:
                return self.layers[which](torch.full((1, 1), 3.0))

        module = Pick()
        engine = make_engine(exchange, module, find_unused_parameters=True)
        for which in make_step(engine, [0, 0, 2]):
            module(which).sum().backward()
        return [None if m.weight.grad is None else m.weight.grad.item() for m in modules]

    expected = [ring_sum([torch.tensor([v]) * (1 / 3) for v in (3.0, 3.0, 0.0)]).item(), None, 1.0]
    results = Meeting(Placement(shares=shares)).run(one_step) if len(shares) > 1 else [one_step(LocalExchange(3))]
    assert results == [expected] * len(shares)


def test_totals_and_means_after_the_inner_loop() -> None:
    module = net()
    engine = make_engine(LocalExchange(2), module)
    step = make_step(engine)
    for rank, x in enumerate(step):
        module(x).sum().backward()
        step.log(loss=float(rank))
        step.sum(seen=len(x))
        with pytest.raises(TurnRuleError, match="after the inner loop"):
            step.totals  # noqa: B018
        assert not step.complete
    assert (step.complete, step.totals, step.means) == (True, {"seen": 8}, {"loss": 0.5})
    for call in (lambda: step.log(x=1), lambda: step.sum(x=1)):
        with pytest.raises(TurnRuleError, match="outside a turn"):
            call()


def test_evaluation_leaves_gradients_and_shows_worker_zeros_buffers() -> None:
    module = nn.BatchNorm1d(3)
    engine = make_engine(LocalExchange(3), module)
    module.eval()
    seen = []
    step = make_step(engine, [batch(0), batch(1), NO_BATCH], training=False)
    for x in step:
        with torch.no_grad():
            seen.append(module(x))
            step.sum(n=len(x))
    assert len(seen) == 2
    assert step.totals == {"n": 8}
    assert module.weight.grad is None
    assert engine.contexts.active is None


def test_a_turn_without_backward() -> None:
    module = net()
    engine = make_engine(LocalExchange(2), module)
    turns = iter(make_step(engine))
    module(next(turns))
    with pytest.raises(TurnRuleError, match="without backward"):
        next(turns)


def test_leaving_the_inner_loop_is_raised_at_the_next_occasion() -> None:
    module = net()
    engine = make_engine(LocalExchange(2), module)
    for x in make_step(engine):
        module(x).sum().backward()
        break
    with pytest.raises(TurnRuleError, match=r"test_step\.py:\d+: .*left before its last turn"):
        engine.before_optimizer_step()


def test_the_optimizer_may_not_step_in_a_turn() -> None:
    module = net()
    engine = make_engine(LocalExchange(1), module)
    for x in make_step(engine):
        module(x).sum().backward()
        with pytest.raises(TurnRuleError, match=r"optimizer\.step"):
            engine.before_optimizer_step()
    engine.before_optimizer_step()


def test_a_step_is_iterated_once() -> None:
    module = net()
    step = run(make_engine(LocalExchange(1), module), module)
    with pytest.raises(TurnRuleError, match="twice"):
        iter(step)


def test_backward_outside_a_turn_is_found() -> None:
    module = net()
    engine = make_engine(LocalExchange(1), module)
    module(batch(0)).sum().backward()
    with pytest.raises(TurnRuleError, match="outside a training turn"):
        run(engine, module)


def test_an_attribute_that_forward_changes_is_found() -> None:
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x)

    module = Counting(3, 1)
    with pytest.raises(TurnRuleError, match=r"Counting\.calls"):
        run(make_engine(LocalExchange(2), module), module)


def test_accumulate_names_the_users_line() -> None:
    step = make_step(make_engine(LocalExchange(1), net()))
    with pytest.raises(TurnRuleError) as caught, step.accumulate():
        pass
    assert caught.value.location.startswith("test_step.py:")


def test_accumulate_ends_with_its_block() -> None:
    module = net()
    engine = make_engine(LocalExchange(1), module)
    step = make_step(engine)
    for x in step:
        with step.accumulate():
            module(x).sum().backward()
            assert engine.turn.accumulating
        assert not engine.turn.accumulating
        module(x).sum().backward()
    once = torch.autograd.grad(module(batch(0)).sum(), list(module.parameters()))
    assert all_same(grads_of(module), [g + g for g in once])


def test_of_several_models_those_that_took_part_are_averaged() -> None:
    first, second = net(), net()
    engine = make_engine(LocalExchange(2), first, second)
    for x in make_step(engine):
        first(x).square().sum().backward()
    assert all_same(grads_of(first), by_hand(2, "ddp", [(0, 1, 2, 3)]))
    assert grads_of(second) == []


def test_a_model_that_only_some_workers_used_is_refused() -> None:
    def work(exchange: SimulatedExchange) -> None:
        modules = net(), net()
        engine = make_engine(exchange, *modules)
        for x in make_step(engine):
            modules[exchange.index](x).sum().backward()

    for error in Meeting(Placement(shares=(1, 1))).run(work):
        assert isinstance(error, TurnRuleError)
        assert "only 1 of the logical workers" in str(error)


@pytest.mark.parametrize("shares", [(3,), (1, 2)])
def test_evaluation_and_the_end_see_buffers_that_changed_outside_turns(shares: tuple[int, ...]) -> None:
    """Statistics that were estimated anew between training and evaluation are worker 0's from then on."""

    def work(exchange: Any) -> tuple[torch.Tensor, ...]:
        module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
        engine = make_engine(exchange, module)
        run(engine, module)
        with torch.no_grad():
            module(batch(9))
            wanted = [b.clone() for b in module.buffers()]
        module.eval()
        for _ in make_step(engine, training=False):
            assert all_same(list(module.buffers()), wanted)
        module.train()
        with torch.no_grad():
            module(batch(9))
            wanted += [b.clone() for b in module.buffers()]
        engine.seal_end("end", "")
        return (*wanted, *module.buffers())

    results = Meeting(Placement(shares=shares)).run(work) if len(shares) > 1 else [work(LocalExchange(3))]
    for result in results:
        assert all_same(list(result[3:6]), list(result[6:9]))
        assert result[2].item() == 2
        assert result[5].item() == 3


class Witness:
    """`core.engine.Peers` that only notes why it is needed."""

    def __init__(self) -> None:
        self.heard: list[ExchangeBrokenError] = []

    def recover(self, broken: ExchangeBrokenError) -> Recovery:
        self.heard.append(broken)
        raise broken


def audited_step(exchange: Any, *, always: bool) -> tuple[StepEngine, list[Sealed]]:
    """A step whose turns are all run on a second executor; executor 1 computes other bits, at first or always."""
    module, sealed = net(), list[Sealed]()
    engine = make_engine(exchange, module)
    engine.peers, engine.audit_sample = Witness(), AuditSample(seed=3, turns=1.0)
    step = Step(
        engine,
        batch,
        lambda tally: engine.finish(tally, digest="", stop=False),
        lambda one: sealed.append(one) or one,  # type: ignore[func-returns-value]
        training=True,
        position="p",
    )
    with contextlib.suppress(ExchangeBrokenError):
        for x in step:
            is_again = step._audits is not None
            factor = 1.5 if exchange.index == 1 and (always or not is_again) else 1.0
            (module(x).square().sum() * factor).backward()
    return engine, sealed


def test_an_executor_that_computes_other_bits_is_named_to_whoever_finds_the_others() -> None:
    for engine, sealed in Meeting(Placement(shares=(1, 1, 1))).run(lambda e: audited_step(e, always=True)):
        assert sealed == [], "nothing of that step is in force"
        assert isinstance(engine.peers, Witness)
        (broken,) = engine.peers.heard
        assert isinstance(broken, SuspectedError)
        assert broken.index == 1
        assert broken.reason.startswith("gradients of logical worker")


def test_bits_that_differed_once_and_not_again_are_told_with_the_seal() -> None:
    for engine, sealed in Meeting(Placement(shares=(1, 1, 1))).run(lambda e: audited_step(e, always=False)):
        assert isinstance(engine.peers, Witness)
        assert engine.peers.heard == []
        assert [one.doubt.partition("] ")[2] for one in sealed] == ["gave other bits once, and not again"]
