"""Packed layers and models against dense ones; which layers are packed; what is refused."""

from __future__ import annotations

import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isoscale
from isoscale.recipes import balanced_cnn, balanced_lstm
from isoscale.recipes.balanced import kernel
from isoscale.recipes.balanced.inference import PackedConv2d, PackedLinear, PackedLSTM, pack_model, pays
from isoscale.recipes.balanced.patterns import Balanced
from isoscale.recipes.balanced.pruning import weights_of

compiled = pytest.mark.skipif(kernel.load() is None, reason="no compiler")


def prune(model: nn.Module, width: int, keep: int, exclude: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
    masks = {}
    for name, weight in weights_of(model, exclude=exclude).items():
        masks[name] = Balanced(width).mask(weight, torch.ones_like(weight, dtype=torch.bool), lambda _: keep)
        weight.data.masked_fill_(~masks[name], 0.0)
    return masks


# ---- whole models ----


def language_model() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = balanced_lstm.LanguageModel(30, 20, layers=2).eval()
    return model, pack_model(model, prune(model, 10, 2, ("words",)), 10)


def test_a_packed_language_model_predicts_what_the_dense_one_does() -> None:
    model, packed = language_model()
    ids = torch.randint(0, 30, (3, 7))
    with torch.no_grad():
        assert torch.allclose(packed(ids), model(ids), atol=1e-5)
        x, state = torch.randn(2, 1, 20), (torch.randn(2, 2, 20), torch.randn(2, 2, 20))
        ours, expected = packed.lstm(x, state), model.lstm(x, state)  # type: ignore[operator]
    assert torch.allclose(ours[0], expected[0], atol=1e-5)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours[1], expected[1], strict=True))


@pytest.mark.parametrize("has_kernel", [True, False])
def test_a_packed_network_sees_what_the_dense_one_does(has_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_kernel:
        monkeypatch.setattr(kernel, "load", lambda: None)
    torch.manual_seed(0)
    model = balanced_cnn.network().eval()
    packed = pack_model(model, prune(model, 20, 4, balanced_cnn.DENSE_LAYERS), 20)
    images = torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        assert torch.allclose(packed(images), model(images), atol=1e-4)


def test_a_packed_model_is_saved_and_loaded() -> None:
    model, packed = language_model()
    file = io.BytesIO()
    torch.save(packed.state_dict(), file)
    _, other = language_model()
    for tensor in (*other.parameters(), *other.buffers()):
        tensor.zero_()
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    ids = torch.randint(0, 30, (3, 7))
    assert torch.equal(other(ids), packed(ids))
    assert sum(map(torch.numel, packed.state_dict().values())) < sum(map(torch.numel, model.state_dict().values()))


def test_a_model_that_is_one_layer_is_packed_too() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(8, 6)
    packed = pack_model(layer, prune(layer, 4, 2), 4)
    assert isinstance(packed, PackedLinear)
    x = torch.randn(3, 8)
    assert torch.allclose(packed(x), layer(x), atol=1e-6)


# ---- which layers ----


@pytest.mark.parametrize(
    ("layer", "pruned", "vectors", "expected"),
    [
        (nn.Linear(256, 512), 16, 1, True),
        (nn.Linear(256, 512), 15, 1, False),
        (nn.Linear(256, 512), 16, 2, False),
        (nn.Linear(256, 512), 16, 4, True),
        (nn.Linear(256, 512), 32, 0, False),
        (nn.Conv2d(32, 32, 3), 23, 49, True),
        (nn.Conv2d(32, 32, 3), 22, 49, False),
        (nn.Conv2d(32, 32, 3), 23, 39, False),
        (nn.LSTM(320, 320), 21, 1, True),
        (nn.LSTM(320, 320), 20, 999, False),
        (nn.LSTM(96, 320), 32, 999, False),
    ],
)
def test_packing_pays_from_so_many_multiply_adds(layer: nn.Module, pruned: int, vectors: int, expected: bool) -> None:
    """Of every 32 weights so many are pruned."""
    masks = {name: torch.arange(weight.numel()) % 32 >= pruned for name, weight in weights_of(layer).items()}
    assert pays(layer, masks, vectors) is expected


def test_an_example_says_which_layers_stay_dense() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 64)).eval()
    masks = prune(model, 8, 2)
    kinds = {
        size: [type(layer) for layer in pack_model(model, masks, 8, example=(torch.zeros(size),))]
        for size in ((1, 8, 5, 5), (1, 8, 15, 15), (100, 8, 15, 15))
    }
    assert kinds[1, 8, 5, 5] == [nn.Conv2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear]
    assert kinds[1, 8, 15, 15] == [PackedConv2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear]
    assert kinds[100, 8, 15, 15] == [PackedConv2d, nn.AdaptiveAvgPool2d, nn.Flatten, PackedLinear]
    assert not any(layer._forward_hooks for layer in model.modules())


