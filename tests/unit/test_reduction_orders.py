"""The two orders of summation against oracles that are written from the formulas alone, bit for bit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.reduction.gradients import FlatBucket, TreeSums
from isoscale.core.reduction.orders import Subtree, combine_subtrees, local_subtrees, ring_chunks, ring_sum, tree_sum
from isoscale.types import Placement
from tests.unit.simulated import addends_of, bits, one_bucket, prefixes_of, ring_of, same_bits, walk_ring

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0)
MANY = settings(max_examples=120, deadline=None)
FEW = settings(max_examples=50, deadline=None)


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Any contiguous split of 1..17 logical workers."""
    n = draw(st.one_of(st.integers(1, 9), st.integers(10, 17)))
    cuts = sorted(draw(st.sets(st.integers(1, n - 1)))) if n > 1 else []
    return Placement(shares=tuple(b - a for a, b in zip([0, *cuts], [*cuts, n], strict=True)))


@st.composite
def sizes_of_parameters(draw: st.DrawFn) -> list[int]:
    total = draw(st.one_of(st.integers(1, 12), st.integers(1, 5000)))
    cuts = sorted(draw(st.sets(st.integers(1, total - 1), max_size=6))) if total > 1 else []
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


def contributions(
    n: int, sizes: list[int], dtype: torch.dtype, seed: int, *, special: bool
) -> dict[int, list[torch.Tensor]]:
    """Values of very unequal size, so that every other order gives other bits."""
    generator = torch.Generator().manual_seed(seed)
    grads = {}
    for rank in range(n):
        numel = sum(sizes)
        spread = torch.randint(-6, 7, (numel,), generator=generator).double()
        flat = (torch.randn(numel, generator=generator, dtype=torch.float64) * 2**spread).to(dtype)
        if special:
            tiny = torch.finfo(dtype).smallest_normal
            choices = torch.tensor([*SPECIAL, tiny / 4, -tiny / 2, torch.finfo(dtype).max], dtype=torch.float64).to(
                dtype
            )
            picks = torch.randint(0, len(choices), (numel,), generator=generator)
            flat = torch.where(torch.rand(numel, generator=generator) < 0.3, choices[picks], flat)
        grads[rank] = [part.clone() for part in flat.split(sizes)]
    return grads


