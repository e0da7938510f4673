"""A large bucket summed along the ring as turns end, so that no more gradients are held than the order demands.

Chunk c is summed over logical ranks c-1, c-2, ..., c (mod N), left to right. Turns come in ascending order, so when the
turn of rank c-1 is over, every local rank below it is there, and the chunk's sum down to the lowest local rank is made
at once, in the place of the total. What later ranks give to that chunk comes after ranks that live elsewhere, or after
the highest one, and is held. With all N workers in one process (N - 1) / 2 copies of the bucket are held at most,
beside the total; none of them could be spared, for before the last turn every chunk waits for that turn's gradients in
the middle of its sum. Small buckets are held whole (`RingBucket`): there calls cost more than memory is worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from isoscale.core.numerics.determinism import flushes_denormals
from isoscale.core.reduction.buckets import Bucket
from isoscale.core.reduction.gradients import FlatBucket, RingBucket, layout_strides
from isoscale.core.reduction.orders import Chunk

__all__ = ["PrefixRing"]


@dataclass(frozen=True, slots=True)
class _Piece:
    """The part of a parameter that lies in a chunk: elements [start, stop) in memory order."""

    place: int
    start: int
    stop: int
    #: the chunk holds all of the parameter
    whole: bool


class PrefixRing(RingBucket):
    """One bucket's sum in the making. Ranks must come in ascending order; `begin` starts over."""

    def __init__(
        self, bucket: Bucket, params: Sequence[torch.Tensor], ranks: range, num_logical_workers: int, total: FlatBucket
    ) -> None:
        super().__init__(bucket, total.flat.element_size(), ranks, num_logical_workers)
        self._members = [params[i] for i in bucket.params]
        self._strides = [layout_strides(param) for param in self._members]
        self._total = total
        self._alone = len(ranks) == num_logical_workers
        self._pieces = {chunk.index: _pieces(bucket, chunk) for chunk in self.chunks}
        self._pieces_of: list[list[tuple[Chunk, int]]] = [[] for _ in bucket.params]
        for chunk in self.chunks:
            for i, piece in enumerate(self._pieces[chunk.index]):
                self._pieces_of[piece.place].append((chunk, i))
        #: by chunk: the total's memory of it
        self._sums = {chunk.index: self._part(chunk, total.flat[chunk.start : chunk.stop]) for chunk in self.chunks}
        #: what later sums need, by rank and chunk: memory of one chunk's size, numbered
        self._held: dict[tuple[int, int], int] = {}
        self._memory: list[torch.Tensor] = []
        self._free: list[int] = []
        self._parts: dict[tuple[int, int], FlatBucket] = {}

    @property
    def num_held(self) -> int:
        """Pieces of memory, each as large as a chunk, that were ever needed at once."""
        return len(self._memory)

    def begin(self) -> None:
        """A step begins; what an abandoned one has left is forgotten."""
        self._held.clear()
        self._free = list(range(len(self._memory)))[::-1]

    def take(self, logical_rank: int, grads: Sequence[torch.Tensor], scale: float) -> None:
        """A finished turn's gradients; they are only read. Scaled on this thread as the user has set it up, summed with
        denormals kept."""
        flushing = flushes_denormals()
        flats: dict[int, torch.Tensor] = {}
        # What the chunk that starts here sets free is enough for the others.
        for chunk in sorted(self.chunks, key=lambda chunk: self.starts_at(chunk) != logical_rank):
            cut = [self._cut(piece, grads[piece.place], flats) for piece in self._pieces[chunk.index]]
            added = self._alone and logical_rank == self.ranks[-1] and self.starts_at(chunk) != logical_rank
            part = self._scratch(chunk) if added else self._target(logical_rank, chunk)
            part.set_scaled(cut, scale)
            if flushing:
                torch.set_flush_denormal(False)
            if added:
                self._sums[chunk.index].flat.add_(part.flat)
                self._add(chunk, range(logical_rank - 1, self.starts_at(chunk), -1))
            elif self.starts_at(chunk) == logical_rank:
                self._add(chunk, range(logical_rank - 1, self.ranks.start - 1, -1))
            if flushing:
                torch.set_flush_denormal(True)

    def stage(self, logical_rank: int, place: int, grad: torch.Tensor, scale: float) -> None:
        """One gradient of the last local turn, where others live elsewhere; `take` in parts, without the sums."""
        flats: dict[int, torch.Tensor] = {}
        for chunk, i in self._pieces_of[place]:
            piece = self._pieces[chunk.index][i]
            torch.mul(self._cut(piece, grad, flats), scale, out=self._target(logical_rank, chunk).views[i])

    def sum_staged(self, logical_rank: int) -> None:
        """All gradients of that turn are staged: the sum that begins with it."""
        for chunk in self.chunks:
            if self.starts_at(chunk) == logical_rank:
                self._add(chunk, range(logical_rank - 1, self.ranks.start - 1, -1))

    # ---- the walk, as `RingBucket` has it ----

    def start(self, chunk: Chunk, addends: Mapping[int, FlatBucket], total: torch.Tensor) -> None:
        """Was made when the turn of the chunk's first rank ended."""

    def pass_through(self, chunk: Chunk, addends: Mapping[int, FlatBucket], total: torch.Tensor) -> None:
        self._add(chunk, self.ranks[::-1])

    def come_home(self, chunk: Chunk, addends: Mapping[int, FlatBucket], total: torch.Tensor) -> None:
        self._add(chunk, range(self.ranks.stop - 1, self.starts_at(chunk), -1))

    def sum_in_place(self, addends: Mapping[int, FlatBucket]) -> FlatBucket:
        """Was made when the last turn ended."""
        return self._total

    def _add(self, chunk: Chunk, ranks: Sequence[int]) -> None:
        target = self._sums[chunk.index].flat
        for rank in ranks:
            number = self._held.pop((rank, chunk.index))
            target.add_(self._parts[number, chunk.index].flat)
            self._free.append(number)

    def _target(self, logical_rank: int, chunk: Chunk) -> FlatBucket:
        if self.starts_at(chunk) == logical_rank:
            return self._sums[chunk.index]
        number = self._held.get((logical_rank, chunk.index))
        if number is None:
            number = self._held[logical_rank, chunk.index] = self._take_memory()
        return self._numbered(number, chunk)

    def _scratch(self, chunk: Chunk) -> FlatBucket:
        """Memory for the moment: free again at once."""
        number = self._take_memory()
        self._free.append(number)
        return self._numbered(number, chunk)

    def _take_memory(self) -> int:
        if not self._memory:
            # In one block: many small ones would leave holes when the layout is rebuilt.
            size, most = self.chunks[0].stop - self.chunks[0].start, self._most_held()
            self._memory = list(self._total.flat.new_empty((most, size)).unbind(0))
            self._free = list(range(most))[::-1]
        return self._free.pop()

    def _most_held(self) -> int:
        """How many pieces are held at once, at most."""
        held = most = 0
        starting = {self.starts_at(chunk) for chunk in self.chunks}
        for rank in self.ranks:
            last, freed = rank == self.ranks[-1], rank - self.ranks.start if rank in starting else 0
            if last and self._alone:
                break  # is added to the total as it comes
            held += len(self.chunks) - (rank in starting) - freed
            # The last turn's gradients come one by one, before the sum that begins with it is made.
            most = max(most, held + (freed if last else 0))
        return max(1, most)

    def _numbered(self, number: int, chunk: Chunk) -> FlatBucket:
        part = self._parts.get((number, chunk.index))
        if part is None:
            part = self._part(chunk, self._memory[number][: chunk.stop - chunk.start])
            self._parts[number, chunk.index] = part
        return part

    def _part(self, chunk: Chunk, memory: torch.Tensor) -> FlatBucket:
        """The chunk as a bucket of its own, whose parameters are pieces."""
        shapes, offsets, at = [], [], 0
        for piece in self._pieces[chunk.index]:
            param = self._members[piece.place]
            shapes.append(param if piece.whole else memory[: piece.stop - piece.start])
            offsets.append(at)
            at += piece.stop - piece.start
        return FlatBucket(Bucket(tuple(range(len(shapes))), tuple(offsets), at), shapes, memory)

    def _cut(self, piece: _Piece, grad: torch.Tensor, flats: dict[int, torch.Tensor]) -> torch.Tensor:
        if piece.whole:
            return grad
        flat = flats.get(piece.place)
        if flat is None:
            strides = self._strides[piece.place]
            if grad.stride() != strides:
                grad = torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device=grad.device).copy_(grad)
            flat = flats[piece.place] = grad.detach().as_strided((grad.numel(),), (1,))
        return flat[piece.start : piece.stop]


def _pieces(bucket: Bucket, chunk: Chunk) -> list[_Piece]:
    pieces, ends = [], [*bucket.offsets[1:], bucket.numel]
    for place, (start, stop) in enumerate(zip(bucket.offsets, ends, strict=True)):
        low, high = max(start, chunk.start), min(stop, chunk.stop)
        if low < high or (start == stop and chunk.start <= start < chunk.stop):
            pieces.append(_Piece(place, low - start, high - start, low == start and high == stop))
    return pieces
