"""A pruned model for inference: linear, convolution and LSTM layers whose weights are packed.

`pack_model` gives a copy with the same parameters otherwise. Packed layers have no gradients and no dropout of their
own; they compute what the dense layers would, in another order of summation.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

import isoscale
from isoscale.recipes.balanced.packed import PackedMatrix

__all__ = ["PackedConv2d", "PackedLSTM", "PackedLinear", "pack_model"]

State = tuple[torch.Tensor, torch.Tensor]


class PackedLinear(nn.Module):
    def __init__(self, layer: nn.Linear, mask: torch.Tensor, width: int) -> None:
        super().__init__()
        self.matrix = PackedMatrix.pack(layer.weight, mask, width)
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.matrix.multiply(x)
        return y if self.bias is None else y + self.bias


class PackedConv2d(nn.Module):
    """A convolution as a product with all patches of the image."""

    def __init__(self, layer: nn.Conv2d, mask: torch.Tensor, width: int) -> None:
        super().__init__()
        if layer.groups != 1 or isinstance(layer.padding, str) or layer.padding_mode != "zeros":
            raise _unsupported("groups", layer.groups, "only plain convolutions with zeros as padding are packed")
        self.matrix = PackedMatrix.pack(layer.weight, mask, width)
        self.bias = layer.bias
        self._kernel = layer.kernel_size
        self._window = {"dilation": layer.dilation, "padding": layer.padding, "stride": layer.stride}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = F.unfold(x, self._kernel, **self._window)
        y = self.matrix.multiply(patches.transpose(1, 2)).transpose(1, 2)
        if self.bias is not None:
            y = y + self.bias[:, None]
        height = x.shape[2] + 2 * self._at("padding", 0) - self._at("dilation", 0) * (self._kernel[0] - 1) - 1
        return y.reshape(x.shape[0], self.matrix.rows, height // self._at("stride", 0) + 1, -1)

    def _at(self, name: str, axis: int) -> int:
        value = self._window[name][axis]
        assert isinstance(value, int)
        return value


class PackedLSTM(nn.Module):
    """nn.LSTM with `batch_first`, one direction and biases: (x [batch, length, inputs], state) -> (outputs, state)."""

    def __init__(self, layer: nn.LSTM, masks: Mapping[str, torch.Tensor], width: int) -> None:
        super().__init__()
        if layer.bidirectional or layer.proj_size or not layer.batch_first or not layer.bias:
            raise _unsupported("LSTM", layer, "only batch_first, one direction, with biases and without projection")
        self.hidden = layer.hidden_size
        parameters = dict(layer.named_parameters())

        def packed(name: str) -> PackedMatrix:
            return PackedMatrix.pack(parameters[name], masks[name], width)

        numbers = range(layer.num_layers)
        self._of_input = [packed(f"weight_ih_l{n}") for n in numbers]
        self._of_memory = [packed(f"weight_hh_l{n}") for n in numbers]
        self._biases = [(parameters[f"bias_ih_l{n}"] + parameters[f"bias_hh_l{n}"]).detach() for n in numbers]

    def forward(self, x: torch.Tensor, state: State | None = None) -> tuple[torch.Tensor, State]:
        if state is None:
            empty = x.new_zeros(len(self._biases), x.shape[0], self.hidden)
            state = (empty, empty)
        hidden, cells = [], []
        for n, bias in enumerate(self._biases):
            x, h, c = self._layer(n, x, bias, state[0][n], state[1][n])
            hidden.append(h)
            cells.append(c)
        return x, (torch.stack(hidden), torch.stack(cells))

    def _layer(
        self, n: int, x: torch.Tensor, bias: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        outputs = []
        for inputs in (self._of_input[n].multiply(x) + bias).unbind(1):
            let_in, forget, new, let_out = (inputs + self._of_memory[n].multiply(h)).chunk(4, 1)
            c = forget.sigmoid() * c + let_in.sigmoid() * new.tanh()
            h = let_out.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs, 1), h, c


@torch.no_grad()
def pack_model(model: nn.Module, masks: Mapping[str, torch.Tensor], width: int) -> nn.Module:
    """A copy of `model` for inference. `masks` are a pruner's, by parameter name; layers without one stay dense."""
    packed = copy.deepcopy(model).eval()
    for path, layer in list(packed.named_modules()):
        own = {name.removeprefix(f"{path}."): mask for name, mask in masks.items() if name.rpartition(".")[0] == path}
        if not own:
            continue
        if isinstance(layer, nn.LSTM):
            packed.set_submodule(path, PackedLSTM(layer, own, width))
        elif isinstance(layer, nn.Conv2d):
            packed.set_submodule(path, PackedConv2d(layer, own["weight"], width))
        elif isinstance(layer, nn.Linear):
            packed.set_submodule(path, PackedLinear(layer, own["weight"], width))
    return packed


def _unsupported(field: str, value: object, problem: str) -> isoscale.UserError:
    return isoscale.UserError(field=field, value=value, problem=problem, remedy="leave the layer dense: give no mask")
