"""State as one block of bytes: nested dicts, lists, tuples, plain values and tensors to a uint8 tensor and back.

What comes back has the same types, the same bits and, where a tensor is dense without overlap, the same strides.
Nothing is pickled, so nothing that is read can run. Where a block travels, and whether what arrived is what was sent,
is for others (`core.encoding.fast_hash`). A tensor that appears twice is stored twice.

    8 bytes   magic, with the version             then the bytes of the tensors in the header's order, each tensor's
    8 bytes   size of the header                  in the order of its memory, each from a multiple of 64;
    8 bytes   size of everything                  gaps are zeros
    the header (`core.encoding.header`)

Numbers are little-endian, and so are the tensors: other machines are not supported.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import torch

from isoscale.core.encoding import header as headers

__all__ = ["pack", "packed_size", "unpack"]

_MAGIC = b"isostat1"
_PREFIX = struct.Struct("<8sQQ")
_ALIGNMENT = 64


def pack(tree: Any, *, into: torch.Tensor | None = None, told: Callable[[int], object] | None = None) -> torch.Tensor:
    """`tree` as a contiguous uint8 tensor on the CPU. Copies every byte once.

    `into`, a row of uint8 on the CPU, is used if it is large enough and aligned, and the result is then a view of its
    first bytes: fresh memory costs more than the copy. `told` is told how many bytes are there, again and again.
    Raises TypeError, with the place in the tree, for what it cannot hold.
    """
    header, tensors = headers.encode(tree)
    size = _size(header, tensors)
    block = into[:size] if into is not None and _is_usable(into, size) else torch.empty(size, dtype=torch.uint8)
    end = _PREFIX.size + len(header)
    block[:end] = torch.frombuffer(bytearray(_PREFIX.pack(_MAGIC, len(header), size) + header), dtype=torch.uint8)
    for tensor in tensors:
        start = _aligned(end)
        block[end:start] = 0
        end = start + tensor.numel() * tensor.itemsize
        bits = headers.bits(tensor)
        block[start:end].view(bits.dtype).as_strided(bits.shape, headers.kept_strides(tensor)).copy_(bits)
        if told is not None:
            told(end)
    return block


def packed_size(tree: Any) -> int:
    """How many bytes `pack` gives. Copies nothing."""
    return _size(*headers.encode(tree))


def unpack(block: torch.Tensor, *, copy: bool = True) -> Any:
    """The tree that was packed, its tensors on the CPU, writable and aligned.

    Each tensor has memory of its own; with `copy=False` they lie in the block's, if that is on the CPU and aligned.
    Raises ValueError for anything but a whole block.
    """
    if block.dtype != torch.uint8 or block.dim() != 1:
        raise ValueError(f"packed state is a row of uint8, not {block.dtype} of shape {tuple(block.shape)}")
    block = block.detach().cpu().contiguous()
    if block.numel() < _PREFIX.size:
        raise ValueError(f"packed state has at least {_PREFIX.size} bytes, not {block.numel()}")
    magic, header_size, size = _PREFIX.unpack(_bytes(block, 0, _PREFIX.size))
    if magic != _MAGIC:
        raise ValueError(f"not packed state: begins with {magic!r}, not {_MAGIC!r}")
    if block.numel() != size or header_size > size - _PREFIX.size:
        raise ValueError(f"damaged: {block.numel()} bytes instead of {size}, {header_size} of them header")
    end = _PREFIX.size + header_size
    reader = _Reader(block, end, copy=copy or not _is_usable(block, size))
    tree = headers.decode(_bytes(block, _PREFIX.size, end), reader.read)
    if reader.end != size:
        raise ValueError(f"damaged: the tensors end at byte {reader.end} of {size}")
    return tree


class _Reader:
    """Takes the tensors out of a block one after another."""

    def __init__(self, block: torch.Tensor, end: int, *, copy: bool) -> None:
        self._block = block
        self._copy = copy
        #: where the last tensor ended
        self.end = end

    def read(self, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
        start = _aligned(self.end)
        self.end = start + math.prod(shape) * dtype.itemsize
        # Before any memory is asked for: a damaged header may name more than there is.
        if self.end > self._block.numel():
            raise ValueError(f"damaged: {dtype} of shape {shape} ends at byte {self.end} of {self._block.numel()}")
        if self._copy:
            out = torch.empty_strided(shape, strides, dtype=dtype)
            row = out.as_strided((out.numel(),), (1,)).view(torch.uint8)
            row.copy_(self._block[start : self.end])
            return out
        offset = (self._block.storage_offset() + start) // dtype.itemsize
        # Not a view in autograd's eyes, as `block[...].view(dtype)` would be.
        return torch.empty(0, dtype=dtype).set_(self._block.untyped_storage(), offset, shape, strides)


def _size(header: bytes, tensors: list[torch.Tensor]) -> int:
    end = _PREFIX.size + len(header)
    for tensor in tensors:
        end = _aligned(end) + tensor.numel() * tensor.itemsize
    return end


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _is_usable(block: torch.Tensor, size: int) -> bool:
    is_row = block.dtype == torch.uint8 and block.dim() == 1 and block.is_contiguous() and block.numel() >= size
    is_aligned = block.data_ptr() % _ALIGNMENT == 0 and block.storage_offset() % _ALIGNMENT == 0
    return is_row and block.device.type == "cpu" and is_aligned


def _bytes(block: torch.Tensor, start: int, end: int) -> bytes:
    return block[start:end].numpy().tobytes()