# ---- convolutions ----

CONVOLUTIONS = [
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)},
    {"kernel_size": 3, "padding": 1, "bias": False},
    {"kernel_size": 1},
    {"kernel_size": (2, 3), "stride": (1, 3), "padding": (1, 1)},
    {"kernel_size": 3, "stride": 2, "padding": (1, 4), "dilation": 2},
    {"kernel_size": (5, 7), "stride": (5, 7)},
]


@compiled
@pytest.mark.parametrize("options", CONVOLUTIONS)
@pytest.mark.parametrize("size", [(9, 7), (8, 20), (17, 33)])
def test_a_packed_convolution_is_the_product_with_its_patches(
    options: dict[str, object], size: tuple[int, int]
) -> None:
    """Bit for bit, on every path; and about what the dense one computes."""
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 70, **options)  # type: ignore[arg-type]
    masks = prune(nn.Sequential(layer), 4, 1)
    packed = PackedConv2d(layer, masks["0.weight"], 4)
    x = torch.randn(2, 4, *size)
    with torch.no_grad():
        y, expected = packed(x), layer(x)
        patches = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
        product = packed.matrix.multiply(patches.transpose(1, 2), layer.bias).transpose(1, 2).reshape(y.shape)
        alone = packed(x[1])
        apart = packed(x.transpose(2, 3).contiguous().transpose(2, 3))
    assert y.shape == expected.shape
    assert torch.allclose(y, expected, atol=1e-5)
    for other in (y, apart):
        assert torch.equal(other.view(torch.int32), product.contiguous().view(torch.int32))
    assert torch.equal(alone, y[1])
    code, matrix = kernel.load(), packed.matrix
    assert code is not None
    for path in (kernel.PLAIN, kernel.AVX2):
        by_path = torch.full((*y.shape[:-1], y.shape[-1]), 7.0)
        code.convolve(
            matrix.values, matrix.indices, x, by_path, width=4, window=packed._window, bias=packed.bias, path=path
        )
        assert torch.equal(by_path, y)


@compiled
def test_an_infinite_pixel_spoils_only_what_it_meets() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 3, padding=1)
    packed = PackedConv2d(layer, prune(nn.Sequential(layer), 18, 18)["0.weight"], 18)
    x = torch.randn(2, 2, 9, 9)
    x[0, :, 8, 8] = torch.inf
    with torch.no_grad():
        spoilt = ~packed(x).isfinite()
    assert spoilt[0, :, 7:, 7:].all()
    assert int(spoilt.sum()) == 3 * 4


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 9, 9), "x=2x3x9x9: a kernel of 6x4x3x3 does not fit; give .images, 4, height, width."),
        ((2, 4, 2, 9), "x=2x4x2x9: a kernel of 6x4x3x3 does not fit"),
        ((4, 9), "x=4x9: a kernel of 6x4x3x3 does not fit"),
    ],
)
def test_an_image_that_does_not_fit_is_refused(shape: tuple[int, ...], message: str) -> None:
    layer = nn.Conv2d(4, 6, 3).requires_grad_(False)
    with pytest.raises(isoscale.UserError, match=message):
        PackedConv2d(layer, prune(nn.Sequential(layer), 12, 3)["0.weight"], 12)(torch.zeros(shape))


