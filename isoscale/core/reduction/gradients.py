"""Gradients of the local logical workers, held and summed in the job's order of summation.

A `FlatBucket` is contiguous memory for one bucket; a logical worker's contribution to a bucket is one of
those. `RingBucket` and `TreeSums` are a bucket's sum in the making, seen from one executor: they add the
contributions of logical workers that live here, where the order says so. What lies between executors is
done by whoever calls them (`core.reduction.exchange` for one process, `runtime.transport.gloo` for many).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from isoscale.core.reduction.buckets import Bucket
from isoscale.core.reduction.orders import Chunk, Subtree, local_subtrees, ring_chunks, ring_order

__all__ = ["FlatBucket", "RingBucket", "TreeSums", "layout_strides"]

#: parameters up to this many elements are handled in groups: a call of their own costs more than their arithmetic
_SMALL = 16384
#: bytes; torch allocates so, and a tensor that lies otherwise may take other paths through kernels
_ALIGNMENT = 64


class FlatBucket:
    """Contiguous memory for one bucket, with a view in parameter layout for each of its parameters."""

    def __init__(self, bucket: Bucket, params: Sequence[torch.Tensor], memory: torch.Tensor | None = None) -> None:
        """`memory` is given where the bucket is to lie in it."""
        members = [params[i] for i in bucket.params]
        if memory is None:
            item = members[0].element_size()
            shift = _shift(bucket, [param.numel() for param in members], _ALIGNMENT // item)
            size = bucket.numel + shift
            memory = torch.empty(size, dtype=members[0].dtype, device=members[0].device)[shift:]
        self.flat = memory
        #: one per parameter of the bucket, in its order
        self.views = [
            self.flat.as_strided(param.shape, layout_strides(param), self.flat.storage_offset() + offset)
            for param, offset in zip(members, bucket.offsets, strict=True)
        ]
        self._small = [i for i, view in enumerate(self.views) if view.numel() <= _SMALL]
        self._large = [i for i, view in enumerate(self.views) if view.numel() > _SMALL]
        self._small_views = [self.views[i] for i in self._small]
        self._small_runs = [self.flat[start:stop] for start, stop in _runs(bucket, self._small)]
        self._is_small = [view.numel() <= _SMALL for view in self.views]
        #: tensors that use the memory as long as nobody borrows it
        self._own_uses = 0
        self.note_uses()

    def note_uses(self) -> None:
        """Whoever uses the memory now is no borrower."""
        self._own_uses = _uses(self.flat)

    @property
    def is_borrowed(self) -> bool:
        """Somebody holds a tensor that was lent, or one that lies in its memory."""
        return _uses(self.flat) > self._own_uses

    def lend(self, place: int, like: torch.Tensor) -> torch.Tensor | None:
        """A parameter's part of the memory as a tensor of its own, in place of a copy into `like`.

        None where a copy costs less, or where it would not be laid out and aligned in memory as `like` is: kernels may
        round otherwise then.
        """
        view = self.views[place]
        if self._is_small[place] or view.stride() != like.stride() or view.data_ptr() % _ALIGNMENT:
            return None
        # Not a view in autograd's eyes, with a version counter of its own.
        return view.data

    def set(self, grads: Sequence[torch.Tensor]) -> None:
        torch._foreach_copy_(self.views, list(grads))

    def set_scaled(self, grads: Sequence[torch.Tensor], factor: float) -> None:
        """`grads` times `factor`, rounded as stock DDP rounds when it fills a bucket."""
        for i in self._large:
            torch.mul(grads[i], factor, out=self.views[i])
        self.set_small(grads, factor)

    def set_large(self, place: int, grad: torch.Tensor, factor: float | None) -> None:
        """One gradient, times `factor` if there is one, unless it is small: those come together, in `set_small`."""
        if self._is_small[place]:
            return
        if factor is None:
            self.views[place].copy_(grad)
        else:
            torch.mul(grad, factor, out=self.views[place])

    def set_small(self, grads: Sequence[torch.Tensor], factor: float | None) -> None:
        """All small ones of these gradients, which are those of the whole bucket."""
        if self._small:
            torch._foreach_copy_(self._small_views, [grads[i] for i in self._small])
            # Whole stretches of memory at once. `_foreach_mul_` would take a call per parameter, and would round the
            # factor itself to float16 or bfloat16, which `mul_` does not.
            if factor is not None:
                for run in self._small_runs:
                    run.mul_(factor)

    def add(self, grads: Sequence[torch.Tensor]) -> None:
        torch._foreach_add_(self.views, list(grads))


class RingBucket:
    """One bucket walked in ring order. A chunk starts here, passes through here, or comes home here.

    `addends` maps local logical ranks to their contributions, already scaled.
    """

    def __init__(self, bucket: Bucket, itemsize: int, ranks: range, num_logical_workers: int) -> None:
        self.ranks = ranks
        self._n = num_logical_workers
        self.chunks = ring_chunks(bucket.numel, itemsize, num_logical_workers)
        #: where all are local: by place in the order, each chunk's addend; and worker 0's memory of each chunk
        self._hops: list[list[torch.Tensor]] = []
        self._home: list[torch.Tensor] = []

    def starts_at(self, chunk: Chunk) -> int:
        """The logical rank whose contribution comes first."""
        return (chunk.index - 1) % self._n

    def start(self, chunk: Chunk, addends: Mapping[int, FlatBucket], total: torch.Tensor) -> None:
        """From the chunk's first logical rank down to the first one of this executor."""
        first, here = self.starts_at(chunk), slice(chunk.start, chunk.stop)
        if first == self.ranks.start:
            total[here].copy_(addends[first].flat[here])
            return
        torch.add(addends[first].flat[here], addends[first - 1].flat[here], out=total[here])
        _add(total[here], here, addends, range(first - 2, self.ranks.start - 1, -1))

    def pass_through(self, chunk: Chunk, addends: Mapping[int, FlatBucket], total: torch.Tensor) -> None:
        """Every local logical worker, highest first."""
        here = slice(chunk.start, chunk.stop)
        _add(total[here], here, addends, self.ranks[::-1])

    def come_home(self, chunk: Chunk, addends: Mapping[int, FlatBucket], total: torch.Tensor) -> None:
        """What is left after the walk around all others: the local ranks above the first one."""
        here = slice(chunk.start, chunk.stop)
        _add(total[here], here, addends, range(self.ranks.stop - 1, self.starts_at(chunk), -1))

    def sum_in_place(self, addends: Mapping[int, FlatBucket]) -> FlatBucket:
        """The whole sum where all logical workers are local, without further memory.

        Each chunk is added up in the memory of its first worker; worker 0's then takes all of them. All chunks make a
        hop at once: calls are what a small bucket costs. `addends` must be the same mapping in every step.
        """
        if not self._hops:
            for hop in range(self._n):
                ranks = [ring_order(chunk.index, self._n)[hop] for chunk in self.chunks]
                self._hops.append([_here(chunk, addends[rank]) for chunk, rank in zip(self.chunks, ranks, strict=True)])
            self._home = [_here(chunk, addends[0]) for chunk in self.chunks]
            addends[0].note_uses()  # whatever was lent has been given back when the step began
        first, *rest = self._hops
        for parts in rest:
            torch._foreach_add_(first, parts)
        away = [i for i, chunk in enumerate(self.chunks) if self.starts_at(chunk) != 0]
        if away:
            torch._foreach_copy_([self._home[i] for i in away], [first[i] for i in away])
        return addends[0]


