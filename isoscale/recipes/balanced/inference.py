"""A pruned model for inference: a copy in which pruned layers are packed ones, all of them or those where it pays.

Calling a packed layer costs some microseconds more than calling a dense one, and dense products of many vectors run at
the processor's peak, which packed ones do not. So a small layer may be slower for being packed. `pays` is the rule: it
looks at numbers of multiply-adds only, so a model is packed alike on every machine. It does not measure anything.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

import isoscale
from isoscale.recipes.balanced.layers import PackedConv2d, PackedLinear, PackedLSTM
from isoscale.recipes.balanced.pruning import weights_of

__all__ = ["PackedConv2d", "PackedLSTM", "PackedLinear", "pack_model", "pays"]

#: multiply-adds that must be saved: with one vector a dense product is bound by memory, else by arithmetic
_SAVED_FOR_ONE, _SAVED = 2**16, 2**18
#: out of ten weights of a convolution so many must be pruned
_TENTHS_OF_CONVOLUTION = 7


def pays(layer: nn.Module, masks: Mapping[str, torch.Tensor], vectors: int) -> bool:
    """Whether a layer is faster packed if its matrix is multiplied with so many vectors (pixels, for a convolution) in
    a call. An LSTM multiplies step by step, and must save enough in each."""
    pruned = {name: mask.numel() - int(mask.sum()) for name, mask in masks.items()}
    if isinstance(layer, nn.LSTM):
        return min(pruned.values()) >= _SAVED
    saved = pruned["weight"] * vectors
    if isinstance(layer, nn.Conv2d):
        return saved >= _SAVED and 10 * pruned["weight"] >= _TENTHS_OF_CONVOLUTION * masks["weight"].numel()
    return saved >= (_SAVED_FOR_ONE if vectors == 1 else _SAVED)


@torch.no_grad()
def pack_model(
    model: nn.Module, masks: Mapping[str, torch.Tensor], width: int, *, example: tuple[Any, ...] | None = None
) -> nn.Module:
    """A copy of `model` for inference. `masks` are a pruner's, by parameter name; layers without one stay dense.

    With an `example`, the arguments of a call such as there will be, layers stay dense too where packing does not pay
    for calls of that size. Without, all that have masks are packed: that takes least memory.
    """
    _check_masks(model, masks)
    packed = copy.deepcopy(model).eval().requires_grad_(False)
    own: dict[str, dict[str, torch.Tensor]] = {}
    for name, mask in masks.items():
        path, _, parameter = name.rpartition(".")
        own.setdefault(path, {})[parameter] = mask
    if example is not None:
        vectors = _vectors(packed, list(own), example)
        own = {path: mine for path, mine in own.items() if pays(packed.get_submodule(path), mine, vectors[path])}
    for path, mine in own.items():
        new = _packed(packed.get_submodule(path), mine, width)
        if not path:
            return new
        packed.set_submodule(path, new)
    return packed


def _packed(layer: nn.Module, masks: Mapping[str, torch.Tensor], width: int) -> nn.Module:
    if isinstance(layer, nn.LSTM):
        return PackedLSTM(layer, masks, width)
    if isinstance(layer, nn.Conv2d):
        return PackedConv2d(layer, masks["weight"], width)
    assert isinstance(layer, nn.Linear)
    return PackedLinear(layer, masks["weight"], width)


def _vectors(model: nn.Module, paths: list[str], example: tuple[Any, ...]) -> dict[str, int]:
    """With how many vectors each layer multiplies its matrix in a call; none for a layer that is not called."""
    found = dict.fromkeys(paths, 0)

    def count(layer: nn.Module, inputs: Any, output: Any, *, path: str) -> None:
        if not isinstance(layer, nn.LSTM):
            weight = layer.weight
            assert isinstance(weight, torch.Tensor)
            found[path] += output.numel() // weight.shape[0]

    hooks = [model.get_submodule(path).register_forward_hook(partial(count, path=path)) for path in paths]
    model(*example)
    for hook in hooks:
        hook.remove()
    return found


def _check_masks(model: nn.Module, masks: Mapping[str, torch.Tensor]) -> None:
    weights = weights_of(model)
    for name, mask in masks.items():
        if name not in weights:
            raise isoscale.UserError(
                field="masks",
                value=name,
                problem="no weight of a linear, convolution or LSTM layer of this model",
                remedy="give the model whose weights were pruned, not a wrapper of it, and masks by parameter name",
            )
        if mask.shape != weights[name].shape or mask.dtype != torch.bool:
            raise isoscale.UserError(
                field="masks",
                value=f"{name} {'x'.join(map(str, mask.shape))} {mask.dtype}",
                problem=f"not a mask of a weight of {'x'.join(map(str, weights[name].shape))}",
                remedy="give a torch.bool for every weight, True where it stays",
            )
        if bool((weights[name] != 0).masked_fill(mask, False).any()):
            raise isoscale.UserError(
                field="masks",
                value=name,
                problem="weights that are pruned are not zero, so the packed model would be another one",
                remedy="give weights and masks of the same step",
            )
