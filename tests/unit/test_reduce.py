"""Known values of the orders; that any split gives the same is in test_reduction_orders."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from isoscale.core.reduction.orders import (
    Subtree,
    combine_subtrees,
    local_subtrees,
    ring_chunks,
    ring_order,
    ring_sum,
    tree_sum,
)


@pytest.mark.parametrize(
    ("numel", "itemsize", "n", "expected"),
    [
        (1, 4, 4, [(0, 1)]),
        (3, 4, 4, [(0, 2), (2, 3)]),
        (10, 4, 3, [(0, 4), (4, 8), (8, 10)]),
        (7, 8, 1, [(0, 7)]),
        # 8 MiB over 3 workers: nine segments of 1 MiB at most, three to a chunk.
        (2**21, 4, 3, [(0, 699_051), (699_051, 1_398_102), (1_398_102, 2**21)]),
    ],
)
def test_chunks(numel: int, itemsize: int, n: int, expected: list[tuple[int, int]]) -> None:
    assert [(c.start, c.stop) for c in ring_chunks(numel, itemsize, n)] == expected


def test_nothing_has_no_chunks() -> None:
    assert ring_chunks(0, 4, 3) == []


@pytest.mark.parametrize("n", range(1, 8))
def test_an_order_visits_every_rank_once_and_ends_at_the_chunks_own(n: int) -> None:
    for c in range(n):
        order = ring_order(c, n)
        assert sorted(order) == list(range(n))
        assert order[-1] == c
        assert all((a - b) % n == 1 for a, b in pairwise(order))


def test_ring_sum_goes_down_from_the_rank_before_the_chunk() -> None:
    # 1 + 2^60 - 2^60 is 0 or 1 depending on who is added last.
    big = 2.0**60
    addends = [torch.full((4,), value, dtype=torch.float64) for value in (1.0, big, -big)]
    # Chunks [0,2) and [2,4): orders 2,1,0 and 0,2,1.
    assert ring_sum(addends).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_tree_sum_adds_pairs_first() -> None:
    big = 2.0**60
    addends = [torch.tensor([value], dtype=torch.float64) for value in (big, -big, 1.0)]
    assert tree_sum(addends).tolist() == [1.0]
    assert tree_sum([addends[2], addends[0], addends[1]]).tolist() == [0.0]
    assert [t.item() for t in addends] == [big, -big, 1.0]


def test_children_split_at_a_power_of_two() -> None:
    assert Subtree(0, 5).children() == (Subtree(0, 4), Subtree(4, 5))
    assert Subtree(4, 7).children() == (Subtree(4, 6), Subtree(6, 7))
    assert Subtree(3, 4).children() is None


def test_a_block_in_the_middle_has_two_flanks() -> None:
    assert local_subtrees(range(1, 7), 8) == [Subtree(1, 2), Subtree(2, 4), Subtree(4, 6), Subtree(6, 7)]
    assert local_subtrees(range(0, 5), 5) == [Subtree(0, 5)]


def test_a_missing_worker_is_named() -> None:
    with pytest.raises(AssertionError, match="logical worker 1"):
        combine_subtrees({Subtree(0, 1): torch.ones(1)}, Subtree(0, 2))
