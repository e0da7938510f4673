"""Target attention and guidance loss of the McMisP recipe against their formulas."""

from __future__ import annotations

import math

import pytest
import torch

from isoscale.recipes.mcmisp_guidance import attention_loss, target_attention


def test_target_is_inverse_to_counts_at_temperature_1() -> None:
    counts = torch.tensor([0.0, 1.0, 3.0, 7.0])
    target = target_attention(counts.log1p().view(1, 1, 4), torch.ones(1, 4, dtype=torch.bool), 1.0)
    weights = 1 / (1 + counts)
    torch.testing.assert_close(target[0, 0], weights / weights.sum())


def test_a_higher_temperature_is_milder() -> None:
    score, every = torch.tensor([[[0.0, 2.0]]]), torch.ones(1, 2, dtype=torch.bool)
    cold, warm = (target_attention(score, every, t)[0, 0] for t in (0.5, 4.0))
    assert cold[0] > warm[0] > 0.5 > warm[1] > cold[1]
    assert warm[0] / warm[1] == pytest.approx(math.exp(0.5), rel=1e-5)


def test_what_is_no_companion_gets_nothing() -> None:
    score = torch.tensor([[[5.0, 0.0, 1.0]]])
    target = target_attention(score, torch.tensor([[True, False, True]]), 1.0)[0, 0]
    assert target[1] == 0
    assert target[2] > target[0] > 0
    assert target.sum().item() == pytest.approx(1.0)


def test_a_sentence_without_companions_gives_no_nan() -> None:
    target = target_attention(torch.ones(1, 1, 3), torch.zeros(1, 3, dtype=torch.bool), 1.0)
    attention = torch.full((1, 1, 1, 1, 3), 1 / 3, requires_grad=True)
    nothing = torch.zeros(1, 1, dtype=torch.bool)
    loss = attention_loss(attention, target, nothing, ~nothing)
    loss.backward()
    assert loss == 0
    assert attention.grad is not None
    assert not attention.grad.any()


def random_case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    attention = torch.randn(2, 3, 2, 4, 5).softmax(-1)
    target = torch.randn(3, 4, 5).softmax(-1)
    masked = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]], dtype=torch.bool)
    wrong = masked & torch.tensor([[1, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.bool)
    return attention, target, wrong, masked


def test_loss_is_the_divergence_at_wrong_positions_over_masked_ones() -> None:
    attention, target, wrong, masked = random_case()
    total = 0.0
    for b, q in wrong.nonzero().tolist():
        for layer in range(2):
            for head in range(2):
                for k in range(5):
                    r, p = target[b, q, k].item(), attention[layer, b, head, q, k].item()
                    total += r * math.log(r / p) / 4
    assert attention_loss(attention, target, wrong, masked).item() == pytest.approx(total / 5, rel=1e-5)


def test_loss_is_zero_at_the_target_and_where_nothing_is_wrong() -> None:
    attention, target, wrong, masked = random_case()
    reached = target[None, :, None].expand_as(attention)
    assert attention_loss(reached, target, wrong, masked).item() == pytest.approx(0.0, abs=1e-6)
    assert attention_loss(attention, target, torch.zeros_like(wrong), masked) == 0


def test_attention_of_exactly_zero_is_survived() -> None:
    attention = torch.tensor([1.0, 0.0]).view(1, 1, 1, 1, 2).requires_grad_()
    yes = torch.ones(1, 1, dtype=torch.bool)
    loss = attention_loss(attention, torch.tensor([[[0.5, 0.5]]]), yes, yes)
    loss.backward()
    assert loss.isfinite()
    assert attention.grad is not None
    assert attention.grad.isfinite().all()


def test_descent_takes_attention_from_frequent_companions() -> None:
    logits = torch.zeros(1, 1, 1, 1, 3, requires_grad=True)
    target = target_attention(torch.tensor([[[4.0, 0.0, 4.0]]]), torch.ones(1, 3, dtype=torch.bool), 1.0)
    yes = torch.ones(1, 1, dtype=torch.bool)
    attention_loss(logits.softmax(-1), target, yes, yes).backward()
    assert logits.grad is not None
    assert logits.grad.flatten()[0] > 0
    assert logits.grad.flatten()[1] < 0
    assert not target.requires_grad
