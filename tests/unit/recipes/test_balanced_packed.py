"""The packed format and its product, against dense products in float64; what cannot be packed or multiplied."""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest
import torch

import isoscale
from isoscale.recipes.balanced import kernel
from isoscale.recipes.balanced.packed import LANES, PackedMatrix
from isoscale.recipes.balanced.patterns import Balanced

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


def by_kernel(packed: PackedMatrix, x: torch.Tensor, path: int | None = None) -> torch.Tensor:
    code, y = kernel.load(), x.new_empty(len(x), packed.rows)
    assert code is not None
    code.multiply(packed.values, packed.indices, x, y, width=packed.width, path=path)
    return y


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


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(7), "x=7: the matrix has 8 columns; give x"),
        (torch.zeros(()), "x=a single number: the matrix has 8 columns"),
        (torch.zeros(8, dtype=torch.float64), r"x=torch.float64: packed products are of float32; convert it: \.float"),
        (torch.zeros(2, 8, dtype=torch.bfloat16), "x=torch.bfloat16: packed products are of float32"),
        (torch.zeros(8, device="meta"), "x=meta: the matrix is on cpu; move one of them"),
        (torch.zeros(8, requires_grad=True), "x=requires_grad: a packed product has no gradient; call it under"),
    ],
)
def test_an_x_that_does_not_fit_is_refused(x: torch.Tensor, message: str) -> None:
    with pytest.raises(isoscale.UserError, match=message):
        PackedMatrix.pack(*balanced(4, 8, 4, 2), 4).multiply(x)


def test_a_bias_that_does_not_fit_is_refused() -> None:
    """The kernel would read past its end."""
    packed = PackedMatrix.pack(*balanced(4, 8, 4, 2), 4)
    for bias in (torch.zeros(3), torch.zeros(8)[::2]):
        with pytest.raises(isoscale.UserError, match=r"bias=\d: the matrix has 4 rows"):
            packed.multiply(torch.zeros(8), bias)


@pytest.mark.parametrize(
    ("weight", "mask", "message"),
    [
        (torch.zeros(4, 8).double(), torch.ones(4, 8).bool(), r"weight=torch.float64: only float32 is packed; convert"),
        (torch.zeros(4, 8).bfloat16(), torch.ones(4, 8).bool(), "weight=torch.bfloat16: only float32 is packed"),
        (
            torch.zeros(4, 8),
            torch.ones(4, 8),
            "mask=4x8 torch.float32: not a mask of a weight of 4x8; give a torch.bool",
        ),
        (torch.zeros(4, 8), torch.ones(8, 4).bool(), "mask=8x4 torch.bool: not a mask of a weight of 4x8"),
        (torch.zeros(0, 8), torch.ones(0, 8).bool(), "weight=0x8: not a matrix with rows and columns; leave it out"),
        (torch.zeros(4, 0), torch.ones(4, 0).bool(), "weight=4x0: not a matrix with rows and columns"),
        (torch.zeros(8), torch.ones(8).bool(), "weight=8: not a matrix with rows and columns"),
    ],
)
def test_what_cannot_be_packed_is_refused(weight: torch.Tensor, mask: torch.Tensor, message: str) -> None:
    with pytest.raises(isoscale.UserError, match=message):
        PackedMatrix.pack(weight, mask, 4)


def test_weights_and_vectors_need_not_be_contiguous() -> None:
    weight, mask = balanced(70, 96, 32, 3)
    x = torch.randn(96, 5, generator=torch.Generator().manual_seed(6)).T
    packed = PackedMatrix.pack(weight.T.contiguous().T, mask.T.contiguous().T, 32)
    assert not x.is_contiguous()
    assert torch.equal(packed.unpack(), weight)
    assert torch.equal(packed.multiply(x), PackedMatrix.pack(weight, mask, 32).multiply(x.contiguous()))


def test_nan_and_infinity_stay_where_they_are_kept() -> None:
    """A kept NaN spoils its row alone; infinity in x meets only kept weights."""
    weight, mask = balanced(4, 8, 4, 2)
    weight[1] = weight[1].masked_fill(mask[1], torch.nan)
    x = torch.ones(8)
    y = PackedMatrix.pack(weight, mask, 4).multiply(x)
    assert y.isnan().tolist() == [False, True, False, False]
    column = int((~mask[0]).nonzero()[0])
    x[column] = torch.inf
    assert PackedMatrix.pack(weight, mask, 4).multiply(x)[0].isfinite()


