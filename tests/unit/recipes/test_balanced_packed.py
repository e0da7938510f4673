"""The packed format, the compiled kernel and packed layers, against dense products in float64."""

from __future__ import annotations

import subprocess
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import nn

import isoscale
from isoscale.recipes import balanced_cnn, balanced_lstm
from isoscale.recipes.balanced import kernel
from isoscale.recipes.balanced.inference import PackedConv2d, pack_model
from isoscale.recipes.balanced.packed import LANES, PackedMatrix
from isoscale.recipes.balanced.patterns import Balanced
from isoscale.recipes.balanced.pruning import weights_of

#: rows, columns, block width, kept: whole groups and not, blocks in one, two and four pairs of registers and more
SHAPES = [
    (64, 50, 25, 5),
    (70, 96, 32, 3),
    (5, 100, 50, 10),
    (130, 256, 128, 9),
    (3, 512, 256, 4),
    (1, 8, 1, 1),
    (9, 8, 4, 0),
]
compiled = pytest.mark.skipif(kernel.load() is None, reason="no compiler")


def balanced(rows: int, columns: int, width: int, keep: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    mask = Balanced(width).mask(weight, torch.ones_like(weight, dtype=torch.bool), lambda _: keep)
    return weight * mask, mask


@pytest.mark.parametrize("shape", SHAPES)
def test_packed_and_unpacked_is_the_same(shape: tuple[int, int, int, int]) -> None:
    weight, mask = balanced(*shape)
    packed = PackedMatrix.pack(weight, mask, shape[2])
    assert torch.equal(packed.unpack(), weight)
    assert packed.values.shape == (-(-shape[0] // LANES), shape[1] // shape[2], shape[3], LANES)
    assert packed.num_bytes == 5 * packed.values.numel()


def test_a_kept_zero_has_its_place() -> None:
    weight, mask = balanced(4, 8, 4, 2)
    weight.zero_()
    assert PackedMatrix.pack(weight, mask, 4).indices[0, 0, :, 0].tolist() == mask[0, :4].nonzero().flatten().tolist()


def test_neighbouring_lanes_are_rows() -> None:
    weight = torch.arange(1.0, 129.0).view(128, 1)
    packed = PackedMatrix.pack(weight, torch.ones_like(weight, dtype=torch.bool), 1)
    assert packed.values[1, 0, 0].tolist() == list(range(65, 129))


def test_an_unbalanced_mask_is_refused() -> None:
    weight, mask = balanced(4, 8, 4, 2)
    mask[2, 1] = ~mask[2, 1]
    with pytest.raises(isoscale.UserError, match="blocks keep different numbers"):
        PackedMatrix.pack(weight, mask, 4)


@pytest.mark.parametrize(("columns", "width"), [(512, 512), (10, 4), (10, 0)])
def test_a_width_that_does_not_fit_is_refused(columns: int, width: int) -> None:
    with pytest.raises(isoscale.UserError, match="block width"):
        PackedMatrix.pack(torch.zeros(2, columns), torch.zeros(2, columns, dtype=torch.bool), width)


@pytest.mark.parametrize("x", [torch.zeros(7), torch.zeros(8, dtype=torch.float64)])
def test_an_x_of_another_shape_or_type_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(isoscale.UserError, match="8 columns of float32"):
        PackedMatrix.pack(*balanced(4, 8, 4, 2), 4).multiply(x)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("by_torch", [True, False])
def test_products_of_whole_numbers_are_exact(shape: tuple[int, int, int, int], by_torch: bool) -> None:
    """Small integers leave nothing to round, so every order must give what float64 gives."""
    weight, mask = balanced(*shape)
    weight = (weight * 16).round()
    x = torch.randint(-16, 17, (5, shape[1]), generator=torch.Generator().manual_seed(1)).float()
    packed = PackedMatrix.pack(weight, mask, shape[2])
    y = packed.multiply_by_torch(x)[:, : shape[0]] if by_torch else packed.multiply(x)
    assert torch.equal(y.double(), x.double() @ weight.double().T)


@pytest.mark.parametrize("batch", [(), (0,), (1,), (4,), (2, 5)])
def test_products_are_close_to_float64_for_any_batch(batch: tuple[int, ...]) -> None:
    weight, mask = balanced(70, 300, 25, 5)
    x = torch.randn(*batch, 300, generator=torch.Generator().manual_seed(2))
    y = PackedMatrix.pack(weight, mask, 25).multiply(x)
    assert y.shape == (*batch, 70)
    exact, size = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    # n roundings of at most half a unit each
    assert ((y.double() - exact).abs() <= 61 * 2**-24 * size).all()


def rounded(value: Fraction) -> Fraction:
    """The nearest float32, ties to even, of a number that is neither tiny nor huge."""
    if not value:
        return value
    exponent = 0
    while abs(value) * Fraction(2) ** -exponent >= 2**24:
        exponent += 1
    while abs(value) * Fraction(2) ** -exponent < 2**23:
        exponent -= 1
    return round(value * Fraction(2) ** -exponent) * Fraction(2) ** exponent


@compiled
@pytest.mark.parametrize("path", [kernel.PLAIN, kernel.AVX2, kernel.AVX512])
def test_every_path_sums_in_the_stated_order(path: int) -> None:
    """Blocks ascending, columns ascending, one rounding per multiply-add: recomputed in exact arithmetic."""
    weight, mask = balanced(66, 60, 20, 4)
    x = torch.randn(1, 60, generator=torch.Generator().manual_seed(3))
    packed, code = PackedMatrix.pack(weight, mask, 20), kernel.load()
    assert code is not None
    y = code.multiply(packed.values, packed.indices, x, width=20, path=path)
    for row in (0, 63, 65):
        total = Fraction(0)
        for column in mask[row].nonzero().flatten().tolist():
            total = rounded(total + Fraction(weight[row, column].item()) * Fraction(x[0, column].item()))
        assert Fraction(y[0, row].item()) == total


@compiled
@pytest.mark.parametrize("shape", SHAPES)
def test_paths_and_batches_give_the_same_bits(shape: tuple[int, int, int, int]) -> None:
    packed, code = PackedMatrix.pack(*balanced(*shape), shape[2]), kernel.load()
    assert code is not None
    x = torch.randn(6, shape[1], generator=torch.Generator().manual_seed(4))
    plain, avx2, best = (
        code.multiply(packed.values, packed.indices, x, width=shape[2], path=path)
        for path in (kernel.PLAIN, kernel.AVX2, kernel.AVX512)
    )
    alone = torch.cat([code.multiply(packed.values, packed.indices, row[None], width=shape[2]) for row in x])
    for other in (avx2, best, alone):
        assert torch.equal(other.view(torch.int32), plain.view(torch.int32))


@compiled
def test_nothing_is_read_past_the_end_of_x() -> None:
    """The last block of x ends where x ends: what follows in memory must not matter."""
    packed, code = PackedMatrix.pack(*balanced(64, 50, 25, 5), 25), kernel.load()
    assert code is not None
    memory = torch.full((82,), torch.nan)
    memory[:50] = torch.randn(50, generator=torch.Generator().manual_seed(5))
    y = code.multiply(packed.values, packed.indices, memory[:50][None], width=25)
    assert y.isfinite().all()


@compiled
def test_a_library_is_built_once(tmp_path: Path) -> None:
    first = kernel.build(tmp_path / "cache")
    made = first.stat().st_mtime_ns
    assert kernel.build(tmp_path / "cache") == first
    assert first.stat().st_mtime_ns == made
    assert list((tmp_path / "cache").iterdir()) == [first]


def test_without_a_compiler_torch_does(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(kernel.shutil, "which", lambda name: None)
    monkeypatch.setattr(kernel, "load", kernel.load.__wrapped__)
    assert kernel.load() is None
    assert "no compiled kernel, torch does instead: no compiler" in caplog.text
    weight, mask = balanced(70, 96, 32, 3)
    y = PackedMatrix.pack(weight, mask, 32).multiply(torch.ones(96))
    assert torch.allclose(y, weight.sum(1), atol=1e-5)


def test_a_compiler_that_fails_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 0 if "--version" in command else 1, b"", b"no such target")

    monkeypatch.setattr(kernel.shutil, "which", lambda name: "/usr/bin/c++")
    monkeypatch.setattr(kernel.subprocess, "run", refuse)
    with pytest.raises(OSError, match="no such target"):
        kernel.build(tmp_path)
    assert list(tmp_path.iterdir()) == []


# ---- layers ----


def prune(model: nn.Module, width: int, keep: int, exclude: tuple[str, ...]) -> dict[str, torch.Tensor]:
    masks = {}
    for name, weight in weights_of(model, exclude=exclude).items():
        masks[name] = Balanced(width).mask(weight, torch.ones_like(weight, dtype=torch.bool), lambda _: keep)
        weight.data.masked_fill_(~masks[name], 0.0)
    return masks


def test_a_packed_language_model_predicts_what_the_dense_one_does() -> None:
    torch.manual_seed(0)
    model = balanced_lstm.LanguageModel(30, 20, layers=2).eval()
    packed = pack_model(model, prune(model, 10, 2, ("words",)), 10)
    ids = torch.randint(0, 30, (3, 7))
    with torch.no_grad():
        assert torch.allclose(packed(ids), model(ids), atol=1e-5)
        x, state = torch.randn(2, 1, 20), (torch.randn(2, 2, 20), torch.randn(2, 2, 20))
        ours, expected = packed.lstm(x, state), model.lstm(x, state)  # type: ignore[operator]
    assert torch.allclose(ours[0], expected[0], atol=1e-5)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours[1], expected[1], strict=True))


def test_a_packed_network_sees_what_the_dense_one_does() -> None:
    torch.manual_seed(0)
    model = balanced_cnn.network().eval()
    packed = pack_model(model, prune(model, 20, 4, balanced_cnn.DENSE_LAYERS), 20)
    images = torch.randn(2, 1, 28, 28)
    with torch.no_grad():
        assert torch.allclose(packed(images), model(images), atol=1e-4)


@pytest.mark.parametrize("size", [(9, 7), (8, 8)])
def test_a_packed_convolution_has_strides_padding_and_dilation(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2))
    masks = prune(nn.Sequential(layer), 12, 5, ())
    x = torch.randn(2, 4, *size)
    with torch.no_grad():
        y, expected = PackedConv2d(layer, masks["0.weight"], 12)(x), layer(x)
    assert y.shape == expected.shape
    assert torch.allclose(y, expected, atol=1e-5)


def test_layers_that_cannot_be_packed_are_refused() -> None:
    model = nn.Sequential(nn.LSTM(4, 4))
    with pytest.raises(isoscale.UserError, match="leave the layer dense"):
        pack_model(model, prune(model, 4, 2, ()), 4)
