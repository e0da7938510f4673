"""A balanced matrix packed: the values that are kept, and where they lie in their blocks. Nothing else.

Since every block of every row keeps equally many, there are no row pointers, and a column within a block takes one
byte: 5 bytes per weight, where CSR takes 8 to 12. 64 rows form a group; the n-th kept values of a group's rows lie side
by side, in the manner of the paper's GPU kernel, where neighbouring threads read neighbouring values:

    values, indices    [groups, blocks of a row, kept in a block, 64]

`multiply` uses the compiled kernel if there is one, else torch. Made for inference: the product has no gradient, and
what is pruned is not multiplied, so infinity in x does not become NaN by it.
"""

from __future__ import annotations

import torch

import isoscale
from isoscale.recipes.balanced import kernel
from isoscale.recipes.balanced.patterns import as_matrix

__all__ = ["LANES", "PackedMatrix"]

LANES = 64
_MAX_WIDTH = 256


class PackedMatrix:
    def __init__(self, values: torch.Tensor, indices: torch.Tensor, *, rows: int, width: int) -> None:
        self.values = values
        self.indices = indices
        self.rows = rows
        self.width = width
        self._all_columns: torch.Tensor | None = None

    @classmethod
    def pack(cls, weight: torch.Tensor, mask: torch.Tensor, width: int) -> PackedMatrix:
        """From a float32 weight and a mask that keeps equally many in every block of `width` columns."""
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
        values = dense.float().reshape(rows, columns // width, width).gather(2, indices)
        return cls(_interleave(values), _interleave(indices.to(torch.uint8)), rows=rows, width=width)

    def unpack(self) -> torch.Tensor:
        """The dense matrix, with zeros where nothing is kept."""
        indices, values = _separate(self.indices).long(), _separate(self.values)
        dense = torch.zeros(*values.shape[:2], self.width).scatter_(2, indices, values)
        return dense.flatten(1)[: self.rows]

    @property
    def columns(self) -> int:
        return self.values.shape[1] * self.width

    @property
    def num_bytes(self) -> int:
        return self.values.nbytes + self.indices.nbytes

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., columns] -> [..., rows], as `torch.nn.functional.linear` does."""
        if x.shape[-1] != self.columns or x.dtype != torch.float32:
            raise isoscale.UserError(
                field="x",
                value=f"{tuple(x.shape)} {x.dtype}",
                problem=f"the matrix has {self.columns} columns of float32",
                remedy="give x [..., columns] in float32",
            )
        batch = x.detach().reshape(-1, self.columns).contiguous()
        compiled = kernel.load()
        if compiled is not None and x.device.type == "cpu":
            y = compiled.multiply(self.values, self.indices, batch, width=self.width)
        else:
            y = self.multiply_by_torch(batch)
        return y[:, : self.rows].reshape(*x.shape[:-1], self.rows)

    def multiply_by_torch(self, batch: torch.Tensor) -> torch.Tensor:
        """[batch, columns] -> [batch, rows padded to whole groups]. Vector by vector, since each takes memory for as
        many elements as are kept."""
        if self._all_columns is None:
            first = torch.arange(self.values.shape[1], device=self.indices.device) * self.width
            self._all_columns = self.indices.long() + first.view(-1, 1, 1)
        y = batch.new_empty(len(batch), self.values.shape[0] * LANES)
        for x, out in zip(batch, y, strict=True):
            out.copy_((self.values * x.take(self._all_columns)).sum((1, 2)).flatten())
        return y


def _check_width(width: int, columns: int) -> None:
    if not 1 <= width <= _MAX_WIDTH or columns % width:
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