def test_a_matrix_is_saved_loaded_and_copied_with_its_values() -> None:
    packed, other = (PackedMatrix.pack(*balanced(70, 96, 32, 3, seed), 32) for seed in (0, 1))
    x = torch.ones(96)
    other.multiply_by_torch(x[None])  # what it remembers must not outlive its indices
    other.load_state_dict(packed.state_dict())
    for same in (other, copy.deepcopy(packed)):
        assert torch.equal(same.multiply(x), packed.multiply(x))
        assert torch.equal(same.multiply_by_torch(x[None]), packed.multiply_by_torch(x[None]))


def test_indices_outside_of_their_block_are_refused() -> None:
    """The kernel would follow them."""
    packed = PackedMatrix.pack(*balanced(4, 8, 4, 2), 4)
    state = packed.state_dict()
    state["indices"] = state["indices"].clone().fill_(4)
    with pytest.raises(isoscale.UserError, match="indices=4: outside of a block of 4 columns; load the state"):
        packed.load_state_dict(state)
    with pytest.raises(isoscale.UserError, match="not a byte for each"):
        PackedMatrix(packed.values, packed.indices.long(), rows=4, width=4)


def test_a_matrix_that_was_converted_is_refused() -> None:
    with pytest.raises(isoscale.UserError, match=r"packed values=torch\.float64: packed products are of float32"):
        PackedMatrix.pack(*balanced(4, 8, 4, 2), 4).double().multiply(torch.zeros(8))


@pytest.mark.parametrize("by_torch", [True, False])
def test_a_bias_is_added_to_the_sum(by_torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_torch:
        monkeypatch.setattr(kernel, "load", lambda: None)
    weight, mask = balanced(70, 96, 32, 3)
    x, bias = torch.randn(6, 96), torch.randn(70)
    packed = PackedMatrix.pack(weight, mask, 32)
    assert torch.equal(packed.multiply(x, bias), packed.multiply(x) + bias)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("by_torch", [True, False])
def test_products_of_whole_numbers_are_exact(shape: tuple[int, int, int, int], by_torch: bool) -> None:
    """Small integers leave nothing to round, so every order must give what float64 gives."""
    weight, mask = balanced(*shape)
    weight = (weight * 16).round()
    x = torch.randint(-16, 17, (5, shape[1]), generator=torch.Generator().manual_seed(1)).float()
    packed = PackedMatrix.pack(weight, mask, shape[2])
    y = packed.multiply_by_torch(x) if by_torch else packed.multiply(x)
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
    y = by_kernel(PackedMatrix.pack(weight, mask, 20), x, path)
    for row in (0, 63, 65):
        total = Fraction(0)
        for column in mask[row].nonzero().flatten().tolist():
            total = rounded(total + Fraction(weight[row, column].item()) * Fraction(x[0, column].item()))
        assert Fraction(y[0, row].item()) == total


@compiled
@pytest.mark.parametrize("shape", SHAPES)
def test_paths_and_batches_give_the_same_bits(shape: tuple[int, int, int, int]) -> None:
    packed = PackedMatrix.pack(*balanced(*shape), shape[2])
    x = torch.randn(6, shape[1], generator=torch.Generator().manual_seed(4))
    plain, avx2, best = (by_kernel(packed, x, path) for path in (kernel.PLAIN, kernel.AVX2, kernel.AVX512))
    alone = torch.cat([by_kernel(packed, row[None]) for row in x])
    for other in (avx2, best, alone):
        assert torch.equal(other.view(torch.int32), plain.view(torch.int32))


@compiled
def test_nothing_is_read_past_the_end_of_x() -> None:
    """The last block of x ends where x ends: what follows in memory must not matter."""
    packed = PackedMatrix.pack(*balanced(64, 50, 25, 5), 25)
    memory = torch.full((82,), torch.nan)
    memory[:50] = torch.randn(50, generator=torch.Generator().manual_seed(5))
    assert by_kernel(packed, memory[:50][None]).isfinite().all()


@compiled
@pytest.mark.parametrize("path", [kernel.PLAIN, kernel.AVX2, kernel.AVX512])
def test_nothing_is_written_past_the_last_row(path: int) -> None:
    packed, code = PackedMatrix.pack(*balanced(70, 50, 25, 5), 25), kernel.load()
    assert code is not None
    memory = torch.full((6 * 70 + 64,), 7.0)
    y = memory[: 6 * 70].view(6, 70)
    code.multiply(packed.values, packed.indices, torch.ones(6, 50), y, width=25, path=path)
    assert (memory[6 * 70 :] == 7.0).all()
    assert (y != 7.0).all()