def test_a_convolution_of_which_nothing_is_kept_is_its_bias() -> None:
    layer = nn.Conv2d(4, 6, 3).requires_grad_(False)
    packed = PackedConv2d(layer, prune(nn.Sequential(layer), 12, 0)["0.weight"], 12)
    assert torch.equal(packed(torch.ones(2, 4, 5, 5)), layer.bias.view(6, 1, 1).expand(2, 6, 3, 3))


def test_no_images_are_none() -> None:
    layer = nn.Conv2d(4, 6, 3).requires_grad_(False)
    packed = PackedConv2d(layer, prune(nn.Sequential(layer), 12, 3)["0.weight"], 12)
    assert packed(torch.zeros(0, 4, 5, 6)).shape == (0, 6, 3, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 2}, "groups=2: only convolutions with one group are packed; leave the layer dense"),
        ({"padding": "same"}, "padding=same: only convolutions padded with a given number of zeros"),
        ({"padding": 1, "padding_mode": "circular"}, "padding=circular: only convolutions padded"),
    ],
)
def test_a_convolution_that_cannot_be_packed_is_refused(options: dict[str, object], message: str) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 2, **options))  # type: ignore[arg-type]
    with pytest.raises(isoscale.UserError, match=message):
        pack_model(model, prune(model, 4, 2), 4)


# ---- LSTMs and masks ----


def test_an_lstm_that_cannot_be_packed_is_refused() -> None:
    model = nn.Sequential(nn.LSTM(4, 4))
    with pytest.raises(isoscale.UserError, match="leave the layer dense"):
        pack_model(model, prune(model, 4, 2), 4)
    model = nn.Sequential(nn.LSTM(4, 4, batch_first=True))
    masks = prune(model, 4, 2)
    del masks["0.weight_hh_l0"]
    with pytest.raises(isoscale.UserError, match="an LSTM is packed as a whole, and weight_hh_l0 has no mask"):
        pack_model(model, masks, 4)


@pytest.mark.parametrize(
    ("x", "state", "message"),
    [
        (torch.zeros(3, 4), None, "x=3x4: not a batch of sequences; give .batch, length, 4."),
        (torch.zeros(1, 0, 4), None, "x=1x0x4: not a batch of sequences"),
        (nn.utils.rnn.pack_sequence([torch.zeros(3, 4)]), None, "x=PackedSequence: not a batch of sequences"),
        (torch.zeros(2, 3, 4), (torch.zeros(1, 1, 4),) * 2, "state=1x1x4: not 1x2x4; give hidden and cell state"),
    ],
)
def test_sequences_and_states_that_do_not_fit_are_refused(x: torch.Tensor, state: object, message: str) -> None:
    model = nn.LSTM(4, 4, batch_first=True)
    packed = pack_model(model, prune(model, 4, 2), 4)
    assert isinstance(packed, PackedLSTM)
    with pytest.raises(isoscale.UserError, match=message):
        packed(x, state)


@pytest.mark.parametrize("name", ["module.0.weight", "1.weight", "0.bias", "0"])
def test_masks_of_another_model_are_refused(name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Embedding(4, 4))
    with pytest.raises(isoscale.UserError, match=f"masks={name}: no weight of a linear, convolution or LSTM layer"):
        pack_model(model, {name: torch.ones(4, 4, dtype=torch.bool)}, 4)


def test_a_mask_of_another_shape_is_refused_even_where_packing_would_not_pay() -> None:
    model = nn.Sequential(nn.Linear(8, 4))
    with pytest.raises(isoscale.UserError, match=r"masks=0\.weight 8x4 torch\.bool: not a mask of a weight of 4x8"):
        pack_model(model, {"0.weight": torch.ones(8, 4, dtype=torch.bool)}, 4, example=(torch.zeros(8),))


def test_masks_that_do_not_bind_the_weights_are_refused() -> None:
    """Training went on without the pruner, or the masks are of another step."""
    model = nn.Sequential(nn.Linear(4, 4))
    masks = prune(model, 4, 2)
    with torch.no_grad():
        model[0].weight.masked_fill_(~masks["0.weight"], torch.nan)  # type: ignore[operator]
    with pytest.raises(isoscale.UserError, match=r"masks=0\.weight: weights that are pruned are not zero"):
        pack_model(model, masks, 4)
