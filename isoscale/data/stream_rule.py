"""The rule by which a stream's samples are given to logical workers: a function of the run, never of the placement.

An epoch's partitions stand in one order, drawn from seed and epoch. Before every step each logical worker that has
fewer unused samples than it looks ahead (a batch, a full shuffle buffer, and the batches that loader processes make
ahead) is given the next partition, in order of logical rank; those who still have too few are given another one, in
rounds, until all have enough or none is left. So a partition goes to the first worker that runs dry, in order of
(global step, round, logical rank), and nobody has to know how large it is. What a worker reads is shuffled block by
block. When the partitions are used up the tail rule ends the epoch for all workers at the same step.

Pure arithmetic on counts; `runtime.reference.stream` computes the same from the sizes of all partitions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

__all__ = ["Rule", "Tail", "block_order", "deal", "partition_order"]

Tail = Literal["partial", "drop", "carry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    num_logical_workers: int
    batch_size: int
    seed: int = 0
    shuffle_partitions: bool = True
    #: samples per block of the shuffle; 0 and 1 leave the order as it is read
    shuffle_buffer: int = 0
    #: what happens when partitions are used up: the rest is dealt evenly, left out, or kept for the next epoch
    tail: Tail = "partial"

    #: batches of a worker that loader processes make ahead
    prefetch: int = 0

    @property
    def need(self) -> int:
        """A worker with so many unused samples can take a batch whatever partitions it is given later.

        A batch may reach into the block after the present one, which must be whole by then. And more than a batch
        in any case: then every worker keeps a sample after each full step, so that the rest can be dealt to all.
        """
        return self.batch_size + max(1, self.shuffle_buffer)

    @property
    def ahead(self) -> int:
        """A worker with fewer unused samples asks for a partition."""
        return self.need + self.prefetch * self.batch_size


def partition_order(num_partitions: int, rule: Rule, epoch: int) -> list[int]:
    """In which order partitions are given out; shuffled as `DistributedSampler` shuffles samples."""
    if not rule.shuffle_partitions:
        return list(range(num_partitions))
    generator = torch.Generator().manual_seed(rule.seed + epoch)
    return [int(p) for p in torch.randperm(num_partitions, generator=generator)]


def block_order(size: int, seed: int, epoch: int, logical_rank: int, block: int) -> list[int]:
    """In which order a worker uses the samples of its `block`-th block.

    >>> sorted(block_order(4, 0, 0, 0, 0)) == [0, 1, 2, 3]
    True
    """
    key = hashlib.sha256(f"{seed}/{epoch}/{logical_rank}/{block}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:4], "big"))
    order: list[int] = torch.randperm(size, generator=generator).tolist()
    return order


def deal(rest: Sequence[int], rule: Rule) -> list[int]:
    """Bounds of the tail's batches in what all workers have left, rank after rank: batch k * N + r is worker r's in
    step k.

    As few steps as the batch size allows, batches as equal as can be, the larger ones first, none empty. (With
    batch_size=1 and a rest that N does not divide, that takes some batches of two.) Empty if there are fewer samples
    than logical workers.

    >>> deal([3, 0, 4], Rule(num_logical_workers=3, batch_size=2))
    [0, 2, 3, 4, 5, 6, 7]
    """
    total, n = sum(rest), rule.num_logical_workers
    if total < n:
        return []
    steps = min(-(-total // (n * rule.batch_size)), total // n)
    base, extra = divmod(total, steps * n)
    bounds = [0]
    for batch in range(steps * n):
        bounds.append(bounds[-1] + base + (batch < extra))
    return bounds
