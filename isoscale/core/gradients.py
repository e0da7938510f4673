"""Gradients of the local logical workers, held and summed in the job's order of summation.

`RingBucket` and `TreeBucket` are one bucket's sum in the making, seen from one executor: they add
the contributions of logical workers that live here, where the order says so. What lies between
executors is done by whoever calls them (`core.exchange` for one process, `runtime.collective` for
many). Contributions are lists of tensors in parameter layout, one entry per parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from isoscale.core.buckets import Bucket
from isoscale.core.reduce import Chunk, Subtree, local_subtrees, ring_chunks

__all__ = ["FlatBucket", "RingBucket", "TreeBucket", "TreeSums", "as_param_layout", "flatten", "has_dense_layout"]


def has_dense_layout(tensor: torch.Tensor) -> bool:
    """True if the elements fill memory without gaps or overlap, in whatever order (channels_last does)."""
    return torch.ops.aten.is_non_overlapping_and_dense(tensor)  # type: ignore[no-any-return]


def as_param_layout(grad: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    """`grad` itself where it lies in memory as a bucket view of `param` would, else a copy that does."""
    strides = _layout_strides(param)
    if grad.stride() == strides:
        return grad
    return torch.empty_strided(param.shape, strides, dtype=grad.dtype, device=grad.device).copy_(grad)


def flatten(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in memory order, without a copy."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _layout_strides(param: torch.Tensor) -> tuple[int, ...]:
    if has_dense_layout(param):
        return param.stride()
    return torch.empty(param.shape, device="meta").stride()


@dataclass(frozen=True, slots=True)
class _Pieces:
    """One chunk of a bucket: parameters wholly inside it, and slices of those that are cut."""

    chunk: Chunk
    whole: tuple[int, ...]
    whole_views: list[torch.Tensor]
    #: (parameter index, first and last flat element, destination)
    cut: tuple[tuple[int, int, int, torch.Tensor], ...]

    def set(self, grads: Sequence[torch.Tensor]) -> None:
        if self.whole:
            torch._foreach_copy_(self.whole_views, [grads[i] for i in self.whole])
        for i, first, last, target in self.cut:
            target.copy_(flatten(grads[i])[first:last])

    def add(self, grads: Sequence[torch.Tensor]) -> None:
        if self.whole:
            torch._foreach_add_(self.whole_views, [grads[i] for i in self.whole])
        for i, first, last, target in self.cut:
            target.add_(flatten(grads[i])[first:last])


class FlatBucket:
    """Contiguous memory for one bucket with a view per parameter. Kept for as long as the layout holds."""

    def __init__(self, bucket: Bucket, params: Sequence[torch.Tensor]) -> None:
        first = params[bucket.params[0]]
        self.bucket = bucket
        self.flat = torch.empty(bucket.numel, dtype=first.dtype, device=first.device)
        self.views = {
            i: self.flat.as_strided(params[i].shape, _layout_strides(params[i]), offset)
            for i, offset in zip(bucket.params, bucket.offsets, strict=True)
        }

    def pieces(self, chunk: Chunk) -> _Pieces:
        whole: list[int] = []
        cut: list[tuple[int, int, int, torch.Tensor]] = []
        for i, offset in zip(self.bucket.params, self.bucket.offsets, strict=True):
            first, last = max(offset, chunk.start), min(offset + self.views[i].numel(), chunk.stop)
            if last - first == self.views[i].numel():
                whole.append(i)
            elif first < last:
                cut.append((i, first - offset, last - offset, self.flat[first:last]))
        return _Pieces(chunk, tuple(whole), [self.views[i] for i in whole], tuple(cut))


class RingBucket:
    """One bucket walked in ring order. A chunk starts here, passes through here, or comes home here."""

    def __init__(self, memory: FlatBucket, ranks: range, num_logical_workers: int) -> None:
        self.memory = memory
        self.ranks = ranks
        self._n = num_logical_workers
        chunks = ring_chunks(memory.bucket.numel, memory.flat.element_size(), num_logical_workers)
        self._pieces = {chunk.index: memory.pieces(chunk) for chunk in chunks}
        self.chunks = chunks

    def starts_at(self, chunk: Chunk) -> int:
        """The logical rank whose contribution comes first."""
        return (chunk.index - 1) % self._n

    def start(self, chunk: Chunk, grads: dict[int, list[torch.Tensor]]) -> None:
        """From the chunk's first logical rank down to the first one of this executor."""
        pieces, first = self._pieces[chunk.index], self.starts_at(chunk)
        pieces.set(grads[first])
        for rank in range(first - 1, self.ranks.start - 1, -1):
            pieces.add(grads[rank])

    def pass_through(self, chunk: Chunk, grads: dict[int, list[torch.Tensor]]) -> None:
        """Every local logical worker, highest first."""
        for rank in reversed(self.ranks):
            self._pieces[chunk.index].add(grads[rank])

    def come_home(self, chunk: Chunk, grads: dict[int, list[torch.Tensor]]) -> None:
        """What is left after the walk around all others: the local ranks above the first one."""
        for rank in range(self.ranks.stop - 1, self.starts_at(chunk), -1):
            self._pieces[chunk.index].add(grads[rank])


class TreeSums:
    """Gradients summed into subtrees as turns finish: about log2(k) live lists for k local logical workers."""

    def __init__(self, ranks: range, num_logical_workers: int) -> None:
        self.nodes = local_subtrees(ranks, num_logical_workers)
        self._parents = {child: node for root in self.nodes for node, child in _edges(root)}
        self.sums: dict[Subtree, list[torch.Tensor]] = {}

    def reset(self) -> None:
        self.sums.clear()

    def put(self, logical_rank: int, grads: list[torch.Tensor]) -> None:
        """Takes the tensors over. Ranks must come in ascending order."""
        node, value = Subtree(logical_rank, logical_rank + 1), grads
        while node in self._parents:
            parent = self._parents[node]
            left, _ = parent.children() or (node, node)
            if left == node:
                break
            # The left sibling is whole already, for ranks come in ascending order.
            total = self.sums.pop(left)
            torch._foreach_add_(total, value)
            node, value = parent, total
        self.sums[node] = value


class TreeBucket:
    """One bucket's local subtree sums, to be combined across executors."""

    def __init__(self, memory: FlatBucket, nodes: Sequence[Subtree], num_logical_workers: int) -> None:
        self.memory = memory
        self.nodes = nodes
        self.root = Subtree(0, num_logical_workers)

    def flat_sums(self, sums: dict[Subtree, list[torch.Tensor]]) -> dict[Subtree, torch.Tensor]:
        """Each local node's sum as one contiguous tensor (a copy)."""
        return {node: torch.cat([flatten(part) for part in sums[node]]) for node in self.nodes}


def _edges(node: Subtree) -> list[tuple[Subtree, Subtree]]:
    children = node.children()
    if children is None:
        return []
    return [(node, child) for child in children] + [edge for child in children for edge in _edges(child)]
