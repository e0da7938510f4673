"""Orders of summation that do not depend on where logical workers live.

Two orders. `ddp` is gloo's ring all-reduce written down: a bucket of M elements is cut into N
chunks, and chunk c is summed left to right over logical ranks c-1, c-2, ..., c (mod N). `tree` is a
fixed balanced tree over logical ranks. This module knows the orders and how to walk the part of
them that lies in one executor; messages between executors are `runtime.transport.gloo`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

__all__ = [
    "Chunk",
    "Subtree",
    "combine_subtrees",
    "local_subtrees",
    "ring_chunks",
    "ring_order",
    "ring_sum",
    "tree_sum",
]

_GLOO_SEGMENT_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Elements [start, stop) of a bucket; `index` fixes the order in which they are summed."""

    index: int
    start: int
    stop: int


def ring_chunks(numel: int, itemsize: int, num_logical_workers: int) -> list[Chunk]:
    """gloo's division of a bucket; trailing chunks of a small bucket are empty and left out.

    >>> [(c.start, c.stop) for c in ring_chunks(10, 4, 3)]
    [(0, 4), (4, 8), (8, 10)]
    """
    n = num_logical_workers
    total = numel * itemsize
    largest_segment = itemsize * max(1, _GLOO_SEGMENT_BYTES // itemsize)
    segments = _round_up(max(-(-total // largest_segment), 2 * n), n)
    segment = _round_up(-(-total // segments), itemsize)
    size = segments // n * segment // itemsize
    return [Chunk(c, c * size, min(numel, (c + 1) * size)) for c in range(n) if c * size < numel]


def ring_order(chunk_index: int, num_logical_workers: int) -> list[int]:
    """Logical ranks in the order in which they are added into a chunk.

    >>> ring_order(0, 4), ring_order(2, 4)
    ([3, 2, 1, 0], [1, 0, 3, 2])
    """
    return [(chunk_index - 1 - hop) % num_logical_workers for hop in range(num_logical_workers)]


def ring_sum(addends: Sequence[torch.Tensor]) -> torch.Tensor:
    """The whole of one bucket in ring order; `addends[r]` is logical worker r's scaled flat bucket."""
    n, out = len(addends), torch.empty_like(addends[0])
    for chunk in ring_chunks(out.numel(), out.element_size(), n):
        here = slice(chunk.start, chunk.stop)
        first, *rest = ring_order(chunk.index, n)
        out[here] = addends[first][here]
        for rank in rest:
            out[here] += addends[rank][here]
    return out


@dataclass(frozen=True, slots=True, order=True)
class Subtree:
    """Logical ranks [start, stop): a node of the summation tree.

    The tree of [0, N) splits at the largest power of two below its size, so every node starts at a
    multiple of a power of two that is at least its size, whatever N is.
    """

    start: int
    stop: int

    def children(self) -> tuple[Subtree, Subtree] | None:
        size = self.stop - self.start
        if size == 1:
            return None
        middle = self.start + (1 << ((size - 1).bit_length() - 1))
        return Subtree(self.start, middle), Subtree(middle, self.stop)


def local_subtrees(ranks: range, num_logical_workers: int) -> list[Subtree]:
    """The largest nodes that lie wholly within `ranks`, left to right.

    >>> local_subtrees(range(0, 3), 4)
    [Subtree(start=0, stop=2), Subtree(start=2, stop=3)]
    """

    def walk(node: Subtree) -> Iterator[Subtree]:
        if ranks.start <= node.start and node.stop <= ranks.stop:
            yield node
        elif node.start < ranks.stop and ranks.start < node.stop:
            for child in node.children() or ():
                yield from walk(child)

    return list(walk(Subtree(0, num_logical_workers)))


def combine_subtrees(sums: dict[Subtree, torch.Tensor], root: Subtree) -> torch.Tensor:
    """The root's sum from the sums of nodes that cover it. Adds in place into the leftmost node's tensor."""
    if root in sums:
        return sums[root]
    children = root.children()
    assert children is not None, f"no sum for logical worker {root.start}"
    return combine_subtrees(sums, children[0]).add_(combine_subtrees(sums, children[1]))


def tree_sum(addends: Sequence[torch.Tensor]) -> torch.Tensor:
    """The whole tree over given tensors, for one process; `addends` are left as they are."""
    leaves = {Subtree(r, r + 1): t.clone() for r, t in enumerate(addends)}
    return combine_subtrees(leaves, Subtree(0, len(addends)))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
