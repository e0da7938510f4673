from __future__ import annotations

import pytest
import torch

from isoscale.core.exchange import LocalExchange, denormals_kept
from isoscale.core.gradients import FlatBucket, RingBucket, TreeBucket
from isoscale.core.reduce import Subtree, ring_sum
from tests.unit.simulated import addends_of, one_bucket, same_bits


def test_all_workers_live_in_one_place() -> None:
    exchange = LocalExchange(5)
    assert exchange.placement.shares == (5,)
    assert (exchange.index, exchange.overlaps, exchange.native) == (0, False, False)


def test_ring_is_the_ordered_sum() -> None:
    torch.manual_seed(0)
    grads = {rank: [torch.randn(7), torch.randn(3, 5)] for rank in range(3)}
    ring = RingBucket(FlatBucket(one_bucket(grads[0]), grads[0]), range(3), 3)
    total = torch.cat([part.reshape(-1) for part in LocalExchange(3).ring(ring, addends_of(grads, range(3)))])
    assert same_bits(total, ring_sum([torch.cat([g.reshape(-1) for g in grads[rank]]) for rank in range(3)]))


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_tree_scales_the_root(scale: float) -> None:
    params = [torch.empty(2)]
    bucket = TreeBucket(FlatBucket(one_bucket(params), params), [Subtree(0, 2)], 2)
    (total,) = LocalExchange(2).tree(bucket, {Subtree(0, 2): [torch.tensor([2.0, 3.0])]}, scale)
    assert total.tolist() == [2.0 * scale, 3.0 * scale]


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
