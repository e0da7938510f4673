"""Networks that are written by hand are what their papers say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from isoscale.recipes import shufflenet, vgg


def test_a_shuffle_takes_the_halves_in_turn() -> None:
    x = torch.arange(6.0).view(1, 6, 1, 1).expand(2, 6, 3, 4)
    assert shufflenet.shuffle(x)[0, :, 0, 0].tolist() == [0, 3, 1, 4, 2, 5]
    assert shufflenet.shuffle(x).shape == x.shape


def test_half_of_the_channels_pass_a_unit_untouched() -> None:
    unit = shufflenet.Unit(8, 8, stride=1)
    x = torch.randn(2, 8, 5, 5)
    assert torch.equal(unit(x)[:, ::2], x[:, :4])


def test_a_unit_with_stride_halves_the_image() -> None:
    assert shufflenet.Unit(6, 16, stride=2)(torch.randn(2, 6, 14, 14)).shape == (2, 16, 7, 7)


def test_shufflenet_has_the_units_of_the_paper() -> None:
    units = [layer for layer in shufflenet.network(48).children() if isinstance(layer, shufflenet.Unit)]
    assert [unit.stride for unit in units] == [2, *[1] * 3, 2, *[1] * 7, 2, *[1] * 3]


def test_vgg_has_six_convolutions_and_dropout_between_three_linear_layers() -> None:
    layers = [type(layer) for layer in vgg.network(8).children()]
    assert layers.count(nn.Conv2d) == layers.count(nn.BatchNorm2d) == 6
    assert [kind for kind in layers if kind in (nn.Linear, nn.Dropout)] == [
        nn.Linear,
        nn.Dropout,
        nn.Linear,
        nn.Dropout,
        nn.Linear,
    ]


@pytest.mark.parametrize("network", [shufflenet.network, vgg.network])
def test_scores_by_class_depend_on_every_parameter(network: Callable[[int], nn.Module]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = network(8)
        scores = model(torch.randn(10, 1, 28, 28))
        F.cross_entropy(scores, torch.arange(10)).backward()
    assert scores.shape == (10, 10)
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
