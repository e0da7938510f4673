from __future__ import annotations

import pytest
import torch

from isoscale.core.reduction.exchange import LocalExchange, denormals_kept
from isoscale.core.reduction.gradients import FlatBucket, TreeSums
from isoscale.core.reduction.orders import ring_sum
from tests.unit.simulated import addends_of, one_bucket, ring_of, same_bits


def test_all_workers_live_in_one_place() -> None:
    exchange = LocalExchange(5)
    assert exchange.placement.shares == (5,)
    assert (exchange.index, exchange.overlaps, exchange.native) == (0, False, False)


def test_ring_is_the_ordered_sum() -> None:
    torch.manual_seed(0)
    grads = {rank: [torch.randn(7), torch.randn(3, 5)] for rank in range(3)}
    slots = addends_of(grads, range(3))
    total = LocalExchange(3).ring(ring_of(grads[0], range(3), 3), slots, slots[0])
    assert same_bits(total.flat, ring_sum([torch.cat([g.reshape(-1) for g in grads[rank]]) for rank in range(3)]))


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_tree_scales_the_root(scale: float) -> None:
    params = [torch.empty(2)]
    sums = TreeSums(lambda: FlatBucket(one_bucket(params), params), range(2), 2)
    for rank in range(2):
        sums.put(rank, [torch.tensor([1.0, 1.5])])
    total = LocalExchange(2).tree(sums, None, scale)
    assert total.flat.tolist() == [2.0 * scale, 3.0 * scale]


def test_one_process_has_nobody_to_talk_to() -> None:
    exchange, payload = LocalExchange(2), torch.tensor([3])
    exchange.sum_int64(payload)
    exchange.broadcast([payload], 0)
    assert payload.tolist() == [3]
    assert exchange.gather_text("here") == ["here"]
    with pytest.raises(AssertionError):
        exchange.submit(lambda: None)
    with pytest.raises(AssertionError):
        exchange.all_reduce(payload)


def flushes() -> bool:
    return (torch.full((1,), 1e-40) * 1.0).item() == 0.0


@pytest.mark.parametrize("switched_on", [False, True])
def test_denormals_survive_and_the_users_switch_comes_back(switched_on: bool) -> None:
    if not torch.set_flush_denormal(switched_on):
        pytest.skip("this CPU cannot flush denormals")
    try:
        with denormals_kept():
            assert not flushes()
        assert flushes() is switched_on
        with pytest.raises(KeyError), denormals_kept():
            raise KeyError
        assert flushes() is switched_on
    finally:
        torch.set_flush_denormal(False)
