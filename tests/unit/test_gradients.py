from __future__ import annotations

import pytest
import torch

from isoscale.core.gradients import (
    FlatBucket,
    RingBucket,
    TreeBucket,
    TreeSums,
    as_param_layout,
    flatten,
    has_dense_layout,
    multiply,
)
from isoscale.core.reduce import Subtree
from tests.unit.simulated import addends_of, one_bucket, same_bits


def channels_last() -> torch.Tensor:
    return torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("tensor", "dense"),
    [
        (torch.empty(3, 4), True),
        (torch.empty(3, 4).t(), True),
        (channels_last(), True),
        (torch.empty(3, 4)[:, :2], False),
        (torch.empty(3, 1).expand(3, 4), False),
        (torch.empty(()), True),
    ],
)
def test_dense_layouts(tensor: torch.Tensor, dense: bool) -> None:
    assert has_dense_layout(tensor) is dense


def test_a_gradient_that_fits_is_not_copied() -> None:
    param = channels_last()
    grad = torch.randn_like(param)
    assert as_param_layout(grad, param) is grad


@pytest.mark.parametrize("param", [channels_last(), torch.empty(2, 3, 4, 5), torch.empty(2, 3, 5, 4).transpose(2, 3)])
def test_other_strides_are_copied_into_the_parameters(param: torch.Tensor) -> None:
    grad = torch.randn(3, 2, 4, 5).transpose(0, 1)
    placed = as_param_layout(grad, param)
    assert placed.stride() == param.stride()
    assert torch.equal(placed, grad)


def test_a_parameter_with_gaps_gets_the_contiguous_layout() -> None:
    param = torch.empty(4, 6)[:, :3]
    assert as_param_layout(torch.randn(4, 6)[:, :3], param).is_contiguous()


def test_flatten_shares_memory_in_memory_order() -> None:
    tensor = channels_last()
    flat = flatten(tensor)
    assert flat.data_ptr() == tensor.data_ptr()
    assert torch.equal(flat, tensor.permute(0, 2, 3, 1).reshape(-1))


def test_views_lie_in_the_bucket_with_the_parameters_strides() -> None:
    params = [torch.empty(5), channels_last(), torch.empty(3, 2).t(), torch.empty(())]
    memory = FlatBucket(one_bucket(params), params)
    assert memory.flat.numel() == sum(p.numel() for p in params)
    for i, param in enumerate(params):
        memory.views[i].fill_(float(i))
        assert (memory.views[i].shape, memory.views[i].stride()) == (param.shape, param.stride())
    assert memory.flat.tolist() == [0.0] * 5 + [1.0] * 120 + [2.0] * 6 + [3.0]


def test_a_bucket_keeps_its_dtype() -> None:
    params = [torch.empty(3, dtype=torch.bfloat16)]
    assert FlatBucket(one_bucket(params), params).flat.dtype == torch.bfloat16


@pytest.mark.parametrize("alone", [True, False])
def test_a_chunk_that_cuts_a_channels_last_parameter_follows_memory_order(alone: bool) -> None:
    params = [torch.empty(3), channels_last()]
    grads = {rank: [torch.randn(3), channels_last()] for rank in range(2)}
    ring = RingBucket(FlatBucket(one_bucket(params), params), range(2), 2)
    assert [(c.start, c.stop) for c in ring.chunks] == [(0, 62), (62, 123)]
    addends = addends_of(grads, range(2))
    if alone:
        results = ring.sum_in_place(addends)
    else:
        for chunk in ring.chunks:
            ring.start(chunk, addends)
            ring.come_home(chunk, addends)
        results = list(ring.memory.views.values())
    for i, result in enumerate(results):
        assert result.stride() == params[i].stride()
        assert same_bits(flatten(result), flatten(grads[0][i]) + flatten(grads[1][i]))


def test_a_walk_over_three_executors_step_by_step() -> None:
    """Chunk 2 of N = 4 is summed 1, 0, 3, 2; executors host {0}, {1, 2}, {3}."""
    params = [torch.empty(8)]
    blocks = (range(1), range(1, 3), range(3, 4))
    grads = {rank: [torch.full((8,), 10.0**rank)] for rank in range(4)}
    mine = [addends_of(grads, ranks) for ranks in blocks]
    rings = [RingBucket(FlatBucket(one_bucket(params), params), ranks, 4) for ranks in blocks]
    chunk = rings[1].chunks[2]
    assert rings[1].starts_at(chunk) == 1
    here = slice(chunk.start, chunk.stop)
    rings[1].start(chunk, mine[1])
    assert rings[1].memory.flat[here].tolist() == [10.0, 10.0]
    rings[0].memory.flat[here] = rings[1].memory.flat[here]
    rings[0].pass_through(chunk, mine[0])
    assert rings[0].memory.flat[here].tolist() == [11.0, 11.0]
    rings[2].memory.flat[here] = rings[0].memory.flat[here]
    rings[2].pass_through(chunk, mine[2])
    rings[1].memory.flat[here] = rings[2].memory.flat[here]
    rings[1].come_home(chunk, mine[1])
    assert rings[1].memory.flat[here].tolist() == [1111.0, 1111.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [3, 5])
def test_the_factor_is_not_rounded_to_the_tensors_dtype(dtype: torch.dtype, n: int) -> None:
    """DDP's `mul_out` keeps 1/N in float32 for half types; `torch._foreach_mul_` does not."""
    values = (torch.randn(500) * 100).to(dtype)
    tensors = [values.clone()]
    multiply(tensors, 1 / n)
    assert same_bits(tensors[0], (values.float() * torch.tensor(1 / n)).to(dtype))


def test_addends_are_scaled_once() -> None:
    addends = addends_of({0: [torch.full((4,), 2.0)], 1: [torch.full((4,), 2.0)]}, range(2), 0.5)
    assert [part.tolist() for part in addends.part([0, 1], 0, 0, 2)] == [[1.0, 1.0], [1.0, 1.0]]
    assert [part.tolist() for part in addends.part([1, 0], 0, 2, 4)] == [[1.0, 1.0], [1.0, 1.0]]
    assert addends.grads[0][0].tolist() == [1.0] * 4
    addends.clear()
    assert (addends.grads, addends.scaled) == ({}, set())


def test_tree_sums_take_tensors_over_and_add_in_place() -> None:
    sums = TreeSums(range(2), 2)
    first, second = [torch.ones(2)], [torch.ones(2)]
    sums.put(0, first)
    assert sums.sums == {Subtree(0, 1): first}
    sums.put(1, second)
    assert list(sums.sums) == [Subtree(0, 2)]
    assert sums.sums[Subtree(0, 2)][0] is first[0]
    assert first[0].tolist() == [2.0, 2.0]
    sums.reset()
    assert sums.sums == {}


def test_flat_sums_are_copies_in_memory_order() -> None:
    params = [torch.empty(2), channels_last()]
    part = [torch.randn(2), channels_last()]
    bucket = TreeBucket(FlatBucket(one_bucket(params), params), [Subtree(0, 1)], 2)
    flat = bucket.flat_sums({Subtree(0, 1): part})[Subtree(0, 1)]
    assert torch.equal(flat, torch.cat([part[0], flatten(part[1])]))
    part[0].zero_()
    assert flat[:2].abs().sum() > 0
