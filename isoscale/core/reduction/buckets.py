"""Which gradient lies where in which bucket: stock DDP's layout, as a value.

Membership and offsets decide the bits of a ring all-reduce, so the layout is computed by torch's
own function and kept as job state. Stock DDP uses two layouts in a run: one before the first
synchronised backward, and one rebuilt from the order in which gradients became ready on rank 0.
Nothing here touches gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

__all__ = ["Bucket", "BucketCaps", "Layout", "first_layout", "rebuilt_layout"]

_MIB = 1024 * 1024
_DEFAULT_CAP_MIB = 25.0


@dataclass(frozen=True, slots=True)
class Bucket:
    #: parameter indices in bucket order, and the element offset of each
    params: tuple[int, ...]
    offsets: tuple[int, ...]
    numel: int


@dataclass(frozen=True, slots=True)
class Layout:
    buckets: tuple[Bucket, ...]
    #: True once no further rebuild can happen
    final: bool

    def to_state(self) -> dict[str, Any]:
        return {"buckets": [list(b.params) for b in self.buckets], "final": self.final}

    @classmethod
    def from_state(cls, state: dict[str, Any], params: Sequence[torch.Tensor]) -> Layout:
        return _layout(state["buckets"], params, final=state["final"])


@dataclass(frozen=True, slots=True)
class BucketCaps:
    """DDP's size limits in bytes: the first bucket is small by default so that the exchange starts early."""

    first: int
    rest: int

    @classmethod
    def from_mb(cls, bucket_cap_mb: float | None) -> BucketCaps:
        rest = int((_DEFAULT_CAP_MIB if bucket_cap_mb is None else bucket_cap_mb) * _MIB)
        return cls(_MIB if bucket_cap_mb is None else rest, rest)


def first_layout(params: Sequence[torch.Tensor], caps: BucketCaps, *, find_unused: bool) -> Layout:
    """The layout before any backward: registration order; final at once if unused parameters are searched for."""
    limits = [sys.maxsize]
    if find_unused:
        limits = [caps.first, caps.rest] if caps.first < caps.rest else [caps.rest]
    assignment, _ = c10d._compute_bucket_assignment_by_size(list(params), limits, [False] * len(params))
    return _layout(list(reversed(assignment)), params, final=find_unused)


def rebuilt_layout(params: Sequence[torch.Tensor], ready_order: Sequence[int], caps: BucketCaps) -> Layout:
    """The layout after the first synchronised backward, from logical worker 0's order of readiness."""
    ordered = [params[i] for i in ready_order]
    assignment, _ = c10d._compute_bucket_assignment_by_size(
        ordered, [caps.first, caps.rest], [False] * len(ordered), list(ready_order)
    )
    return _layout(assignment, params, final=True)


def _layout(assignment: Sequence[Sequence[int]], params: Sequence[torch.Tensor], *, final: bool) -> Layout:
    return Layout(tuple(_bucket(members, params) for members in assignment), final)


def _bucket(members: Sequence[int], params: Sequence[torch.Tensor]) -> Bucket:
    offsets, numel = [], 0
    for index in members:
        offsets.append(numel)
        numel += params[index].numel()
    return Bucket(tuple(members), tuple(offsets), numel)
