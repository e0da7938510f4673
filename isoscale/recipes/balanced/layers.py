"""Linear, convolution and LSTM layers whose weights are packed, for inference.

They compute what the dense layers would, in an order of summation that is the same on every machine and for every
batch. No gradients, and no dropout of their own. `inference` decides which layers of a model become such.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

import isoscale
from isoscale.recipes.balanced.kernel import Window
from isoscale.recipes.balanced.packed import PackedMatrix

__all__ = ["PackedConv2d", "PackedLSTM", "PackedLinear"]

State = tuple[torch.Tensor, torch.Tensor]


class PackedLinear(nn.Module):
    def __init__(self, layer: nn.Linear, mask: torch.Tensor, width: int) -> None:
        super().__init__()
        self.matrix = PackedMatrix.pack(layer.weight, mask, width)
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.matrix.multiply(x, self.bias)


class PackedConv2d(nn.Module):
    """Without a kernel the weights are unpacked at every call, and torch convolves."""

    def __init__(self, layer: nn.Conv2d, mask: torch.Tensor, width: int) -> None:
        super().__init__()
        if layer.groups != 1:
            raise _unsupported("groups", layer.groups, "only convolutions with one group are packed")
        if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
            asked = layer.padding if layer.padding_mode == "zeros" else layer.padding_mode
            raise _unsupported("padding", asked, "only convolutions padded with a given number of zeros are packed")
        self.matrix = PackedMatrix.pack(layer.weight, mask, width)
        self.bias = layer.bias
        self._shape = tuple(layer.weight.shape)
        self._window: Window = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 3:
            return self.forward(x[None])[0]
        size = _output_size(self._window, self._shape, tuple(x.shape))
        matrix, bias = self.matrix, self.bias
        values, indices = matrix.for_input(x, bias)
        compiled = matrix.kernel_for(x)
        if compiled is None:
            _, stride, padding, dilation = self._window
            return F.conv2d(x, matrix.unpack().view(self._shape), bias, stride, padding, dilation)
        y = x.new_empty(x.shape[0], matrix.rows, *size)
        x = x.detach().contiguous()
        compiled.convolve(values, indices, x, y, width=matrix.width, window=self._window, bias=bias)
        return y


@functools.lru_cache(maxsize=256)
def _output_size(window: Window, kernel: tuple[int, ...], x: tuple[int, ...]) -> tuple[int, ...]:
    """Height and width; refuses what the kernel cannot be applied to."""
    sides = zip(x[2:], *window, strict=False)
    size = tuple((n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k, stride, padding, dilation in sides)
    if len(x) != 4 or x[1] != kernel[1] or min(size) < 1:
        raise isoscale.UserError(
            field="x",
            value="x".join(map(str, x)),
            problem=f"a kernel of {'x'.join(map(str, kernel))} does not fit",
            remedy=f"give [images, {kernel[1]}, height, width], padded no smaller than the kernel",
        )
    return size


class PackedLSTM(nn.Module):
    """nn.LSTM with `batch_first`, one direction and biases: (x [batch, length, inputs], state) -> (outputs, state)."""

    def __init__(self, layer: nn.LSTM, masks: Mapping[str, torch.Tensor], width: int) -> None:
        super().__init__()
        if layer.bidirectional or layer.proj_size or not layer.batch_first or not layer.bias:
            raise _unsupported("LSTM", layer, "only batch_first, one direction, with biases and without projection")
        self.inputs, self.hidden = layer.input_size, layer.hidden_size
        parameters = dict(layer.named_parameters())

        def packed(name: str) -> PackedMatrix:
            if name not in masks:
                raise _unsupported("masks", ", ".join(masks), f"an LSTM is packed as a whole, and {name} has no mask")
            return PackedMatrix.pack(parameters[name], masks[name], width)

        numbers = range(layer.num_layers)
        self.of_input = nn.ModuleList([packed(f"weight_ih_l{n}") for n in numbers])
        self.of_memory = nn.ModuleList([packed(f"weight_hh_l{n}") for n in numbers])
        biases = [parameters[f"bias_ih_l{n}"] + parameters[f"bias_hh_l{n}"] for n in numbers]
        self.biases: torch.Tensor
        self.register_buffer("biases", torch.stack(biases).detach())

    def forward(self, x: torch.Tensor, state: State | None = None) -> tuple[torch.Tensor, State]:
        if not isinstance(x, torch.Tensor) or x.dim() != 3 or not x.shape[1]:
            raise isoscale.UserError(
                field="x",
                value="x".join(map(str, x.shape)) if isinstance(x, torch.Tensor) else type(x).__name__,
                problem="not a batch of sequences",
                remedy=f"give [batch, length, {self.inputs}], with a length of at least 1",
            )
        expected = (len(self.biases), x.shape[0], self.hidden)
        if state is None:
            empty = x.new_zeros(expected)
            state = (empty, empty)
        for tensor in state:
            if tensor.shape != expected:
                raise isoscale.UserError(
                    field="state",
                    value="x".join(map(str, tensor.shape)),
                    problem=f"not {'x'.join(map(str, expected))}",
                    remedy="give hidden and cell state, each [layers, batch, hidden]",
                )
        hidden, cells = [], []
        for n, bias in enumerate(self.biases):
            x, h, c = self._layer(n, x, bias, state[0][n], state[1][n])
            hidden.append(h)
            cells.append(c)
        return x, (torch.stack(hidden), torch.stack(cells))

    def _layer(
        self, n: int, x: torch.Tensor, bias: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        outputs = []
        of_memory = self.of_memory[n]
        for inputs in (self.of_input[n](x) + bias).unbind(1):
            let_in, forget, new, let_out = (inputs + of_memory(h)).chunk(4, 1)
            c = forget.sigmoid() * c + let_in.sigmoid() * new.tanh()
            h = let_out.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs, 1), h, c


def _unsupported(field: str, value: object, problem: str) -> isoscale.UserError:
    return isoscale.UserError(field=field, value=value, problem=problem, remedy="leave the layer dense: give no mask")
