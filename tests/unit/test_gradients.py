from __future__ import annotations

import pytest
import torch

from isoscale.core.numerics.determinism import flushes_denormals
from isoscale.core.reduction.gradients import FlatBucket, TreeSums
from isoscale.core.reduction.orders import Subtree, ring_sum
from isoscale.core.reduction.prefixes import PrefixRing
from tests.unit.simulated import addends_of, one_bucket, ring_of, same_bits


def channels_last() -> torch.Tensor:
    return torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)


def memory_order(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.numel(),), (1,))


def test_views_lie_in_the_bucket_with_the_parameters_strides() -> None:
    params = [torch.empty(5), channels_last(), torch.empty(3, 2).t(), torch.empty(())]
    memory = FlatBucket(one_bucket(params), params)
    assert memory.flat.numel() == sum(p.numel() for p in params)
    for i, param in enumerate(params):
        memory.views[i].fill_(float(i))
        assert (memory.views[i].shape, memory.views[i].stride()) == (param.shape, param.stride())
    assert memory.flat.tolist() == [0.0] * 5 + [1.0] * 120 + [2.0] * 6 + [3.0]


def test_a_parameter_with_gaps_gets_the_contiguous_layout() -> None:
    params = [torch.empty(4, 6)[:, :3]]
    assert FlatBucket(one_bucket(params), params).views[0].is_contiguous()


def test_a_gradient_with_other_strides_is_placed_by_element() -> None:
    params = [channels_last()]
    memory = FlatBucket(one_bucket(params), params)
    grad = torch.randn(3, 2, 4, 5).transpose(0, 1)
    for fill in (memory.set, lambda grads: memory.set_scaled(grads, 1.0)):
        memory.flat.zero_()
        fill([grad])
        assert torch.equal(memory.views[0], grad)
        assert torch.equal(memory.flat, grad.permute(0, 2, 3, 1).reshape(-1))


def test_a_bucket_keeps_its_dtype() -> None:
    params = [torch.empty(3, dtype=torch.bfloat16)]
    assert FlatBucket(one_bucket(params), params).flat.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("numel", [500, 20_000])
def test_the_factor_is_not_rounded_to_the_tensors_dtype(dtype: torch.dtype, n: int, numel: int) -> None:
    """DDP's `mul_out` keeps 1/N in float32 for half types; `torch._foreach_mul_` does not."""
    values = (torch.randn(numel) * 100).to(dtype)
    memory = FlatBucket(one_bucket([values]), [values])
    memory.set_scaled([values], 1 / n)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert same_bits(memory.flat, (values.to(wide) * torch.tensor(1 / n, dtype=wide)).to(dtype))


@pytest.mark.parametrize("alone", [True, False])
def test_a_chunk_that_cuts_a_channels_last_parameter_follows_memory_order(alone: bool) -> None:
    params = [torch.empty(3), channels_last()]
    grads = {rank: [torch.randn(3), channels_last()] for rank in range(2)}
    ring = ring_of(params, range(2), 2)
    assert [(c.start, c.stop) for c in ring.chunks] == [(0, 62), (62, 123)]
    slots = addends_of(grads, range(2), params=params)
    if alone:
        total = ring.sum_in_place(slots)
    else:
        total = FlatBucket(one_bucket(params), params)
        for chunk in ring.chunks:
            ring.start(chunk, slots, total.flat)
            ring.come_home(chunk, slots, total.flat)
    for i, result in enumerate(total.views):
        assert result.stride() == params[i].stride()
        expected = memory_order(grads[0][i]) + memory_order(grads[1][i])
        assert same_bits(total.flat[0 if i == 0 else 3 :][: result.numel()], expected)


def test_a_walk_over_three_executors_step_by_step() -> None:
    """Chunk 2 of N = 4 is summed 1, 0, 3, 2; executors host {0}, {1, 2}, {3}."""
    params = [torch.empty(8)]
    blocks = (range(1), range(1, 3), range(3, 4))
    grads = {rank: [torch.full((8,), 10.0**rank)] for rank in range(4)}
    mine = [addends_of(grads, ranks) for ranks in blocks]
    totals = [torch.zeros(8) for _ in blocks]
    rings = [ring_of(params, ranks, 4) for ranks in blocks]
    chunk = rings[1].chunks[2]
    assert rings[1].starts_at(chunk) == 1
    here = slice(chunk.start, chunk.stop)
    rings[1].start(chunk, mine[1], totals[1])
    assert totals[1][here].tolist() == [10.0, 10.0]
    totals[0][here] = totals[1][here]
    rings[0].pass_through(chunk, mine[0], totals[0])
    assert totals[0][here].tolist() == [11.0, 11.0]
    totals[2][here] = totals[0][here]
    rings[2].pass_through(chunk, mine[2], totals[2])
    totals[1][here] = totals[2][here]
    rings[1].come_home(chunk, mine[1], totals[1])
    assert totals[1][here].tolist() == [1111.0, 1111.0]


