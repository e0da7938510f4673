"""ELECTRA: shared parameters, what is forged, and the area under the ROC curve."""

from __future__ import annotations

import pytest
import torch

from isoscale.recipes.data.masking import IGNORED

electra = pytest.importorskip("isoscale.recipes.electra")


def test_networks_share_embeddings_first_layer_and_output_layer() -> None:
    model = electra.Electra(20, 8)
    names = dict(model.named_parameters(remove_duplicate=False))
    words = [name for name, p in names.items() if p is model.discriminator.electra.embeddings.word_embeddings.weight]
    assert len(words) == 3
    # 5 of the embeddings, 16 of the first layer, and the words once more as output layer.
    assert len(names) - len(dict(model.named_parameters())) == 5 + 16 + 1


def test_only_hidden_places_are_forged_and_a_lucky_guess_is_genuine() -> None:
    torch.manual_seed(0)
    model = electra.Electra(20, 8).eval()
    seen_by = {}
    model.discriminator.register_forward_pre_hook(lambda module, args, kwargs: seen_by.update(kwargs), with_kwargs=True)
    rows = torch.randint(5, 20, (16, 12))
    labels = torch.full_like(rows, IGNORED)
    labels[:, 3:9] = rows[:, 3:9]
    seen = torch.where(labels == IGNORED, rows, 4)
    guesses, verdicts, forged = model(seen, labels)
    assert guesses.shape == (16 * 6, 20)
    assert verdicts.shape == rows.shape
    assert torch.equal(forged, seen_by["input_ids"] != rows)
    assert not forged[:, :3].any()
    assert not forged[:, 9:].any()
    assert 0 < forged.sum() < 16 * 6


def test_area_under_roc_counts_pairs() -> None:
    random = torch.Generator().manual_seed(1)
    verdicts = torch.randn(300, generator=random).round(decimals=1)
    forged = torch.rand(300, generator=random) < (verdicts / 3).sigmoid()
    pairs = verdicts[forged][:, None] - verdicts[~forged][None]
    expected = ((pairs > 0).double() + (pairs == 0).double() / 2).mean().item()
    assert electra.area_under_roc(electra.scores(verdicts, forged)) == pytest.approx(expected)
