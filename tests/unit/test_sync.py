from __future__ import annotations

from typing import Any

import pytest
import torch

from isoscale.core.reduction.buckets import BucketCaps, rebuilt_layout
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.reduction.orders import ring_sum, tree_sum
from isoscale.core.reduction.sync import GradientSync
from isoscale.types import Order, Placement
from tests.unit.simulated import Meeting, SimulatedExchange, same_bits

SHAPES = [(7,), (3, 5), (), (11, 2), (64,)]
#: so small that the rebuilt layout has several buckets
CAPS = BucketCaps(100, 200)


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES]


def gradients(rank: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [(torch.randn(shape, generator=generator) * 100).to(dtype) for shape in SHAPES]


def make(exchange: Any, order: Order, params: list[torch.nn.Parameter] | None = None, **options: Any) -> GradientSync:
    options = {"find_unused": False, **options}
    return GradientSync(params or parameters(), CAPS, order=order, exchange=exchange, **options)


def one_step(sync: GradientSync, ranks: range, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    sync.begin_step()
    for rank in ranks:
        sync.take(rank, gradients(rank, dtype))
    return [r.clone() for r in sync.finish()]


def expected(
    n: int, order: Order, buckets: list[tuple[int, ...]], dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """The average by the formulas: buckets as flat concatenations, N addends, one order."""
    out: dict[int, torch.Tensor] = {}
    for members in buckets:
        flats = [torch.cat([gradients(rank, dtype)[i].reshape(-1) for i in members]) for rank in range(n)]
        if order == "ddp":
            total = ring_sum([flat * (1 / n) for flat in flats])
        elif dtype == torch.float16:
            total = tree_sum([flat * (1 / n) for flat in flats])
        else:
            total = tree_sum(flats) * (1 / n)
        parts = total.split([gradients(0)[i].numel() for i in members])
        out |= {i: part.view(SHAPES[i]) for i, part in zip(members, parts, strict=True)}
    return [out[i] for i in range(len(SHAPES))]


def all_same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(same_bits(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("order", ["ddp", "tree"])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_one_process_gives_the_ordered_average(n: int, order: Order, dtype: torch.dtype) -> None:
    params = parameters(dtype)
    sync = make(LocalExchange(n), order, params)
    assert all_same(one_step(sync, range(n), dtype), expected(n, order, [(0, 1, 2, 3, 4)], dtype))
    sync.rebuild([4, 3, 2, 1, 0])
    layout = [bucket.params for bucket in sync.layout.buckets]
    assert len(layout) > 1
    assert all_same(one_step(sync, range(n), dtype), expected(n, order, layout, dtype))


def test_the_layout_decides_the_bits_of_the_ring() -> None:
    assert not all_same(expected(3, "ddp", [(0, 1, 2, 3, 4)]), expected(3, "ddp", [(4,), (3,), (2, 1, 0)]))


@pytest.mark.parametrize("order", ["ddp", "tree"])
@pytest.mark.parametrize("shares", [(1, 3), (2, 2), (3, 1, 1), (1, 1, 1, 1, 1)])
def test_any_split_gives_the_bits_of_one_process(shares: tuple[int, ...], order: Order) -> None:
    placement = Placement(shares=shares)

    def work(exchange: SimulatedExchange) -> list[torch.Tensor]:
        sync = make(exchange, order)
        sync.rebuild([4, 3, 2, 1, 0])
        return one_step(sync, placement.ranks_of(exchange.index))

    alone = make(LocalExchange(sum(shares)), order)
    alone.rebuild([4, 3, 2, 1, 0])
    reference = one_step(alone, range(sum(shares)))
    for results in Meeting(placement).run(work):
        assert all_same(results, reference)


@pytest.mark.parametrize("order", ["ddp", "tree"])
def test_buckets_may_leave_while_the_last_turn_still_runs(order: Order) -> None:
    placement = Placement(shares=(2, 1))

    def work(exchange: SimulatedExchange) -> tuple[list[torch.Tensor], list[int]]:
        params = parameters()
        sync = make(exchange, order, params)
        sync.rebuild([4, 3, 2, 1, 0])
        *earlier, last = placement.ranks_of(exchange.index)
        sync.begin_step()
        for rank in earlier:
            sync.take(rank, gradients(rank))
        assert sync.arm(last, lambda: True)
        submitted = []
        for i in (4, 3, 2, 1, 0):
            sync.ready(i, gradients(last)[i])
            submitted.append(exchange.submitted)
        return [r.clone() for r in sync.finish()], submitted

    layout = [b.params for b in rebuilt_layout(parameters(), [4, 3, 2, 1, 0], CAPS).buckets]
    for results, submitted in Meeting(placement).run(work, overlaps=True):
        assert all_same(results, expected(3, order, layout))
        assert submitted[0] == 1
        assert submitted[-1] == len(layout)


def test_buckets_leave_in_order_even_if_they_fill_out_of_order() -> None:
    def work(exchange: SimulatedExchange) -> list[int]:
        params = parameters()
        sync = make(exchange, "ddp", params)
        sync.rebuild([4, 3, 2, 1, 0])
        sync.begin_step()
        sync.arm(exchange.index, lambda: True)
        submitted = []
        for i in (0, 1, 2, 3, 4):
            sync.ready(i, gradients(exchange.index)[i])
            submitted.append(exchange.submitted)
        sync.finish()
        return submitted

    for submitted in Meeting(Placement(shares=(1, 1))).run(work, overlaps=True):
        assert submitted[:4] == [0, 0, 0, 0]
        assert submitted[4] > 1


@pytest.mark.parametrize("order", ["ddp", "tree"])
def test_unused_parameters_hold_back_their_bucket_only(order: Order) -> None:
    placement, unused = Placement(shares=(1, 2)), 4

    def contribution(rank: int) -> list[torch.Tensor]:
        grads = gradients(rank)
        return [*grads[:unused], torch.zeros_like(grads[unused])] if rank == 2 else grads

    def work(exchange: SimulatedExchange, *, early: bool) -> tuple[list[torch.Tensor], int, int]:
        sync = make(exchange, order, find_unused=True)
        assert sync.layout.final
        *earlier, last = placement.ranks_of(exchange.index)
        sync.begin_step()
        for rank in earlier if early else (*earlier, last):
            sync.take(rank, contribution(rank))
        before = exchange.submitted
        if early:
            assert sync.arm(last, lambda: True)
            reached = [i for i in (4, 3, 2, 1, 0) if last != 2 or i != unused]
            for i in reached:
                sync.ready(i, contribution(last)[i])
            before = exchange.submitted
            sync.complete({i: contribution(last)[i] for i in range(5) if i not in reached})
        after = exchange.submitted
        return [r.clone() for r in sync.finish()], before, after

    late = Meeting(placement).run(lambda exchange: work(exchange, early=False), overlaps=True)
    early = Meeting(placement).run(lambda exchange: work(exchange, early=True), overlaps=True)
    for (results, before, after), (wanted, *_) in zip(early, late, strict=True):
        assert all_same(results, wanted)
        assert before <= after == len(make(LocalExchange(3), order, find_unused=True).layout.buckets)
    assert early[1][1] < early[1][2]


def test_a_final_layout_is_not_rebuilt() -> None:
    sync = make(LocalExchange(2), "ddp")
    sync.rebuild([4, 3, 2, 1, 0])
    layout = sync.layout
    sync.rebuild([0, 1, 2, 3, 4])
    assert sync.layout is layout


@pytest.mark.parametrize("order", ["ddp", "tree"])
@pytest.mark.parametrize("shares", [(4,), (1, 3)])
def test_sums_keep_denormals_whatever_the_user_switched_on(shares: tuple[int, ...], order: Order) -> None:
    """Two normal numbers cancel to a denormal. Four workers: scaling by 1/4 rounds nothing."""
    tiny = torch.finfo(torch.float32).smallest_normal
    values = [6.0 * tiny, -5.0 * tiny, 0.0, 0.0]

    def work(exchange: Any) -> list[float]:
        params = [torch.nn.Parameter(torch.zeros(8))]
        torch.set_flush_denormal(True)
        try:
            sync = GradientSync(params, CAPS, find_unused=True, order=order, exchange=exchange)
            sync.begin_step()
            for rank in exchange.placement.ranks_of(exchange.index):
                sync.take(rank, [torch.full((8,), values[rank])])
            result = sync.finish()[0].clone()
        finally:
            torch.set_flush_denormal(False)
        return result.tolist()

    if not torch.set_flush_denormal(False):
        pytest.skip("this CPU cannot flush denormals")
    placement = Placement(shares=shares)
    results = Meeting(placement).run(work) if len(shares) > 1 else [work(LocalExchange(4))]
    assert results == [[0.25 * tiny] * 8] * len(shares)