def ring_oracle(addends: list[torch.Tensor]) -> torch.Tensor:
    """gloo's ring by element: element i lies in chunk c = i // chunk and is summed over c-1, c-2, ..., c (mod N)."""
    n, m, e = len(addends), addends[0].numel(), addends[0].element_size()
    total, seg_max = m * e, e * max(1, 2**20 // e)
    segments = math.ceil(max(math.ceil(total / seg_max), 2 * n) / n) * n
    seg = math.ceil(math.ceil(total / segments) / e) * e
    chunk = segments // n * seg // e
    table, element = torch.stack(addends), torch.arange(m)
    c = element // chunk
    result = table[(c - 1) % n, element]
    for hop in range(1, n):
        result = result + table[(c - 1 - hop) % n, element]
    return result


def tree_oracle(addends: list[torch.Tensor]) -> torch.Tensor:
    """Halves at the largest power of two below the number, left plus right."""
    if len(addends) == 1:
        return addends[0]
    half = 1
    while 2 * half < len(addends):
        half *= 2
    return tree_oracle(addends[:half]) + tree_oracle(addends[half:])


def agree(result: torch.Tensor, oracle: torch.Tensor) -> bool:
    """Bit for bit. Of a NaN only that it is one: its payload is the vector unit's choice, not the order's."""
    both_nan = result.isnan() & oracle.isnan()
    return result.dtype == oracle.dtype and bool(((bits(result) == bits(oracle)) | both_nan).all())


def flats(grads: dict[int, list[torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.cat(grads[rank]) for rank in sorted(grads)]


def local_ring(grads: dict[int, list[torch.Tensor]], scale: float) -> torch.Tensor:
    n, slots = len(grads), addends_of(grads, range(len(grads)), scale)
    return LocalExchange(n).ring(ring_of(grads[0], range(n), n), slots, slots[0]).flat


def tree_over(placement: Placement, grads: dict[int, list[torch.Tensor]]) -> torch.Tensor:
    """Every executor sums its subtrees as turns finish; the nodes of all are combined once."""
    n, nodes = placement.num_logical_workers, {}
    for executor in range(placement.num_executors):
        sums = TreeSums(lambda: FlatBucket(one_bucket(grads[0]), grads[0]), placement.ranks_of(executor), n)
        for rank in placement.ranks_of(executor):
            sums.put(rank, grads[rank])
        assert sorted(sums.sums) == sums.nodes == local_subtrees(placement.ranks_of(executor), n)
        nodes |= {node: total.flat for node, total in sums.sums.items()}
    return combine_subtrees(nodes, Subtree(0, n))


any_case = given(
    placement=placements(),
    sizes=sizes_of_parameters(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
    special=st.booleans(),
)


@MANY
@any_case
def test_ring_over_any_executors_is_the_formula(
    placement: Placement, sizes: list[int], dtype: torch.dtype, seed: int, special: bool
) -> None:
    grads = contributions(placement.num_logical_workers, sizes, dtype, seed, special=special)
    scale = 1 / placement.num_logical_workers
    scaled = [flat * scale for flat in flats(grads)]
    oracle = ring_oracle(scaled)
    assert agree(ring_sum(scaled), oracle)
    assert agree(local_ring(grads, scale), oracle)
    for flat in walk_ring(placement, grads, scale):
        assert agree(flat, oracle)
    n = placement.num_logical_workers
    ring, _ = prefixes_of(grads, range(n), n, scale)
    assert agree(ring.sum_in_place({}).flat, oracle)
    if placement.num_executors > 1:
        for flat in walk_ring(placement, grads, scale, prefixes=True):
            assert agree(flat, oracle)


@MANY
@any_case
def test_tree_over_any_executors_is_the_formula(
    placement: Placement, sizes: list[int], dtype: torch.dtype, seed: int, special: bool
) -> None:
    grads = contributions(placement.num_logical_workers, sizes, dtype, seed, special=special)
    oracle = tree_oracle(flats(grads))
    assert agree(tree_sum(flats(grads)), oracle)
    assert agree(tree_over(placement, grads), oracle)


@pytest.mark.parametrize(
    ("shares", "numel", "dtype"),
    [
        ((1, 1), 2**19 + 1, torch.float32),  # a little over 1 MiB a chunk
        ((2, 1), 3 * 2**19 + 7, torch.float32),  # just over 2N segments of 1 MiB
        ((1, 3, 1), 1_400_003, torch.float64),
        ((2, 2, 3), 2**20 + 3, torch.float16),
        ((3,), 6 * 2**18, torch.float32),  # exactly 2N segments
    ],
)
def test_ring_over_a_megabyte(shares: tuple[int, ...], numel: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(numel)
    sizes = [numel // 3, 5, numel - 5 - numel // 3]
    grads = {
        rank: [part.to(dtype) for part in torch.randn(numel, generator=generator).split(sizes)]
        for rank in range(sum(shares))
    }
    oracle = ring_oracle(flats(grads))
    assert same_bits(local_ring(grads, 1.0), oracle)
    for prefixes in (False, True) if len(shares) > 1 else (False,):
        for flat in walk_ring(Placement(shares=shares), grads, prefixes=prefixes):
            assert same_bits(flat, oracle)


def test_the_order_is_visible_in_the_bits() -> None:
    """The properties above would hold for any order if the values did not tell orders apart."""
    addends = flats(contributions(4, [500], torch.float32, 1, special=False))
    assert not same_bits(ring_sum(addends), tree_sum(addends))
    assert not same_bits(ring_sum(addends), ring_sum(addends[::-1]))


@FEW
@given(placement=placements(), numel=st.integers(1, 3_000_000), itemsize=st.sampled_from([2, 4, 8]))
def test_chunks_cover_the_bucket_once(placement: Placement, numel: int, itemsize: int) -> None:
    chunks = ring_chunks(numel, itemsize, placement.num_logical_workers)
    assert [c.start for c in chunks] == [0, *(c.stop for c in chunks[:-1])]
    assert chunks[-1].stop == numel
    assert [c.index for c in chunks] == list(range(len(chunks)))
    assert len(chunks) <= placement.num_logical_workers
    assert all(c.start < c.stop for c in chunks)
    assert len({c.stop - c.start for c in chunks[:-1]}) <= 1


@FEW
@given(placement=placements())
def test_local_subtrees_are_the_fewest_that_cover(placement: Placement) -> None:
    n = placement.num_logical_workers
    root = Subtree(0, n)
    for executor in range(placement.num_executors):
        ranks = placement.ranks_of(executor)
        nodes = local_subtrees(ranks, n)
        assert [r for node in nodes for r in range(node.start, node.stop)] == list(ranks)
        parents = {child: node for node in every_node(root) for child in node.children() or ()}
        for node in nodes:
            parent = parents.get(node)
            assert parent is None or not (ranks.start <= parent.start and parent.stop <= ranks.stop)


def every_node(node: Subtree) -> list[Subtree]:
    return [node, *(below for child in node.children() or () for below in every_node(child))]


@pytest.mark.parametrize("n", range(1, 34))
def test_every_node_of_the_tree_is_aligned(n: int) -> None:
    for node in every_node(Subtree(0, n)):
        size = node.stop - node.start
        assert node.start % (1 << (size - 1).bit_length()) == 0


@pytest.mark.parametrize("n", range(1, 34))
def test_live_lists_while_ranks_arrive(n: int) -> None:
    """With all workers in one place at most log2(k) + 1 after k turns; an unaligned block has two such flanks."""
    params = [torch.empty(1)]
    for first in range(n):
        for last in range(first + 1, n + 1):
            sums = TreeSums(lambda: FlatBucket(one_bucket(params), params), range(first, last), n)
            for count, rank in enumerate(range(first, last), 1):
                sums.put(rank, [torch.ones(1)])
                limit = math.floor(math.log2(count)) + 1
                assert len(sums.sums) <= (limit if first == 0 else 2 * limit)
            assert sum(int(total.flat) for total in sums.sums.values()) == last - first
