"""Balanced pruning: how many weights go when, which ones, and that masks bind weights and optimizer."""

from __future__ import annotations

import argparse
import copy
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import isoscale
from isoscale.recipes.balanced.options import add_pruning_options
from isoscale.recipes.balanced.patterns import Balanced, Blocks, Dense, Pattern, Random
from isoscale.recipes.balanced.pruning import Pruner, weights_of
from isoscale.recipes.balanced.schedule import Schedule


def schedule(target: str = "3/4", begin: int = 2, every: int = 3, stages: int = 3) -> Schedule:
    return Schedule(target=Fraction(target), begin=begin, every=every, stages=stages)


def full(weight: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(weight, dtype=torch.bool)


# ---- schedule ----


def test_prunings_come_after_the_first_and_then_at_equal_distances() -> None:
    assert [schedule().stage(step) for step in range(11)] == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert schedule().end == 8


def test_cubic_is_fast_first_and_exact_at_the_end() -> None:
    shares = [schedule("0.9", stages=3).sparsity(i) for i in range(4)]
    assert shares == [0, Fraction(9, 10) * Fraction(19, 27), Fraction(9, 10) * Fraction(26, 27), Fraction(9, 10)]


def test_linear_rises_by_equal_shares() -> None:
    linear = Schedule(target=Fraction(1, 2), begin=1, every=1, stages=2, shape="linear")
    assert [linear.sparsity(i) for i in range(3)] == [0, Fraction(1, 4), Fraction(1, 2)]


@pytest.mark.parametrize("percent", range(101))
def test_counts_are_exact_where_floats_would_miss_one(percent: int) -> None:
    last = Schedule(target=Fraction(f"0.{percent:02}") if percent < 100 else Fraction(1), begin=1, every=1, stages=7)
    assert last.kept(100, 7) == 100 - percent


@pytest.mark.parametrize(("field", "values"), [("sparsity", {"target": "1.5"}), ("begin", {"begin": 0})])
def test_a_schedule_that_cannot_be_is_refused(field: str, values: dict[str, str]) -> None:
    with pytest.raises(isoscale.UserError) as caught:
        schedule(**values)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_share_that_is_not_exact_is_refused() -> None:
    """Fraction(29, 100) of 100 is 29, 0.29 of it 28."""
    with pytest.raises(isoscale.UserError, match=r"sparsity=0\.29: not exact; give a fraction: Fraction\(\"0\.8\"\)"):
        Schedule(target=0.29, begin=1, every=1, stages=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", ["1/0", "80%", "nan", ""])
def test_a_share_that_is_no_number_is_an_error_of_the_option(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_pruning_options(parser, block_width=4)
    with pytest.raises(SystemExit):
        parser.parse_args(["--sparsity", share])
    assert f"--sparsity: {share!r} is not a share; give a number from 0 to 1" in capsys.readouterr().err


# ---- patterns ----


def test_the_example_of_the_paper() -> None:
    """A row of 16, four blocks, half of it: the two largest magnitudes of each block stay."""
    row = torch.tensor([[0.8, 0.1, 0.2, 1.5, 1.0, 0.3, -0.4, -1.4, 0.7, 2.0, 0.9, -0.5, 1.2, -2.1, 0.2, 1.3]])
    kept = Balanced(4).mask(row, full(row), lambda n: n // 2) * row
    left = torch.tensor([[0.8, 0, 0, 1.5, 1.0, 0, 0, -1.4, 0, 2.0, 0.9, 0, 0, -2.1, 0, 1.3]])
    assert torch.equal(kept, left)


def test_ties_keep_the_first_and_the_balance() -> None:
    """Half-step weights tie everywhere; a threshold kept 8 to 23 of each block where 8 are due."""
    weight = (torch.randn(16, 128, generator=torch.Generator().manual_seed(0)) * 2).round() / 2
    mask = Balanced(32).mask(weight, full(weight), lambda n: n // 4)
    assert (mask.view(16, 4, 32).sum(2) == 8).all()
    equal = torch.ones(2, 8)
    assert Balanced(4).mask(equal, full(equal), lambda _: 1).tolist() == [[True, *[False] * 3] * 2] * 2


@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 5),
    blocks=st.integers(1, 4),
    width=st.integers(1, 9),
    target=st.fractions(0, 1, max_denominator=20),
    stages=st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_balanced_at_every_stage_and_monotone(
    seed: int, rows: int, blocks: int, width: int, target: Fraction, stages: int
) -> None:
    """While weights change in between, zeros and ties included."""
    steps = Schedule(target=target, begin=1, every=1, stages=stages)
    random = torch.Generator().manual_seed(seed)
    weight = torch.zeros(rows, blocks * width)
    mask = full(weight)
    for stage in range(1, stages + 1):
        weight = torch.randint(-3, 4, weight.shape, generator=random).float() * mask
        old, mask = mask, Balanced(width).mask(weight, mask, lambda n, stage=stage: steps.kept(n, stage))  # type: ignore[misc]
        assert (mask.view(rows, blocks, width).sum(2) == steps.kept(width, stage)).all()
        assert not (mask & ~old).any()


def test_a_pruned_weight_stays_pruned_before_a_kept_zero() -> None:
    weight, old = torch.tensor([[0.0, 5.0, 0.0, 0.0]]), torch.tensor([[False, True, False, True]])
    assert Balanced(4).mask(weight, old, lambda _: 2).tolist() == [[False, True, False, True]]
    # even where more should stay than there are
    assert Balanced(4).mask(weight, old, lambda _: 3).tolist() == [[False, True, False, True]]


def test_convolution_kernels_are_rows_of_a_matrix() -> None:
    weight = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(1))
    mask = Balanced(12).mask(weight, full(weight), lambda _: 5)
    assert mask.shape == weight.shape
    assert (mask.reshape(6, 3, 12).sum(2) == 5).all()
    # The same in another memory format: masks go by position, not by memory.
    other = weight.contiguous(memory_format=torch.channels_last)
    assert torch.equal(Balanced(12).mask(other, full(other), lambda _: 5), mask)


def test_random_keeps_the_largest_wherever_they_are() -> None:
    weight = torch.tensor([[1.0, 9.0, 8.0, 7.0], [0.5, 0.4, 0.3, 6.0]])
    expected = [[False, True, True, True], [False, False, False, True]]
    assert Random().mask(weight, full(weight), lambda n: n // 2).tolist() == expected


def test_blocks_go_as_a_whole() -> None:
    weight = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 9.0, 1.0, 1.0]])
    expected = [[True, True, False, False]] * 2
    assert Blocks(2, 2).mask(weight, full(weight), lambda n: n // 2).tolist() == expected


@pytest.mark.parametrize("pattern", [Balanced(4), Random(), Blocks(2, 2)])
def test_weights_need_not_be_contiguous(pattern: Pattern) -> None:
    weight = torch.randn(8, 16, generator=torch.Generator().manual_seed(2))
    across = weight.T.contiguous().T
    expected = pattern.mask(weight, full(weight), lambda n: n // 2)
    assert torch.equal(pattern.mask(across, full(across), lambda n: n // 2), expected)


def test_nan_is_kept() -> None:
    weight = torch.tensor([[1.0, torch.nan, 9.0, torch.inf]])
    assert Balanced(4).mask(weight, full(weight), lambda _: 2).tolist() == [[False, True, False, True]]


@pytest.mark.parametrize("share", ["0", "1"])
def test_all_or_nothing_may_be_pruned(share: str) -> None:
    weight, ends = torch.ones(2, 8), schedule(share)
    kept = Balanced(4).mask(weight, full(weight), lambda n: ends.kept(n, 3))
    assert int(kept.sum()) == (16 if share == "0" else 0)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (4,), ()])
def test_what_is_no_matrix_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(isoscale.UserError, match="not a matrix with rows and columns; leave it out"):
        Balanced(4).check("layer.weight", torch.zeros(shape))


def test_dense_keeps_everything() -> None:
    weight = torch.zeros(2, 4)
    assert Dense().mask(weight, full(weight), lambda _: 0).all()


@pytest.mark.parametrize("pattern", [Balanced(7), Blocks(3, 4), Blocks(4, 7)])
def test_what_does_not_divide_is_refused_by_name(pattern: Pattern) -> None:
    with pytest.raises(isoscale.UserError, match=r"does not divide the \d+ (rows|columns) of layer\.weight"):
        pattern.check("layer.weight", torch.zeros(8, 16))


# ---- pruner ----


def pruned_training(
    steps: int, optimizer_type: type[torch.optim.Optimizer], **options: float
) -> tuple[nn.Module, Pruner]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(16, 4))
    optimizer = optimizer_type(model.parameters(), lr=0.1, **options)
    pruner = Pruner(weights_of(model), optimizer, Balanced(4), schedule())
    for step in range(1, steps + 1):
        model(torch.randn(8, 1, 3, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert pruner.after_step(step) == (step in (2, 5, 8))
    return model, pruner


@pytest.mark.parametrize(
    ("optimizer", "options", "slots"),
    [(torch.optim.SGD, {"momentum": 0.9}, 1), (torch.optim.Adam, {"weight_decay": 0.1}, 2)],
)
def test_weights_and_slots_are_zero_where_masks_are(
    optimizer: type[torch.optim.Optimizer], options: dict[str, float], slots: int
) -> None:
    model, pruner = pruned_training(9, optimizer, **options)
    parameters = dict(model.named_parameters())
    assert list(pruner.masks) == ["0.weight", "2.weight"]
    for name, mask in pruner.masks.items():
        assert (mask.reshape(-1, 4).sum(1) == 1).all()
        state = [s for s in pruner._optimizer.state[parameters[name]].values() if s.shape == mask.shape]
        assert len(state) == slots
        for tensor in (parameters[name].detach(), *state):
            # positive zeros: their bits are zero too
            assert not tensor[~mask].view(torch.int32).any()
            assert tensor[mask].any()
    assert pruner.sparsity == 0.75


def test_nothing_changes_before_the_first_pruning() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    pruner = Pruner(
        weights_of(nn.Sequential(model)), torch.optim.SGD(model.parameters(), lr=0.1), Balanced(4), schedule()
    )
    before = model.weight.clone()
    assert not pruner.after_step(1)
    assert torch.equal(model.weight, before)
    assert pruner.sparsity == 0


def test_a_resumed_pruner_goes_on_as_if_it_had_not_stopped() -> None:
    """Its masks come from the state: a kept weight is zero here, and zeros alone would not tell."""
    _, pruner = pruned_training(3, torch.optim.SGD)
    weights = {name: nn.Parameter(torch.zeros_like(mask, dtype=torch.float32)) for name, mask in pruner.masks.items()}
    fresh = Pruner(weights, torch.optim.SGD(weights.values(), lr=0.1), Balanced(4), schedule())
    fresh.load_state_dict(copy.deepcopy(pruner.state_dict()))
    assert fresh.stage == 1
    assert not fresh.after_step(4)
    assert all(torch.equal(fresh.masks[name], mask) for name, mask in pruner.masks.items())
    assert fresh.after_step(5)
    assert all(not (fresh.masks[name] & ~mask).any() for name, mask in pruner.masks.items())


def test_a_pruner_of_nothing_is_refused() -> None:
    optimizer = torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.1)
    with pytest.raises(isoscale.UserError, match="weights=none: there is nothing to prune; give weights_of"):
        Pruner(weights_of(nn.ReLU()), optimizer, Balanced(4), schedule())


def test_a_pruner_of_another_schedule_is_refused() -> None:
    _, pruner = pruned_training(3, torch.optim.SGD)
    _, other = pruned_training(1, torch.optim.SGD)
    other._schedule = schedule("1/2")
    with pytest.raises(isoscale.UserError, match="go on with the same pattern, schedule and weights"):
        other.load_state_dict(pruner.state_dict())


def test_layers_are_left_out_by_name() -> None:
    model = nn.ModuleDict({"lstm": nn.LSTM(4, 4), "words": nn.Linear(4, 9), "norm": nn.BatchNorm1d(4)})
    assert list(weights_of(model, exclude=("words",))) == ["lstm.weight_ih_l0", "lstm.weight_hh_l0"]
    assert list(weights_of(model["words"])) == ["weight"]
