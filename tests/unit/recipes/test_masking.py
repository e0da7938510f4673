"""What masked language modelling hides."""

from __future__ import annotations

import pytest
import torch

from isoscale.recipes.data import text
from isoscale.recipes.data.masking import IGNORED, Masking

_VOCABULARY = text.Vocabulary.commonest(list("abcdefghij"), 15)


def _rows(count: int, length: int) -> torch.Tensor:
    return torch.randint(5, 15, (count, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("length", "hidden"), [(64, 10), (20, 3), (2, 1)])
def test_every_row_hides_the_same_number(length: int, hidden: int) -> None:
    rows = _rows(50, length)
    seen, labels = Masking(_VOCABULARY).hide(rows)
    chosen = labels != IGNORED
    assert (chosen.sum(1) == hidden).all()
    assert torch.equal(labels[chosen], rows[chosen])
    assert torch.equal(seen[~chosen], rows[~chosen])


def test_hidden_tokens_are_masked_replaced_or_left() -> None:
    rows = _rows(4000, 20)
    seen, labels = Masking(_VOCABULARY, fraction=0.5).hide(rows, torch.Generator().manual_seed(2))
    chosen = labels != IGNORED
    before, after = rows[chosen], seen[chosen]
    masked, left = after == text.MASK, after == before
    others = after[~masked & ~left]
    assert masked.float().mean().item() == pytest.approx(0.8, abs=0.01)
    assert left.float().mean().item() == pytest.approx(0.1 + 0.1 / 10, abs=0.01)  # one in ten draws is the token itself
    assert set(others.tolist()) == set(range(5, 15))
    # Places are hidden alike.
    assert chosen.float().mean(0).sub(0.5).abs().max() < 0.05


def test_everything_hidden_may_be_masked() -> None:
    seen, labels = Masking(_VOCABULARY, masked=1.0).hide(_rows(100, 20))
    assert torch.equal(seen == text.MASK, labels != IGNORED)


def test_a_batch_draws_from_the_stream_of_the_moment() -> None:
    masking, samples = Masking(_VOCABULARY), [(row,) for row in _rows(8, 20)]
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(masking(samples))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert not torch.equal(results[0][1], results[2][1])
