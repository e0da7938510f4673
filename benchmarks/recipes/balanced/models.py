"""Whole models packed against dense, one thread; a part of `speed`.

A step of the paper's two-layer LSTM-1500, with and without its word layer; VGG-16 with the paper's sparsity of every
layer and one image of 224 x 224; balanced_cnn with one image and with 16. Layers stay dense where `pays` says so.
Weights are random: time does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from isoscale.recipes import balanced_cnn
from isoscale.recipes.balanced.inference import pack_model
from isoscale.recipes.balanced.layers import PackedConv2d, PackedLinear, PackedLSTM
from isoscale.recipes.balanced.patterns import Balanced
from isoscale.recipes.balanced.pruning import weights_of

Work = Callable[[], Any]
#: runs all in random order so many times, and gives 10th percentiles in microseconds
Timed = Callable[..., dict[str, float]]
#: channels of VGG-16's convolutions, with the sparsity that the paper gives them, in percent; a pool ends each group
VGG_CONVOLUTIONS = (
    ((64, 34), (64, 68)),
    ((128, 65), (128, 71)),
    ((256, 45), (256, 79), (256, 88)),
    ((512, 86), (512, 91), (512, 88)),
    ((512, 86), (512, 90), (512, 95)),
)
VGG_LINEAR = ((4096, 93), (4096, 93), (1000, 75))
VGG_WIDTH = 64


class WordModel(nn.Module):
    """The paper's language model: two layers of 1500, 10,000 words."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1500, 1500, 2, batch_first=True)
        self.words = nn.Linear(1500, 10_000)

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        outputs, state = self.lstm(x, state)
        return self.words(outputs), state


class Cells(nn.Module):
    """The same layers step by step: nn.LSTM rearranges all its weights in every call, which one step cannot repay."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(lstm.input_size, lstm.hidden_size) for _ in range(lstm.num_layers)])
        for n, cell in enumerate(self.cells):
            cell.load_state_dict({name: getattr(lstm, f"{name}_l{n}") for name in cell.state_dict()})

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        x, states = x[:, 0], []
        for cell, h, c in zip(self.cells, *state, strict=True):
            states.append(cell(x, (h, c)))
            x = states[-1][0]
        return x[:, None], states


def masks_of(model: nn.Module, exclude: tuple[str, ...], width: int, keep: int) -> dict[str, torch.Tensor]:
    pattern = Balanced(width)
    masks = {}
    for name, weight in weights_of(model, exclude=exclude).items():
        masks[name] = pattern.mask(weight, torch.ones_like(weight, dtype=torch.bool), lambda _: keep)
        weight.data.masked_fill_(~masks[name], 0.0)
    return masks


class Vgg(nn.Module):
    """With the masks that the paper's sparsities ask for, to the nearest weight of a block; its first layer, whose rows
    no block of 64 divides, stays dense."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        self.masks: dict[str, torch.Tensor] = {}
        size = 3

        def add(layer: nn.Conv2d | nn.Linear, percent: int) -> None:
            if layer.weight[0].numel() % VGG_WIDTH == 0:
                keep = round(VGG_WIDTH * (100 - percent) / 100)
                # Places differ from row to row, as they would; they come again after 512 rows, to spare sorting.
                rows, columns = layer.weight.flatten(1).shape
                scores = torch.randn(min(rows, 512), columns)
                mask = Balanced(VGG_WIDTH).mask(scores, torch.ones_like(scores, dtype=torch.bool), lambda _: keep)
                mask = mask.repeat(-(-rows // len(mask)), 1)[:rows].view(layer.weight.shape)
                layer.weight.data.mul_(mask)
                self.masks[f"layers.{len(layers)}.weight"] = mask
            layers.extend([layer, nn.ReLU()])

        for group in VGG_CONVOLUTIONS:
            for channels, percent in group:
                add(nn.Conv2d(size, channels, 3, padding=1), percent)
                size = channels
            layers.append(nn.MaxPool2d(2))
        layers.append(nn.Flatten())
        size *= 7 * 7
        for outputs, percent in VGG_LINEAR:
            add(nn.Linear(size, outputs), percent)
            size = outputs
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


def num_packed(model: nn.Module) -> int:
    return sum(isinstance(layer, PackedConv2d | PackedLinear | PackedLSTM) for layer in model.modules())


@torch.no_grad()
def whole_models(timed: Timed, rounds: int, *, only_small: bool = False) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    if only_small:
        return _images(timed, rounds)
    return [*_language_models(timed, rounds), *_images(timed, rounds), _vgg(timed, max(2, rounds // 6))]


def _row(model: str, sparsity: Any, packed: nn.Module, us: dict[str, float]) -> dict[str, Any]:
    ratio = round(us["dense"] / us["packed"], 2)
    return {"model": model, "sparsity": sparsity, "packed": num_packed(packed), "us": us, "against_dense": ratio}


def _language_models(timed: Timed, rounds: int) -> list[dict[str, Any]]:
    model, x = WordModel().eval(), torch.randn(1, 1, 1500)
    state = (torch.randn(2, 1, 1500), torch.randn(2, 1, 1500))
    masks = masks_of(model, (), 50, 10)
    lstm_masks = {name: mask for name, mask in masks.items() if name.startswith("lstm")}
    lstm, both = (pack_model(model, chosen, 50, example=(x, state)) for chosen in (lstm_masks, masks))
    dense, packed = Cells(model.lstm), lstm.get_submodule("lstm")
    lstm_work: dict[str, Work] = {
        "dense": lambda: dense(x, state),
        "dense_nn_lstm": lambda: model.lstm(x, state),
        "packed": lambda: packed(x, state),
    }
    word_work: dict[str, Work] = {
        "dense": lambda: model.words(dense(x, state)[0]),
        "packed": lambda: both(x, state),
        "packed_but_words": lambda: lstm(x, state),
    }
    return [
        _row("2 layers of LSTM-1500, one step", 0.8, lstm, timed(lstm_work, rounds, hot=True)),
        _row("the same and 10,000 words, one step", 0.8, both, timed(word_work, rounds, hot=True)),
    ]


def _images(timed: Timed, rounds: int) -> list[dict[str, Any]]:
    network, rows = balanced_cnn.network().eval(), []
    masks = masks_of(network, balanced_cnn.DENSE_LAYERS, 20, 4)
    for images in (1, 16):
        x = torch.randn(images, 1, 28, 28)
        packed = pack_model(network, masks, 20, example=(x,))
        work: dict[str, Work] = {"dense": lambda x=x: network(x), "packed": lambda x=x, packed=packed: packed(x)}  # type: ignore[misc]
        name = f"balanced_cnn, {'one image' if images == 1 else f'{images} images'}"
        rows.append(_row(name, 0.8, packed, timed(work, max(1, 10 * rounds // images), hot=True)))
    return rows


def _vgg(timed: Timed, rounds: int) -> dict[str, Any]:
    model, x = Vgg().eval(), torch.randn(1, 3, 224, 224)
    packed = pack_model(model, model.masks, VGG_WIDTH, example=(x,))
    assert torch.allclose(packed(x), model(x), atol=1e-3)
    work: dict[str, Work] = {"dense": lambda: model(x), "packed": lambda: packed(x)}
    pruned = sum(int((~mask).sum()) for mask in model.masks.values())
    share = round(pruned / sum(weight.numel() for weight in weights_of(model).values()), 3)
    return _row("VGG-16, one image of 224 x 224", share, packed, timed(work, rounds, hot=False))
