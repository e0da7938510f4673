"""A balanced matrix packed: the values that are kept, and where they lie in their blocks. Nothing else.

Since every block of every row keeps equally many, there are no row pointers, and a column within a block takes one
byte: 5 bytes per weight, where CSR takes 8 to 12. 64 rows form a group; the n-th kept values of a group's rows lie side
by side, in the manner of the paper's GPU kernel, where neighbouring threads read neighbouring values:

    values, indices    [groups, blocks of a row, kept in a block, 64]

`multiply` uses the compiled kernel if there is one, else torch. Made for inference: the product has no gradient, and
what is pruned is not multiplied, so infinity in x does not become NaN by it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import isoscale
from isoscale.recipes.balanced import kernel
from isoscale.recipes.balanced.patterns import as_matrix

__all__ = ["LANES", "PackedMatrix"]

LANES = 64
_MAX_WIDTH = 256


class PackedMatrix(nn.Module):
    """Values and indices are buffers: they are saved, loaded and moved with the model that the matrix is part of."""

    values: torch.Tensor
    indices: torch.Tensor

    def __init__(self, values: torch.Tensor, indices: torch.Tensor, *, rows: int, width: int) -> None:
        super().__init__()
        self.register_buffer("values", values)
        self.register_buffer("indices", indices)
        self.rows = rows
        self.width = width
        self.columns = values.shape[1] * width
        self._all_columns: torch.Tensor | None = None
        self._check_indices()
        self.register_load_state_dict_post_hook(_check_loaded)  # type: ignore[no-untyped-call]

    @classmethod
    def pack(cls, weight: torch.Tensor, mask: torch.Tensor, width: int) -> PackedMatrix:
        """From a float32 weight and a mask that keeps equally many in every block of `width` columns."""
        _check_pair(weight, mask)
        dense, kept = as_matrix(weight), as_matrix(mask)
        rows, columns = dense.shape
        _check_width(width, columns)
        in_blocks = kept.reshape(rows, columns // width, width)
        counts = in_blocks.sum(2)
        keep = int(counts[0, 0])
        if not bool((counts == keep).all()):
            raise isoscale.UserError(
                field="mask",
                value=f"{int(counts.min())} to {int(counts.max())} of {width}",
                problem="blocks keep different numbers of weights",
                remedy="prune with the pattern Balanced of the same width",
            )
        indices = in_blocks.nonzero()[:, 2].view(rows, columns // width, keep)
        values = dense.reshape(rows, columns // width, width).gather(2, indices)
        return cls(_interleave(values), _interleave(indices.to(torch.uint8)), rows=rows, width=width)

    def unpack(self) -> torch.Tensor:
        """The dense matrix, with zeros where nothing is kept."""
        indices, values = _separate(self.indices).long(), _separate(self.values)
        dense = values.new_zeros(*values.shape[:2], self.width).scatter_(2, indices, values)
        return dense.flatten(1)[: self.rows]

    @property
    def num_bytes(self) -> int:
        return self.values.nbytes + self.indices.nbytes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.multiply(x)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [..., columns] -> [..., rows], as `torch.nn.functional.linear` does."""
        if x.dim() < 1 or x.shape[-1] != self.columns:
            raise isoscale.UserError(
                field="x",
                value="x".join(map(str, x.shape)) or "a single number",
                problem=f"the matrix has {self.columns} columns",
                remedy="give x [..., columns]",
            )
        values, indices = self.for_input(x, bias)
        batch = x.detach().reshape(-1, self.columns).contiguous()
        compiled = self.kernel_for(x)
        if compiled is not None:
            y = x.new_empty(len(batch), self.rows)
            compiled.multiply(values, indices, batch, y, width=self.width, bias=bias)
        else:
            y = self.multiply_by_torch(batch)
            y = y if bias is None else y + bias
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self.rows)

    def multiply_by_torch(self, batch: torch.Tensor) -> torch.Tensor:
        """[batch, columns] -> [batch, rows]. Vector by vector, since each takes memory for as many elements as are
        kept."""
        if self._all_columns is None or self._all_columns.device != self.indices.device:
            first = torch.arange(self.values.shape[1], device=self.indices.device) * self.width
            self._all_columns = self.indices.long() + first.view(-1, 1, 1)
        y = batch.new_empty(len(batch), self.rows)
        for x, out in zip(batch, y, strict=True):
            out.copy_((self.values * x.take(self._all_columns)).sum((1, 2)).flatten()[: self.rows])
        return y

    def kernel_for(self, x: torch.Tensor) -> kernel.Kernel | None:
        return kernel.load() if x.device.type == "cpu" else None

    def for_input(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Values and indices, fit for x: all in float32 on one device, and no gradient is wanted."""
        values, indices = self._buffers["values"], self._buffers["indices"]
        assert values is not None
        assert indices is not None
        for name, tensor in (("x", x), ("packed values", values), ("bias", bias)):
            if tensor is None:
                continue
            if tensor.dtype != torch.float32:
                raise isoscale.UserError(
                    field=name,
                    value=tensor.dtype,
                    problem="packed products are of float32",
                    remedy="convert it: .float()",
                )
            if tensor.device != values.device:
                raise isoscale.UserError(
                    field=name,
                    value=tensor.device,
                    problem=f"the matrix is on {values.device}",
                    remedy="move one of them",
                )
            if tensor.requires_grad and torch.is_grad_enabled():
                raise isoscale.UserError(
                    field=name,
                    value="requires_grad",
                    problem="a packed product has no gradient",
                    remedy="call it under torch.no_grad(), or train the dense model",
                )
        if bias is not None and (bias.shape != (self.rows,) or not bias.is_contiguous()):
            raise isoscale.UserError(
                field="bias",
                value="x".join(map(str, bias.shape)),
                problem=f"the matrix has {self.rows} rows",
                remedy="give a contiguous vector with one element for each",
            )
        return values, indices

    def _check_indices(self) -> None:
        """The kernel looks nowhere but where an index says."""
        if self.indices.shape != self.values.shape or self.indices.dtype != torch.uint8:
            raise isoscale.UserError(
                field="indices",
                value=f"{tuple(self.indices.shape)} {self.indices.dtype}",
                problem=f"not a byte for each of the {tuple(self.values.shape)} values",
                remedy="make packed matrices with PackedMatrix.pack",
            )
        highest = int(self.indices.max()) if self.indices.numel() else 0
        if highest >= self.width:
            raise isoscale.UserError(
                field="indices",
                value=highest,
                problem=f"outside of a block of {self.width} columns",
                remedy="load the state of a matrix that was packed with the same width",
            )


def _check_loaded(matrix: nn.Module, _: Any) -> None:
    assert isinstance(matrix, PackedMatrix)
    matrix._all_columns = None
    matrix._check_indices()


def _check_pair(weight: torch.Tensor, mask: torch.Tensor) -> None:
    if weight.dtype != torch.float32:
        raise isoscale.UserError(
            field="weight", value=weight.dtype, problem="only float32 is packed", remedy="convert the model: .float()"
        )
    if mask.shape != weight.shape or mask.dtype != torch.bool:
        raise isoscale.UserError(
            field="mask",
            value=f"{'x'.join(map(str, mask.shape))} {mask.dtype}",
            problem=f"not a mask of a weight of {'x'.join(map(str, weight.shape))}",
            remedy="give a torch.bool for every weight, True where it stays",
        )


def _check_width(width: int, columns: int) -> None:
    if not isinstance(width, int) or not 1 <= width <= _MAX_WIDTH or columns % width:
        raise isoscale.UserError(
            field="block width",
            value=width,
            problem=f"does not divide {columns} columns, or does not fit an index of one byte",
            remedy=f"choose a divisor up to {_MAX_WIDTH}",
        )


def _interleave(rows: torch.Tensor) -> torch.Tensor:
    """[rows, blocks, keep] -> [groups, blocks, keep, lanes]; rows that fill up the last group are zeros."""
    missing = -rows.shape[0] % LANES
    whole = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
    return whole.reshape(len(whole) // LANES, LANES, *rows.shape[1:]).permute(0, 2, 3, 1).contiguous()


def _separate(lanes: torch.Tensor) -> torch.Tensor:
    """The way back, filled-up rows included."""
    return lanes.permute(0, 3, 1, 2).flatten(0, 1)