class TreeSums:
    """One bucket summed into subtrees as turns finish: about log2(k) live sums for k local logical workers."""

    def __init__(self, make: Callable[[], FlatBucket], ranks: range, num_logical_workers: int) -> None:
        self.root = Subtree(0, num_logical_workers)
        self.nodes = local_subtrees(ranks, num_logical_workers)
        self.sums: dict[Subtree, FlatBucket] = {}
        self._parents = {child: node for top in self.nodes for node, child in _edges(top)}
        self._make = make
        self._free: list[FlatBucket] = []
        self._arriving: dict[Subtree, torch.Tensor] = {}

    def reset(self) -> None:
        self._free.extend(self.sums.values())
        self.sums.clear()

    def put(self, logical_rank: int, grads: Sequence[torch.Tensor]) -> None:
        """Add a turn's gradients of this bucket; they are only read. Ranks must come in ascending order."""
        node, total = Subtree(logical_rank, logical_rank + 1), None
        while (parent := self._parents.get(node)) is not None and parent.stop == node.stop:
            # A right child: its left sibling is whole already, for ranks come in ascending order.
            left = self.sums.pop(Subtree(parent.start, node.start))
            if total is None:
                left.add(grads)
            else:
                left.flat.add_(total.flat)
                self._free.append(total)
            node, total = parent, left
        if total is None:
            total = self._free.pop() if self._free else self._make()
            total.set(grads)
        self.sums[node] = total

    def arriving(self, node: Subtree, like: torch.Tensor) -> torch.Tensor:
        """Memory for another executor's sum of a part of the bucket, the same in every step."""
        if node not in self._arriving:
            self._arriving[node] = torch.empty_like(like)
        return self._arriving[node]


def _uses(tensor: torch.Tensor) -> int:
    """How many tensors lie in the memory that this one lies in."""
    uses: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return uses


def _here(chunk: Chunk, addend: FlatBucket) -> torch.Tensor:
    return addend.flat[chunk.start : chunk.stop]


def _add(target: torch.Tensor, here: slice, addends: Mapping[int, FlatBucket], ranks: Sequence[int]) -> None:
    for rank in ranks:
        target.add_(addends[rank].flat[here])


def _shift(bucket: Bucket, sizes: Sequence[int], multiple: int) -> int:
    """Elements to leave out in front, so that as much of the large parameters as possible is aligned."""
    gain = [0] * max(1, multiple)
    for offset, size in zip(bucket.offsets, sizes, strict=True):
        if size > _SMALL:
            gain[-offset % len(gain)] += size
    return gain.index(max(gain))


def _runs(bucket: Bucket, places: Sequence[int]) -> list[tuple[int, int]]:
    """Stretches of the bucket's memory that hold parameters at `places` and no others."""
    runs: list[tuple[int, int]] = []
    ends = [*bucket.offsets[1:], bucket.numel]
    for place in places:
        start, stop = bucket.offsets[place], ends[place]
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], stop)
        else:
            runs.append((start, stop))
    return runs


def layout_strides(param: torch.Tensor) -> tuple[int, ...]:
    """A bucket's view of a parameter has its strides if its elements fill memory in some order, else plain ones."""
    if torch.ops.aten.is_non_overlapping_and_dense(param):
        return param.stride()
    return torch.empty(param.shape, device="meta").stride()


def _edges(node: Subtree) -> list[tuple[Subtree, Subtree]]:
    children = node.children()
    if children is None:
        return []
    return [(node, child) for child in children] + [edge for child in children for edge in _edges(child)]