def test_tree_sums_add_in_the_left_slot_and_use_memory_again() -> None:
    params = [torch.empty(2)]
    made: list[FlatBucket] = []

    def make() -> FlatBucket:
        made.append(FlatBucket(one_bucket(params), params))
        return made[-1]

    sums = TreeSums(make, range(4), 4)
    for step in range(3):
        sums.reset()
        grads = [[torch.full((2,), float(rank + step))] for rank in range(4)]
        sums.put(0, grads[0])
        sums.put(1, grads[1])
        assert list(sums.sums) == [Subtree(0, 2)]
        sums.put(2, grads[2])
        assert sorted(sums.sums) == [Subtree(0, 2), Subtree(2, 3)]
        sums.put(3, grads[3])
        assert sums.sums[Subtree(0, 4)].flat.tolist() == [6.0 + 4 * step] * 2
        assert [g[0].tolist() for g in grads] == [[float(rank + step)] * 2 for rank in range(4)], "only read"
    assert len(made) == 2


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16])
def test_prefixes_hold_no_more_than_the_order_demands(n: int) -> None:
    """Alone: (N - 1) / 2 copies beside the total. Chunks of equal size, so that pieces can be counted."""
    params = [torch.empty(4 * n)]
    total = FlatBucket(one_bucket(params), params)
    ring = PrefixRing(one_bucket(params), params, range(n), n, total)
    assert len(ring.chunks) == n
    for step in range(2):
        ring.begin()
        grads = [torch.randn(4 * n) for _ in range(n)]
        for rank in range(n):
            ring.take(rank, [grads[rank]], 1 / n)
        assert same_bits(ring.sum_in_place({}).flat, ring_sum([g * (1 / n) for g in grads])), step
    assert ring.num_held == n * (n - 1) / 2


def test_an_abandoned_step_leaves_nothing_in_the_prefixes() -> None:
    params, n = [torch.empty(40)], 4
    ring = PrefixRing(one_bucket(params), params, range(n), n, FlatBucket(one_bucket(params), params))
    grads = [torch.randn(40) for _ in range(n)]
    for turns in (1, 2, 3, 4):
        ring.begin()
        for rank in range(turns):
            ring.take(rank, [torch.full((40,), 7.0) if turns < n else grads[rank]], 0.25)
    assert same_bits(ring.sum_in_place({}).flat, ring_sum([g * 0.25 for g in grads]))


def test_a_chunk_may_cut_a_parameter_of_any_layout() -> None:
    """Prefixes cut gradients in the bucket's memory order, whatever strides autograd gave."""
    params, n = [torch.empty(3), channels_last(), torch.empty(5, 4)], 3
    given = [[torch.randn(3), channels_last(), torch.randn(4, 5).t()] for _ in range(n)]
    given[1][1] = given[1][1].contiguous()
    ring = PrefixRing(one_bucket(params), params, range(n), n, FlatBucket(one_bucket(params), params))
    slots = addends_of(dict(enumerate(given)), range(n), 1 / n, params=params)
    ring.begin()
    for rank in range(n):
        ring.take(rank, given[rank], 1 / n)
    assert same_bits(ring.sum_in_place({}).flat, ring_sum([slots[rank].flat for rank in range(n)]))


def test_memory_that_was_lent_is_known_to_be_borrowed() -> None:
    params = [torch.empty(20_000), torch.empty(3)]
    memory = FlatBucket(one_bucket(params), params)
    memory.flat.fill_(1.0)
    lent = memory.lend(0, torch.empty(20_000))
    assert lent is not None
    assert lent.tolist() == [1.0] * 20_000
    assert not lent._is_view()
    assert memory.is_borrowed
    part = lent[5:7]
    del lent
    assert memory.is_borrowed, "a part of it is enough"
    del part
    assert not memory.is_borrowed


def test_what_is_small_or_laid_out_otherwise_is_not_lent() -> None:
    params = [torch.empty(3), torch.empty(200, 200), torch.empty(5), torch.empty(150, 150)]
    memory = FlatBucket(one_bucket(params), params)
    assert memory.lend(0, torch.empty(3)) is None
    assert memory.lend(1, torch.empty(200, 200)) is not None, "memory begins so that the largest part is aligned"
    assert memory.lend(1, torch.empty(200, 200).t()) is None
    assert memory.lend(3, torch.empty(150, 150)) is None, "20 bytes past an aligned address"


def test_prefixes_keep_denormals_whatever_the_user_switched_on() -> None:
    """Two normal numbers cancel to a denormal. Four workers: scaling by 1/4 rounds nothing."""
    tiny, n = torch.finfo(torch.float32).smallest_normal, 4
    params, values = [torch.empty(8)], [6.0 * tiny, -5.0 * tiny, 0.0, 0.0]
    ring = PrefixRing(one_bucket(params), params, range(n), n, FlatBucket(one_bucket(params), params))
    torch.set_flush_denormal(True)
    try:
        ring.begin()
        for rank in range(n):
            ring.take(rank, [torch.full((8,), values[rank])], 1 / n)
        assert flushes_denormals(), "the user's setting is left as it was"
    finally:
        torch.set_flush_denormal(False)
    assert ring.sum_in_place({}).flat.tolist() == [tiny / 4] * 8
