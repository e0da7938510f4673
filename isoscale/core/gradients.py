"""Gradients of the local logical workers, held and summed in the job's order of summation.

`RingBucket` and `TreeBucket` are one bucket's sum in the making, seen from one executor: they add
the contributions of logical workers that live here, where the order says so. What lies between
executors is done by whoever calls them (`core.exchange` for one process, `runtime.collective` for
many). Contributions are lists of tensors in parameter layout, one entry per parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from isoscale.core.buckets import Bucket
from isoscale.core.reduce import Chunk, Subtree, local_subtrees, ring_chunks, ring_order

__all__ = [
    "FlatBucket", "RingBucket", "TreeBucket", "TreeSums", "as_param_layout", "flatten", "has_dense_layout", "multiply",
]  # fmt: skip

#: parameters up to this many elements are added in groups: one call costs more than their arithmetic
_SMALL = 4096


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


def multiply(tensors: list[torch.Tensor], factor: float) -> None:
    """In place, with DDP's bits."""
    if all(tensor.dtype in (torch.float32, torch.float64) for tensor in tensors):
        torch._foreach_mul_(tensors, factor)
        return
    for tensor in tensors:
        # `_foreach_mul_` would round the factor to float16 or bfloat16 first.
        tensor.mul_(factor)


def _layout_strides(param: torch.Tensor) -> tuple[int, ...]:
    if has_dense_layout(param):
        return param.stride()
    return torch.empty(param.shape, device="meta").stride()


class Addends:
    """Gradients of the local logical workers in order `ddp`, each to be scaled by 1/N exactly once.

    Scaling happens in place when a piece is first used, parameter by parameter for all workers, so that
    what was multiplied is added while it is still in cache. Every piece is used once per step.
    """

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self.grads: dict[int, list[torch.Tensor]] = {}
        #: ranks whose gradients came scaled
        self.scaled: set[int] = set()

    def clear(self) -> None:
        self.grads.clear()
        self.scaled.clear()

    def whole(self, ranks: Sequence[int], params: Sequence[int]) -> list[list[torch.Tensor]]:
        """Scaled gradients of several parameters: one list per rank, in the order of `ranks`."""
        rows = [[self.grads[rank][i] for i in params] for rank in ranks]
        for rank, row in zip(ranks, rows, strict=True):
            if rank not in self.scaled:
                multiply(row, self._scale)
        return rows

    def part(self, ranks: Sequence[int], param: int, first: int, last: int) -> list[torch.Tensor]:
        """Scaled elements [first, last) of one parameter in memory order: one tensor per rank."""
        parts = [flatten(self.grads[rank][param])[first:last] for rank in ranks]
        fresh = [part for rank, part in zip(ranks, parts, strict=True) if rank not in self.scaled]
        if fresh:
            multiply(fresh, self._scale)
        return parts


@dataclass(frozen=True, slots=True)
class _Pieces:
    """One chunk of a bucket: small parameters wholly inside it, and slices of the others."""

    small: tuple[int, ...]
    #: (parameter index, first and last element, offset in the bucket)
    slices: tuple[tuple[int, int, int, int], ...]


class FlatBucket:
    """Contiguous memory for one bucket with a view per parameter, made when first needed."""

    def __init__(self, bucket: Bucket, params: Sequence[torch.Tensor]) -> None:
        self.bucket = bucket
        self._params = params
        first = params[bucket.params[0]]
        self.dtype, self.device = first.dtype, first.device

    @cached_property
    def flat(self) -> torch.Tensor:
        return torch.empty(self.bucket.numel, dtype=self.dtype, device=self.device)

    @cached_property
    def views(self) -> dict[int, torch.Tensor]:
        return {
            i: self.flat.as_strided(self._params[i].shape, _layout_strides(self._params[i]), offset)
            for i, offset in zip(self.bucket.params, self.bucket.offsets, strict=True)
        }

    def pieces(self, chunk: Chunk) -> _Pieces:
        small: list[int] = []
        slices: list[tuple[int, int, int, int]] = []
        for i, offset in zip(self.bucket.params, self.bucket.offsets, strict=True):
            numel = self._params[i].numel()
            first, last = max(offset, chunk.start), min(offset + numel, chunk.stop)
            if last - first == numel <= _SMALL:
                small.append(i)
            elif first < last:
                slices.append((i, first - offset, last - offset, offset))
        return _Pieces(tuple(small), tuple(slices))


class RingBucket:
    """One bucket walked in ring order. A chunk starts here, passes through here, or comes home here."""

    def __init__(self, memory: FlatBucket, ranks: range, num_logical_workers: int) -> None:
        self.memory = memory
        self.ranks = ranks
        self._n = num_logical_workers
        self.chunks = ring_chunks(memory.bucket.numel, memory.dtype.itemsize, num_logical_workers)
        self._pieces = {chunk.index: memory.pieces(chunk) for chunk in self.chunks}

    def starts_at(self, chunk: Chunk) -> int:
        """The logical rank whose contribution comes first."""
        return (chunk.index - 1) % self._n

    def start(self, chunk: Chunk, addends: Addends) -> None:
        """From the chunk's first logical rank down to the first one of this executor."""
        self._add(chunk, addends, range(self.starts_at(chunk), self.ranks.start - 1, -1), fresh=True)

    def pass_through(self, chunk: Chunk, addends: Addends) -> None:
        """Every local logical worker, highest first."""
        self._add(chunk, addends, self.ranks[::-1], fresh=False)

    def come_home(self, chunk: Chunk, addends: Addends) -> None:
        """What is left after the walk around all others: the local ranks above the first one."""
        self._add(chunk, addends, range(self.ranks.stop - 1, self.starts_at(chunk), -1), fresh=False)

    def sum_in_place(self, addends: Addends) -> list[torch.Tensor]:
        """The whole sum where all logical workers are local, one tensor per parameter of the bucket.

        Each chunk is added up in the tensors of its first worker; no further memory is touched.
        """
        homes: dict[int, torch.Tensor] = {}
        moves: list[tuple[torch.Tensor, int, int, torch.Tensor]] = []
        for chunk in self.chunks:
            pieces, order = self._pieces[chunk.index], ring_order(chunk.index, self._n)
            if pieces.small:
                total, *rest = addends.whole(order, pieces.small)
                for row in rest:
                    torch._foreach_add_(total, row)
                homes |= zip(pieces.small, total, strict=True)
            for i, first, last, _ in pieces.slices:
                part, *others = addends.part(order, i, first, last)
                for other in others:
                    part.add_(other)
                home = homes.setdefault(i, addends.grads[order[0]][i])
                if home is not addends.grads[order[0]][i]:
                    moves.append((home, first, last, part))
        # Only now is nobody's contribution needed any more where the pieces of a cut parameter come together.
        for home, first, last, part in moves:
            flatten(home)[first:last].copy_(part)
        return [homes[i] for i in self.memory.bucket.params]

    def _add(self, chunk: Chunk, addends: Addends, ranks: Sequence[int], *, fresh: bool) -> None:
        if not ranks:
            return
        pieces, memory = self._pieces[chunk.index], self.memory
        if pieces.small:
            targets = [memory.views[i] for i in pieces.small]
            for place, row in enumerate(addends.whole(ranks, pieces.small)):
                (torch._foreach_copy_ if fresh and place == 0 else torch._foreach_add_)(targets, row)
        for i, first, last, offset in pieces.slices:
            target = memory.flat[offset + first : offset + last]
            for place, part in enumerate(addends.part(ranks, i, first, last)):
                if fresh and place == 0:
                    target.copy_(part)
                else:
                    target.add_(part)


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
